"""Covered connections that went plain, or were refused because their service requires more (spec/northbound.md 4): counters by service and
reason, the latest connections with their addresses, and, per service, a flag that most of its recent connections are plain (`is_rule`).

The controller counts its own decisions; agents report the connections that they leave plain (spec/order.md 14).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from sos_controller.core.config import MAX_SERVICES
from sos_controller.core.plain.reason import PlainReason
from sos_controller.core.types import AgentId, FlowKey
from sos_controller.core.wire.path_report import service_mark
from sos_controller.core.wire.plain_report import ACCELERATED, PlainReport

SLOT_S: Final = 30.0
SLOTS: Final = 10
"""Number of slots in the window: the connections of the last five minutes determine `is_rule`."""
MAX_SAMPLES: Final = 1_024
"""Maximum number of connections kept with their addresses; the oldest are dropped."""
SAMPLES_PER_S: Final = 50.0
"""Maximum number of samples per second: the first of each second are kept, so that a flood of plain connections does not evict all earlier
samples."""
RULE_CONNECTIONS: Final = 5
"""Minimum number of plain connections in the window that sets `is_rule`: a port scan or a start-up causes fewer."""
RULE_ENDS_AT: Final = 3
"""Ratio of accelerated to plain connections that clears `is_rule`: hysteresis, so that the condition does not flap."""
FIRST_REPORT_S: Final = 1.0
"""Counters that arrive within this time after an agent's first report to this controller are only baselines for later increments, since
they include earlier connections."""
MAX_TOLD: Final = 16_384
"""Maximum number of agents' counters kept to compute increments."""

EXPECTED: Final = frozenset({PlainReason.PERCENT, PlainReason.OBSERVED, PlainReason.SERVER_REFUSED, PlainReason.SERVER_SILENT})
"""Reasons that need no attention, since the service's spec or the server causes them: counted, but ignored by `is_rule`."""


class Sample(NamedTuple):
    """A connection that went plain."""

    at: float
    service: str
    reason: PlainReason
    key: FlowKey
    by: AgentId | None
    """The agent that left the connection plain; None for the controller."""
    refused: bool = False
    """True if the connection was reset, because its service requires more than plain TCP."""


class Recent(NamedTuple):
    """Connections of a service in the window."""

    accelerated: int
    plain: dict[PlainReason, int]
    is_rule: bool
    refused: bool = False
    """Connections that would have been plain are refused."""

    @property
    def leading(self) -> PlainReason | None:
        """Return the most frequent reason that is not EXPECTED."""
        return _leading(self.plain)


def _leading(counts: dict[PlainReason, int]) -> PlainReason | None:
    # A separate function: mypyc compiles no closure in a method of a NamedTuple
    found = {reason: count for reason, count in counts.items() if reason not in EXPECTED}
    return max(found, key=lambda reason: (found[reason], -reason)) if found else None


class _Service:
    """Counters of one service: in total, per slot of the window, and in the whole window. `None` counts accelerated connections."""

    __slots__ = ("is_rule", "refused", "requires", "slots", "total", "window")

    def __init__(self) -> None:
        self.total: Counter[PlainReason] = Counter()
        self.refused: Counter[PlainReason] = Counter()
        self.requires = False
        self.slots: deque[tuple[int, dict[PlainReason | None, int]]] = deque()
        self.window: dict[PlainReason | None, int] = {}
        self.is_rule = False

    def add(self, reason: PlainReason | None, count: int, slot: int) -> None:
        """Count connections."""
        self._leave_slots(slot)
        if not self.slots or self.slots[-1][0] != slot:
            self.slots.append((slot, {}))
        for counts in (self.slots[-1][1], self.window):
            counts[reason] = counts.get(reason, 0) + count
        if reason is not None:
            (self.refused if self.requires else self.total)[reason] += count

    def _leave_slots(self, slot: int) -> None:
        """Remove the slots that are no longer in the window."""
        while self.slots and slot - self.slots[0][0] >= SLOTS:
            for reason, count in self.slots.popleft()[1].items():
                self.window[reason] -= count
                if not self.window[reason]:
                    del self.window[reason]

    def recent(self, slot: int) -> Recent:
        """Return the window that ends now."""
        self._leave_slots(slot)
        accelerated = self.window.get(None, 0)
        plain = {reason: count for reason, count in self.window.items() if reason is not None}
        unexpected = sum(count for reason, count in plain.items() if reason not in EXPECTED)
        if self.is_rule:
            self.is_rule = unexpected > 0 and accelerated < RULE_ENDS_AT * unexpected
        else:
            self.is_rule = unexpected >= RULE_CONNECTIONS and unexpected > accelerated
        return Recent(accelerated, plain, self.is_rule, self.requires)


class PlainTraffic:
    """Plain connections and their reasons. Bounded by the services of the configuration."""

    def __init__(self) -> None:
        self._services: dict[str, _Service] = {}
        self._marks: dict[bytes, str] = {}
        self._told: dict[tuple[AgentId, bytes, int], int] = {}
        self._heard: dict[AgentId, float] = {}
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._budget, self._budget_at = SAMPLES_PER_S, 0.0

    def configure(self, service_ids: Iterable[str], requiring: Collection[str] = ()) -> None:
        """Keep the counters of these services, forget all others. Services of `requiring` refuse connections instead of leaving them
        plain."""
        wanted = list(service_ids)[:MAX_SERVICES]
        self._services = {service_id: self._services.get(service_id) or _Service() for service_id in wanted}
        for service_id, found in self._services.items():
            found.requires = service_id in requiring
        self._marks = {service_mark(service_id): service_id for service_id in wanted}

    def plain(self, service_id: str, reason: PlainReason, key: FlowKey | None, now: float) -> None:
        """Count a connection that the controller has left plain, or has refused."""
        self._count(service_id, reason, 1, now)
        if key is not None:
            self._sample(Sample(now, service_id, reason, key, None, self._requires(service_id)))

    def accelerated(self, service_id: str, now: float) -> None:
        """Count an accelerated connection of a service."""
        self._count(service_id, None, 1, now)

    def report(self, agent_id: AgentId, report: PlainReport, now: float) -> None:
        """Add an agent's counters since its start, and some of its latest connections."""
        first = self._heard.setdefault(agent_id, now)
        for row in report.rows:
            service, reason = self._marks.get(row.mark), _reason(row.reason)
            place = (agent_id, row.mark, row.reason)
            if place not in self._told and len(self._told) >= MAX_TOLD:
                continue
            known = row.connections if place not in self._told and now - first < FIRST_REPORT_S else 0
            new = row.connections - self._told.get(place, known)
            self._told[place] = row.connections
            if service is not None and new > 0 and (reason is not None or row.reason == ACCELERATED):
                self._count(service, reason, new, now)
        for sample in report.samples:
            service, reason = self._marks.get(sample.mark), _reason(sample.reason)
            if service is not None and reason is not None:
                self._sample(Sample(now, service, reason, sample.key, agent_id, self._requires(service)))

    def forget(self, agent_id: AgentId) -> None:
        """Forget the counters of an agent that is dead or restarted."""
        self._heard.pop(agent_id, None)
        self._told = {place: count for place, count in self._told.items() if place[0] != agent_id}

    def recent(self, service_id: str, now: float) -> Recent:
        """Return the connections of a service in the window."""
        found = self._services.get(service_id)
        return Recent(0, {}, False) if found is None else found.recent(int(now // SLOT_S))

    def totals(self) -> Iterable[tuple[str, PlainReason, int]]:
        """Return plain connections by service and reason since the controller's start."""
        for service_id, found in sorted(self._services.items()):
            for reason, count in sorted(found.total.items()):
                yield service_id, reason, count

    def refusals(self) -> Iterable[tuple[str, PlainReason, int]]:
        """Return refused connections by service and reason since the controller's start."""
        for service_id, found in sorted(self._services.items()):
            for reason, count in sorted(found.refused.items()):
                yield service_id, reason, count

    def samples(self) -> list[Sample]:
        """Return the latest connections, newest first."""
        return list(reversed(self._samples))

    def _requires(self, service_id: str) -> bool:
        found = self._services.get(service_id)
        return found is not None and found.requires

    def _count(self, service_id: str, reason: PlainReason | None, count: int, now: float) -> None:
        found = self._services.get(service_id)
        if found is not None:
            found.add(reason, count, int(now // SLOT_S))

    def _sample(self, sample: Sample) -> None:
        self._budget = min(SAMPLES_PER_S, self._budget + (sample.at - self._budget_at) * SAMPLES_PER_S)
        self._budget_at = sample.at
        if self._budget >= 1:
            self._budget -= 1
            self._samples.append(sample)


def _reason(code: int) -> PlainReason | None:
    """Return a reason by its number; None if this controller does not know it."""
    try:
        return PlainReason(code)
    except ValueError:
        return None
