"""Path and service statistics from agents' reports: rates and round trips of paths, rates of services (spec/order.md 13). Bounded and aged.

Agents report counters with the time at which they were read, so a rate is exact even if reports arrive late or irregularly; it does not
include the time since the last report.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, NamedTuple, TypeVar

from sos_controller.core.types import AgentId
from sos_controller.core.wire.path_report import PathReport, PathRow, ServiceRow

Row = TypeVar("Row", PathRow, ServiceRow)
Key = TypeVar("Key", bound=tuple[Any, ...])

FRESH_S = 7.0
"""Maximum age of a measurement: three reports may be lost before it is forgotten."""
SAMPLES = 6
"""Number of samples kept of each counter: with a report every 2 s the rates shown are means over the last 10 s."""
MAX_SERIES = 16_384
"""Maximum number of paths, and of services, of all agents; further paths and services are not kept."""


class Rates(NamedTuple):
    """Bytes per second: the mean over all samples kept, and between the last two."""

    mean: tuple[float, float]
    latest: tuple[float, float]


class Series:
    """Two counters of an agent, by the agent's own clock."""

    __slots__ = ("_samples", "heard_at")

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=SAMPLES)
        self.heard_at = 0.0

    def add(self, sampled_ms: int, counters: tuple[int, int], now: float) -> bool:
        """Add a sample. A sample with the time of the last sample is ignored. An earlier time or a lower counter starts the series over."""
        if self._samples:
            last = self._samples[-1]
            if sampled_ms == last[0]:
                return False
            if sampled_ms < last[0] or counters[0] < last[1] or counters[1] < last[2]:
                self._samples.clear()
        self._samples.append((sampled_ms, *counters))
        self.heard_at = now
        return True

    def rates(self) -> Rates:
        """Return the rates, zero while there are fewer than two samples."""
        return Rates(self._between(0), self._between(-2))

    def _between(self, first: int) -> tuple[float, float]:
        if len(self._samples) < 2:
            return (0.0, 0.0)
        (began, *before), (ended, *after) = self._samples[first], self._samples[-1]
        seconds = (ended - began) / 1000
        return ((after[0] - before[0]) / seconds, (after[1] - before[1]) / seconds)


class _Reported(Generic[Row]):
    """The last row that an agent has reported of a path or service, and its counters."""

    __slots__ = ("row", "series")

    def __init__(self, row: Row) -> None:
        self.row: Row = row
        self.series = Series()


class PathMeasure(NamedTuple):
    """Statistics of a path from both agents at its ends. `forward` = from the lower to the higher id. Round trips in microseconds, 0 =
    unknown."""

    rtt_us: int
    min_rtt_us: int
    forward: float
    back: float
    load: float
    """Bytes per second between the last two reports, sum of both directions."""
    heard_at: float


class ServiceMeasure(NamedTuple):
    """Statistics of a service from the ingress agents: open sessions, bytes per second (`up`, `down`) and total bytes."""

    sessions: int
    up: float
    down: float
    bytes_up: int
    bytes_down: int


class PathStats:
    """The last reports of every agent."""

    def __init__(self, limit: int = MAX_SERIES) -> None:
        self._limit = limit
        self._paths: dict[tuple[AgentId, AgentId, int], _Reported[PathRow]] = {}
        self._services: dict[tuple[AgentId, bytes], _Reported[ServiceRow]] = {}

    def __len__(self) -> int:
        return len(self._paths) + len(self._services)

    def report(self, agent_id: AgentId, report: PathReport, now: float) -> None:
        """Store a report of an agent."""
        for row in report.paths:
            series = self._series(self._paths, (agent_id, row.peer, row.label), row)
            if series is not None:
                series.add(report.sampled_ms, (row.sent, row.received), now)
        for counted in report.services:
            series = self._series(self._services, (agent_id, counted.mark), counted)
            if series is not None:
                series.add(report.sampled_ms, (counted.up, counted.down), now)

    def _series(self, table: dict[Key, _Reported[Row]], key: Key, row: Row) -> Series | None:
        """Return the counters that a row continues, None if the table is full."""
        if key not in table:
            if len(table) >= self._limit:
                return None
            table[key] = _Reported(row)
        table[key].row = row
        return table[key].series

    def forget(self, agent_id: AgentId) -> None:
        """Forget the counters of an agent that is dead or restarted."""
        self._paths = {key: told for key, told in self._paths.items() if key[0] != agent_id}
        self._services = {key: told for key, told in self._services.items() if key[0] != agent_id}

    def expire(self, now: float) -> None:
        """Forget statistics without a recent report."""
        self._paths = {key: told for key, told in self._paths.items() if now - told.series.heard_at <= FRESH_S}
        self._services = {key: told for key, told in self._services.items() if now - told.series.heard_at <= FRESH_S}

    def path(self, low: AgentId, high: AgentId, label: int) -> PathMeasure | None:
        """Return the statistics of a path between two agents, None without a recent report of either.

        The rates are those of received bytes if the receiving agent reports, since bytes written to a stream may not have been carried yet.
        """
        at_low, at_high = self._paths.get((low, high, label)), self._paths.get((high, low, label))
        ends = [path for path in (at_low, at_high) if path is not None]
        if not ends:
            return None
        low_rates, high_rates = (path.series.rates() if path is not None else None for path in (at_low, at_high))
        forward = high_rates.mean[1] if high_rates is not None else low_rates.mean[0] if low_rates is not None else 0.0
        back = low_rates.mean[1] if low_rates is not None else high_rates.mean[0] if high_rates is not None else 0.0
        load = max(sum(path.series.rates().latest) for path in ends)
        rtt = min((path.row.rtt_us for path in ends if path.row.rtt_us), default=0)
        lowest = min((path.row.min_rtt_us for path in ends if path.row.min_rtt_us), default=0)
        return PathMeasure(rtt, lowest, forward, back, load, max(path.series.heard_at for path in ends))

    def services(self) -> dict[bytes, ServiceMeasure]:
        """Return statistics by the marks of the services, summed over all agents."""
        found: dict[bytes, ServiceMeasure] = {}
        for (_, mark), service in self._services.items():
            before = found.get(mark, ServiceMeasure(0, 0.0, 0.0, 0, 0))
            (up, down), row = service.series.rates().mean, service.row
            found[mark] = ServiceMeasure(
                before.sessions + row.sessions, before.up + up, before.down + down, before.bytes_up + row.up, before.bytes_down + row.down
            )
        return found
