"""Sessions that agents began by their own configuration, without an order (docs/adr/0008), from their reports (spec/order.md 11).

The controller neither starts nor ends these sessions. It counts them, keeps the paths of their agents, and keeps a removed service's
entries until the service's last session is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sos_controller.core.types import Address, AgentId, FlowKey
from sos_controller.core.wire.order import FlowReport, ReportedFlow, Role

MAX_CHUNKS = 4_096
"""Maximum number of chunks of one report: 65,536 flows, as many as ordered sessions."""


class Flow(NamedTuple):
    """A session without an order, from the reports of its agents."""

    uuid: bytes
    key: FlowKey
    ingress: AgentId
    egress: AgentId
    since: float

    @property
    def client(self) -> Address:
        """Return the client's address."""
        return Address(int.from_bytes(self.key[:4], "big"))

    @property
    def server(self) -> Address:
        """Return the server's address."""
        return Address(int.from_bytes(self.key[4:8], "big"))

    @property
    def client_port(self) -> int:
        """Return the client's port."""
        return self.key[8] << 8 | self.key[9]

    @property
    def server_port(self) -> int:
        """Return the server's port."""
        return self.key[10] << 8 | self.key[11]


class _Parts:
    """A report being assembled."""

    __slots__ = ("chunks", "flows", "number", "seen")

    def __init__(self, number: int, chunks: int) -> None:
        self.number, self.chunks = number, chunks
        self.seen: set[int] = set()
        self.flows: dict[bytes, ReportedFlow] = {}


class AgentSessions:
    """The last complete report of every agent."""

    def __init__(self) -> None:
        self._parts: dict[AgentId, _Parts] = {}
        self._reported: dict[AgentId, dict[bytes, Flow]] = {}
        self._at: dict[AgentId, float] = {}
        self.pairs: Counter[tuple[AgentId, AgentId]] = Counter()
        self.revision = 0
        """Number of changes of the reports."""

    def __len__(self) -> int:
        return len(self._uuids())

    def __iter__(self) -> Iterator[Flow]:
        seen = {uuid: flow for flows in self._reported.values() for uuid, flow in flows.items()}
        return iter(seen.values())

    def report(self, agent_id: AgentId, report: FlowReport, now: float) -> bool:
        """Handle a chunk of an agent's list. Return True if a complete list has changed the pairs of agents that have sessions without an
        order."""
        if report.chunks > MAX_CHUNKS:
            return False
        parts = self._parts.get(agent_id)
        if parts is None or (parts.number, parts.chunks) != (report.number, report.chunks):
            parts = self._parts[agent_id] = _Parts(report.number, report.chunks)
        parts.seen.add(report.chunk)
        parts.flows.update((flow.uuid, flow) for flow in report.flows)
        if len(parts.seen) < parts.chunks:
            return False
        del self._parts[agent_id]
        before = self._reported.get(agent_id, {})
        self._at[agent_id] = now
        return self._replace(agent_id, {uuid: _flow(agent_id, f, before.get(uuid), now) for uuid, f in parts.flows.items()})

    def forget(self, agent_id: AgentId) -> bool:
        """Drop the report of an agent that is dead, restarted or moved. Return True if that changes the pairs."""
        self._parts.pop(agent_id, None)
        self._at.pop(agent_id, None)
        return self._replace(agent_id, {})

    def reported_at(self, agent_id: AgentId) -> float | None:
        """Return the time of an agent's last complete report."""
        return self._at.get(agent_id)

    def _uuids(self) -> set[bytes]:
        return {uuid for flows in self._reported.values() for uuid in flows}

    def _replace(self, agent_id: AgentId, flows: dict[bytes, Flow]) -> bool:
        before = set(self.pairs)
        self.revision += 1
        self.pairs.subtract(_pairs(self._reported.pop(agent_id, {}).values()))
        self.pairs.update(_pairs(flows.values()))
        self.pairs = +self.pairs
        if flows:
            self._reported[agent_id] = flows
        return set(self.pairs) != before


def _pairs(flows: Iterable[Flow]) -> Counter[tuple[AgentId, AgentId]]:
    return Counter((flow.ingress, flow.egress) for flow in flows)


def _flow(agent_id: AgentId, said: ReportedFlow, before: Flow | None, now: float) -> Flow:
    ingress, egress = (agent_id, said.peer) if said.role == Role.INGRESS else (said.peer, agent_id)
    return Flow(said.uuid, said.key, ingress, egress, now if before is None else before.since)
