"""Teardown of sessions, and adoption of sessions of an earlier run of the controller (spec/order.md 6, 7).

Each agent ends its own side. Its redirect entries are removed shortly after it reports the end, when a complete report omits the session,
or when the agent is dead. The session is over when both sides are over. Each side ends separately because the egress agent may still be
sending data to a slow server.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from sos_controller.core.openflow import pipeline
from sos_controller.core.openflow.flow_entries import FlowEntry
from sos_controller.core.pairs.agent_pairs import pair_key
from sos_controller.core.plain.backoff import ClientKey, ServerKey
from sos_controller.core.plain.outcome import Outcome
from sos_controller.core.sessions import redirect
from sos_controller.core.sessions.half_open import probe_half_open
from sos_controller.core.sessions.order_sender import OrderSender
from sos_controller.core.state import State
from sos_controller.core.tables.sessions import FINAL, PENDING, Phase, Session, Trigger, adopted_uuid, session_uuid
from sos_controller.core.types import AgentId, DatapathId, FlowKey, Location, MacAddress, PortNo, ends_of
from sos_controller.core.wire.order import ENDS, Ended, OrderType, Report

LINGER_S: Final = 1.0
"""Delay before entries are removed, so that last acknowledgements and retransmitted FINs still reach the agent."""
REPORT_AGE_S: Final = 10.0
"""Minimum age of a session that a report may end: a younger session may be missing because the report was written earlier."""
ORPHAN_S: Final = 15.0
"""Time limit within which an adopted entry's agent must send a beacon."""
MAX_CHUNKS: Final = 1_024

_UNKNOWN: Final = b"mac:"
_HEARS_NOTHING: Final = (ENDS.index("peer-lost"), ENDS.index("expired"))
"""End reasons of an agent whose peer agent is gone: the peer was lost, or was never reached after the Prepare."""
_EXPIRED, _UNREACHABLE = ENDS.index("expired"), ENDS.index("server-unreachable")
_SERVED: Final = (ENDS.index("closed"), ENDS.index("client-reset"), ENDS.index("server-reset"))
"""End reasons of sessions that were connected to both hosts."""


class _Timer(NamedTuple):
    due: float
    number: int
    session: Session


class _Parts:
    """A report being assembled."""

    __slots__ = ("chunks", "number", "seen", "uuids")

    def __init__(self, number: int, chunks: int) -> None:
        self.number, self.chunks = number, chunks
        self.seen: set[int] = set()
        self.uuids: set[bytes] = set()


class Teardown:
    """Ends of sessions."""

    def __init__(self, state: State, order_sender: OrderSender) -> None:
        self._state, self._order_sender = state, order_sender
        self._timers: list[_Timer] = []
        self._counter = 0
        self._reports: dict[AgentId, _Parts] = {}
        self._life = session_uuid(state.identity.uuid_seed, 0)[:8]
        self.wanted_pairs: set[tuple[AgentId, AgentId]] = set()

    def ended(self, agent_id: AgentId, said: Ended, sequence: int) -> Session | None:
        """Handle Ended of an agent; always acknowledged. Return the session if it was not active yet."""
        self._order_sender.send_to(agent_id, OrderType.ENDED_ACK, said.uuid, sequence)
        session = self._find(agent_id, said.uuid)
        if session is None or agent_id not in (session.ingress, session.egress):
            return None
        self._state.count("ended", str(said.reason))
        self._state.accepting_servers.ended(session.key, said, self._state.now)
        self._learn(session, agent_id, said.reason)
        if session.state in PENDING:
            return session
        self._end_side(session, agent_id, said, LINGER_S)
        other = self._state.agents.get(session.egress if agent_id == session.ingress else session.ingress)
        if said.reason in _HEARS_NOTHING and other is not None and other.silent:
            self._end_side(session, other.agent_id, Outcome.AGENT_LOST, LINGER_S)
        return None

    def _learn(self, session: Session, agent_id: AgentId, reason: int) -> None:
        """Update the back-off of the session's client and server by the reason of its end (`plain.backoff`)."""
        if session.adopted or session.state in PENDING:
            return
        state, (_, server, _, port) = self._state, ends_of(session.key)
        if agent_id == session.ingress:
            client = ClientKey(ends_of(session.key)[0], session.mac, Location(session.dpid, session.in_port))
            if reason == _EXPIRED:
                state.plain_backoff.clients.failed(client, state.now)
            elif reason in _SERVED:
                state.plain_backoff.clients.succeeded(client)
        elif reason == _UNREACHABLE:
            state.plain_backoff.servers.failed(ServerKey(session.site, server, port), state.now)
        elif reason in _SERVED:
            state.plain_backoff.servers.succeeded(ServerKey(session.site, server, port))

    def agent_silent(self, agent_id: AgentId) -> None:
        """Handle an agent whose beacons are missing. Its side of a session is over if the peer agent has reported that it lost or never
        reached this agent: the agent's machine is probably gone. Other sessions may continue."""
        for session in self._state.sessions.of(agent_id):
            told = (how for who, how in session.ended_by.items() if who != agent_id)
            if any(isinstance(how, Ended) and how.reason in _HEARS_NOTHING for how in told):
                self._end_side(session, agent_id, Outcome.AGENT_LOST)

    def report(self, agent_id: AgentId, report: Report) -> None:
        """Handle a chunk of an agent's list of sessions; a complete list ends the sessions that it omits."""
        if report.chunks > MAX_CHUNKS:
            return
        parts = self._reports.get(agent_id)
        if parts is None or (parts.number, parts.chunks) != (report.number, report.chunks):
            parts = self._reports[agent_id] = _Parts(report.number, report.chunks)
        parts.seen.add(report.chunk)
        parts.uuids.update(report.uuids)
        if len(parts.seen) == parts.chunks:
            del self._reports[agent_id]
            self._judge(agent_id, parts.uuids)

    def agent_lost(self, agent_id: AgentId) -> list[Session]:
        """Handle an agent that is dead, restarted or moved: its side of every session is over. Return sessions that were not active
        yet."""
        self._reports.pop(agent_id, None)
        pending = []
        for session in self._state.sessions.of(agent_id):
            if session.state in PENDING:
                pending.append(session)
            else:
                self._end_side(session, agent_id, Outcome.AGENT_LOST)
        return pending

    def agent_heard(self, agent_id: AgentId, mac: MacAddress) -> None:
        """Handle an agent's first beacon: adopted entries that point to its MAC address are its sessions."""
        placeholder = AgentId(_UNKNOWN + mac)
        for session in self._state.sessions.of(placeholder):
            ingress = agent_id if session.ingress == placeholder else session.ingress
            egress = agent_id if session.egress == placeholder else session.egress
            self._state.sessions.reassign(session, ingress, egress)

    def adopt(self, dpid: DatapathId, installed: Iterable[FlowEntry], first: bool) -> list[FlowEntry]:
        """Take over the redirect entries of an earlier run; return the other entries of earlier runs.

        `first`: this run has sent nothing to the datapath yet, so all its entries are of earlier runs, even entries with the current epoch:
        a cookie has only 8 bits of the epoch, and a replacement controller may have the same bits.
        """
        rest = []
        epoch = self._state.identity.epoch & 0xFF
        for entry in installed:
            ours = not first and pipeline.cookie_epoch(entry.cookie) == epoch
            if ours or self._state.programmer.wants(dpid, entry):
                continue
            if pipeline.cookie_kind(entry.cookie) != pipeline.Kind.REDIRECT:
                rest.append(entry)
            elif self._adopt(dpid, entry):
                self._state.programmer.adopt(dpid, entry)
        return rest

    def tick(self) -> None:
        """Remove entries after LINGER_S, and adopted entries whose agent sent no beacon within ORPHAN_S."""
        now = self._state.now
        while self._timers and self._timers[0].due <= now:
            session = heapq.heappop(self._timers).session
            if session.state in FINAL:
                continue
            if session.adopted:
                self._bury_orphans(session)
            self._remove_ended(session)

    def drop(self, session: Session, why: Outcome) -> None:
        """Remove a session's entries and forget it."""
        state = self._state
        for dpids, entry in session.entries():
            state.programmer.remove(dpids, entry, state.out)
        if session.state not in FINAL:
            if session.state in PENDING:
                state.sessions.settle(session)
                session.advance(Trigger.GIVE_UP)
            else:
                session.advance(Trigger.OVER)
        state.forget_session(session, why.text)
        state.recent_flows.note(session.key, state.now)
        state.count("sessions", "ended")
        pair = pair_key(session.ingress, session.egress)
        if pair not in self.wanted_pairs and not (state.sessions.pairs[pair] or state.sessions.pairs[pair[::-1]]):
            state.dirty.add("plan")
        state.notice("session", uuid=session.uuid.hex(), state=session.state.value, reason=why.text, service=session.service)

    def _find(self, agent_id: AgentId, uuid: bytes) -> Session | None:
        found = self._state.sessions.by_uuid(uuid)
        if found is not None or self._is_of_this_life(uuid):
            return found
        # Several sessions with this number are indistinguishable: the next complete report shows the remaining sessions.
        nameless = [s for s in self._state.sessions.nameless(uuid[-2:]) if agent_id in (s.ingress, s.egress)]
        return nameless[0] if len(nameless) == 1 else None

    def _is_of_this_life(self, uuid: bytes) -> bool:
        return uuid[:8] == self._life

    def _judge(self, agent_id: AgentId, uuids: set[bytes]) -> None:
        state = self._state
        sessions = state.sessions.of(agent_id)
        unknown = [uuid for uuid in uuids if state.sessions.by_uuid(uuid) is None and not self._is_of_this_life(uuid)]
        told = Counter(uuid[-2:] for uuid in unknown)
        held = Counter(session.uuid[-2:] for session in sessions if session.is_nameless)
        names = {uuid[-2:]: uuid for uuid in unknown if told[uuid[-2:]] == held[uuid[-2:]] == 1}
        for session in sessions:
            if session.is_nameless and session.uuid[-2:] in names:
                state.sessions.rename(session, names[session.uuid[-2:]])
            reported = session.uuid in uuids or (session.is_nameless and session.uuid[-2:] in told)
            if not reported and state.now - session.created_at > REPORT_AGE_S and session.state not in PENDING:
                self._end_side(session, agent_id, Outcome.NOT_REPORTED)

    def _end_side(self, session: Session, agent_id: AgentId, how: Ended | Outcome, linger: float = 0.0) -> None:
        if agent_id in session.ended_by:
            return
        session.ended_by[agent_id] = how
        session.advance(Trigger.AGENT_ENDED)
        if linger:
            self._watch(session, linger)
        else:
            self._remove_ended(session)

    def _remove_ended(self, session: Session) -> None:
        """Remove the entries of the sides that are over."""
        state = self._state
        for agent_id, placed in ((session.ingress, session.ingress_entries), (session.egress, session.egress_entries)):
            if agent_id in session.ended_by:
                for dpids, entry in placed:
                    state.programmer.remove(dpids, entry, state.out)
                placed.clear()
        if {session.ingress, session.egress} - {b""} <= session.ended_by.keys():
            probe_half_open(state, session)
            self.drop(session, next((how for how in session.ended_by.values() if isinstance(how, Outcome)), Outcome.ENDED))

    def _watch(self, session: Session, delay: float) -> None:
        self._counter += 1
        heapq.heappush(self._timers, _Timer(self._state.now + delay, self._counter, session))

    def _adopt(self, dpid: DatapathId, entry: FlowEntry) -> bool:
        state, found = self._state, redirect.parse(entry)
        if found is None:
            return False
        session = state.sessions.by_key(found.key)
        if session is None:
            if state.sessions.full:
                return False
            session = self._adopted(found.key, pipeline.cookie_number(entry.cookie), dpid)
        if not session.adopted:
            return False
        (session.ingress_entries if found.ingress else session.egress_entries).append(((dpid,), entry))
        if found.mac is not None:
            self._adopt_agent(session, found.ingress, found.mac)
        return True

    def _adopt_agent(self, session: Session, ingress: bool, mac: MacAddress) -> None:
        state = self._state
        known = next((a.agent_id for a in state.agents.all() if a.beacon.mac == mac), AgentId(_UNKNOWN + mac))
        state.sessions.reassign(session, known if ingress else session.ingress, session.egress if ingress else known)

    def _adopted(self, key: FlowKey, number: int, dpid: DatapathId) -> Session:
        state = self._state
        uuid = adopted_uuid(number.to_bytes(2, "big"))
        session = Session(key, uuid, Location(dpid, PortNo(0)), state.now)
        session.adopted, session.state = True, Phase.ACTIVE
        state.sessions.add(session)
        state.count("sessions", "adopted")
        self._watch(session, ORPHAN_S)
        return session

    def _bury_orphans(self, session: Session) -> None:
        for agent_id in (session.ingress, session.egress):
            if agent_id.startswith(_UNKNOWN) and self._state.now - session.created_at >= ORPHAN_S:
                self._end_side(session, agent_id, Outcome.AGENT_UNKNOWN, LINGER_S)
