"""Set-up of a session: from a SYN to a redirected flow, or to plain TCP (thesis 3.4; spec/order.md 8).

1. The SYN is punted. Without a service, agents or capacity, or with a special option, it goes plain, and the decision is remembered by
   (4-tuple, ISN) (`admission`). Otherwise the connection gets a route: its agents, path labels and datapaths (`routes`).
2. Prepare goes to both agents, and the redirect entries to the switches, each followed by a barrier. Retransmitted SYNs are dropped
   meanwhile: the held SYN will be delivered.
3. Both agents are Ready, all barriers are answered and no cached megaflow can match the flow (`cache_guard`): the held SYN is delivered to
   the ingress agent. If the server must have accepted first (`accepting_servers`), the egress agent sends Ready only after it has connected
   to the server. The egress agent gets its Prepare only after the egress entries, since these redirect the server's answer to the agent:
   once they are installed, or directly behind them on the same OpenFlow connection (`Route.in_order`).
4. After a refusal or a switch failure, or if set-up is not complete after one second, the entries are removed, Release is sent, and the SYN
   goes plain.

So, for a session that waits for the server, a connection that the server refuses or does not answer stays plain TCP, and the client learns
the outcome from the server itself.

Entries need not wait for the agents' answers: they match one flow only, and while its SYN is held, the flow has no other packets (ADR
0010). The ingress entry does not match SYNs, so the SYN of a client that reuses its port is punted and does not reach a session that is
ending.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from sos_controller.core.commands import PacketOut
from sos_controller.core.forwarding.l2 import Forwarding
from sos_controller.core.openflow import pipeline
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER, SETTLE_S
from sos_controller.core.plain.outcome import AgentRefusal, Outcome
from sos_controller.core.plain.reason import PlainReason
from sos_controller.core.services.plan import Plan
from sos_controller.core.sessions import redirect
from sos_controller.core.sessions.admission import Admission
from sos_controller.core.sessions.order_sender import OrderSender
from sos_controller.core.sessions.prepare_body import PrepareBody
from sos_controller.core.sessions.redirect import Leg
from sos_controller.core.sessions.refusal import refuse, requiring
from sos_controller.core.sessions.routes import Route
from sos_controller.core.sessions.teardown import Teardown
from sos_controller.core.state import State, Switch
from sos_controller.core.tables.agents import Agent
from sos_controller.core.tables.sessions import PENDING, Phase, Session, Trigger, session_uuid
from sos_controller.core.types import AgentId, Location, PortNo
from sos_controller.core.wire.order import REFUSED_BY_SERVER, OrderType, Role
from sos_controller.core.wire.packets import Syn, complete_checksum, parse_ends, parse_syn

GIVE_UP_AFTER_S: Final = 1.0
"""Time limit of set-up: both answers and all barriers must have arrived."""
OPENING_S: Final = 1.5
"""Time within which a client may retransmit a delivered SYN (RFC 6298: after 1 s), because the agent's answer is lost, or late (the agent
may first have to resolve the client's MAC address). A controller that shuts down continues to punt for this time: if the retransmission
went plain, the server would answer, and the agent would reset the client's next segment."""


class Timer(NamedTuple):
    """A session to process again when due."""

    due: float
    number: int
    session: Session


class SetUp:
    """Sessions from the SYN up to ACTIVE."""

    def __init__(self, state: State, order_sender: OrderSender, plan: Plan, forwarding: Forwarding, teardown: Teardown) -> None:
        self._state, self._order_sender, self._plan = state, order_sender, plan
        self._forwarding, self._teardown = forwarding, teardown
        self.begun: Callable[[Session], None] | None = None  # called once the entries of a session are sent
        self._admission, self._prepare_body = Admission(state, plan), PrepareBody()
        self._timers: list[Timer] = []
        self._counter = 0
        self._opening_until = 0.0

    def syn(self, switch: Switch, in_port: PortNo, data: bytes) -> None:
        """Handle a packet from a punt entry of ours."""
        state = self._state
        syn = parse_syn(data)
        if syn is None:
            state.count("syns", Outcome.UNPARSED.text)
            self._unparsed(switch, in_port, data)
            return
        location = Location(switch.dpid, in_port)
        self._forwarding.learn(syn.mac, syn.client, location)
        session = state.sessions.by_key(syn.key)
        if session is not None and self._repeated(session, syn, data):
            return
        route = self._admission.decide(switch, location, syn)
        outcome = route if isinstance(route, Outcome) else self._begin(route, location, syn, data)
        self._plan.passive_measurement.punted(switch, syn, outcome)
        if outcome is not None:
            self._leave_plain(switch, in_port, syn, data, outcome)

    def _leave_plain(self, switch: Switch, in_port: PortNo, syn: Syn, data: bytes, outcome: Outcome) -> None:
        """Forward a SYN that gets no session as plain TCP, or refuse the SYN if its service has requirements (`spec.require`)."""
        state = self._state
        self._admission.count_plain(switch, syn, outcome)
        if requiring(state, switch.site, syn) is not None:
            state.count("syns", outcome.text)
            refuse(state, switch, in_port, data)
        else:
            state.recent_flows.note(syn.key, state.now)
            self._admission.remember(syn.key + syn.isn, outcome)
            self._forwarding.release(switch, in_port, data)

    def ready(self, agent_id: AgentId, uuid: bytes, accepted: bool, reply_to: int) -> None:
        """Handle Ready: an agent has prepared a session. `reply_to`: sequence number of the answered order; `accepted`: the server has
        accepted, too."""
        session = self._asked(agent_id, uuid)
        if session is None:
            return
        agent = self._state.agents.get(agent_id)
        waited = session.confirms and agent_id == session.egress  # this agent waited for the server, and before that for entries
        if agent is not None and not waited and 0 <= reply_to - session.asked <= 1:  # only answers to the first order measure a round trip
            agent.order_rto.answered(self._state.now - session.created_at)
        if accepted:
            self._state.accepting_servers.note(session.key, self._state.now)
        session.ready.add(agent_id)
        self._complete(session)

    def refused(self, agent_id: AgentId, uuid: bytes, reason: int) -> None:
        """Handle Refused: an agent refuses a session, or the server has not accepted. The egress agent may report a server that has not
        accepted even after its Ready."""
        begun = self._state.sessions.by_uuid(uuid)
        if reason in REFUSED_BY_SERVER and begun is not None and agent_id == begun.egress:
            self._state.accepting_servers.forget(begun.key)
        session = self._asked(agent_id, uuid)
        if session is not None:
            self.give_up(session, AgentRefusal(reason or 0xFFFF))

    def _asked(self, agent_id: AgentId, uuid: bytes) -> Session | None:
        """Return the session of an agent's answer, if it is being prepared by this agent."""
        session = self._state.sessions.by_uuid(uuid)
        if session is None or session.state is not Phase.PREPARING or agent_id not in (session.ingress, session.egress):
            return None
        return session

    def tick(self) -> None:
        """Retransmit unanswered orders, time out set-ups, forget old decisions."""
        now = self._state.now
        while self._timers and self._timers[0].due <= now:
            due, _, session = heapq.heappop(self._timers)
            if session.due != due:
                continue
            if session.state in PENDING and now >= session.created_at + GIVE_UP_AFTER_S:
                self.give_up(session, Outcome.TIMEOUT)
            elif session.state is Phase.PREPARING:
                self._prepare(session)
            elif session.state is Phase.PLAIN:
                self._release(session)
        self._admission.tick()

    def is_opening(self, now: float) -> bool:
        """Return whether a client may still retransmit a SYN that was delivered to an agent."""
        return now < self._opening_until

    @property
    def is_leaving(self) -> bool:
        """Return whether no more sessions start."""
        return self._admission.leaving

    def leave(self) -> None:
        """Start no more sessions, and give up sessions that are not active yet."""
        self._admission.leaving = True
        for session in [session for session in self._state.sessions if session.state in PENDING]:
            self.give_up(session, Outcome.LEAVING)

    def give_up(self, session: Session, why: Outcome | AgentRefusal) -> None:
        """Give up a session that is not active yet: forward its SYN as plain TCP, or refuse the SYN if its service has requirements."""
        state = self._state
        if session.state not in PENDING:
            return
        session.advance(Trigger.GIVE_UP)
        state.sessions.settle(session)
        for dpids, entry in session.entries():
            state.programmer.remove(dpids, entry, state.out)
        for agent in (session.ingress, session.egress):
            self._order_sender.send_to(agent, OrderType.RELEASE, session.uuid)
        state.forget_session(session, why.text)
        self._plan.passive_measurement.forget(session.key)
        reason = why.reason
        if session.requires and why is Outcome.TIMEOUT and self._waits_for_server(session):
            reason = PlainReason.SERVER_SILENT
        if reason is not None and not (session.requires and reason is PlainReason.SERVER_SILENT):
            state.plain_traffic.plain(session.service, reason, session.key, state.now)
        state.notice("session", uuid=session.uuid.hex(), state=session.state.value, reason=why.text, service=session.service)
        if session.requires:
            self._refuse(session, reason, why)
            return
        state.recent_flows.note(session.key, state.now)
        self._admission.remember(session.key + session.isn, why)
        if session.confirms and session.is_rewritten:
            self._watch(session, state.now + SETTLE_S)
        else:
            self._release(session)

    def _refuse(self, session: Session, reason: PlainReason | None, why: Outcome | AgentRefusal) -> None:
        """Answer the SYN of a session that was given up and must not be plain. If the server is silent, drop the SYN without an answer: its
        retransmission tries the server again."""
        self._state.count("syns", why.text)
        switch = self._state.switches.get(session.dpid)
        if switch is not None and session.syn and reason is not PlainReason.SERVER_SILENT:
            refuse(self._state, switch, session.in_port, session.syn)
        session.syn = b""

    def _waits_for_server(self, session: Session) -> bool:
        """Return whether only the server's answer is missing. On a long path, set-up times out (GIVE_UP_AFTER_S) before the egress agent's
        report of a silent server arrives."""
        return session.confirms and not session.waiting and session.ingress in session.ready and session.connect_at <= self._state.now

    def _release(self, session: Session) -> None:
        """Forward to the server the SYN of a session that was given up. If an entry still exists at the server's site, it redirects the
        answer to an agent, which forwards unknown packets (ADR 0010). If the site rewrites, the SYN has been delayed until the entries are
        gone."""
        switch = self._state.switches.get(session.dpid)
        if switch is not None and session.syn:
            self._forwarding.release(switch, session.in_port, session.syn)
        session.syn = b""

    def _repeated(self, session: Session, syn: Syn, data: bytes) -> bool:
        """Handle a SYN of a flow that has a session. Return False if it opens a new connection."""
        state = self._state
        if session.state in PENDING and syn.isn != session.isn:
            session.isn, session.syn = syn.isn, data
        kept = session.state is Phase.ACTIVE and state.now < session.deliver_at
        if kept or session.state in PENDING:  # the held SYN will be delivered
            state.count("syns", Outcome.HELD.text)
            return True
        if session.state is Phase.ACTIVE or syn.isn == session.isn:
            agent = state.agents.get(session.ingress)
            if agent is not None:
                self._deliver(agent, data)
                state.count("syns", Outcome.FORWARDED.text)
                return True
        self._teardown.drop(session, Outcome.PORT_REUSED)
        return False

    def _begin(self, route: Route, location: Location, syn: Syn, data: bytes) -> Outcome | None:
        """Send orders and entries for a flow; else return the outcome of a SYN that goes plain."""
        session = self._enter(route, location, syn, data)
        if not self._prepare(session):
            return self._no_order(session)
        self._install(session, route)
        if route.in_order and not self._plan.cache_guard.wait(session):
            self._connect(session)
        return None

    def _connect(self, session: Session) -> None:
        """Let the egress agent connect as soon as no switch forwards the flow by a cached megaflow. Called when the egress entries are
        installed."""
        wait = self._plan.cache_guard.wait(session)
        session.connect_at = self._state.now + wait
        if wait:
            self._watch(session, session.connect_at)
        else:
            self._prepare(session)

    def _no_order(self, session: Session) -> Outcome:
        session.advance(Trigger.GIVE_UP)
        self._state.sessions.settle(session)
        self._state.forget_session(session, Outcome.NO_KEY.text)
        return Outcome.NO_KEY

    def _enter(self, route: Route, location: Location, syn: Syn, data: bytes) -> Session:
        state, service = self._state, route.service
        self._counter += 1
        session = Session(syn.key, session_uuid(state.identity.uuid_seed, self._counter), location, state.now)
        session.service, session.site, session.requires = service.id, service.to.site, bool(service.require)
        session.ingress, session.egress = route.ingress.agent.agent_id, route.egress.agent.agent_id
        session.labels, session.transport, session.is_rewritten = route.labels, service.transport, bool(route.egress.port)
        session.isn, session.syn, session.mac = syn.isn, data, syn.mac
        if route.confirms:
            session.confirms, session.connect_at = True, math.inf
        state.sessions.add(session)
        state.sessions.begin(session)
        session.advance(Trigger.ORDERED)
        route.ingress.agent.assigned += 1
        route.egress.agent.assigned += 1
        return session

    def _prepare(self, session: Session) -> bool:
        """Send Prepare to the agents that have not answered. Return False if orders cannot be sent to an agent."""
        state = self._state
        ingress, egress = state.agents.get(session.ingress), state.agents.get(session.egress)
        if ingress is None or egress is None:
            return False
        session.attempts += 1
        if session.attempts == 1:
            state.count("syns", Outcome.BEGUN.text)
            session.asked = self._order_sender.next_sequence
        rto = max(ingress.order_rto.seconds, egress.order_rto.seconds) * ((1 << session.attempts) - 1)
        self._watch(session, session.created_at + min(rto, GIVE_UP_AFTER_S))
        sent = True
        for agent, other, role in ((egress, ingress, Role.EGRESS), (ingress, egress, Role.INGRESS)):
            if agent.agent_id not in session.ready and (role is Role.INGRESS or state.now >= session.connect_at):
                body = self._prepare_body.body(session, other, role)
                sent = self._order_sender.send(agent, OrderType.PREPARE, body) and sent
        return sent

    def _install(self, session: Session, route: Route) -> None:
        """Send the redirect entries, egress side first."""
        state = self._state
        cookie = state.cookie(pipeline.Kind.REDIRECT, session.number)
        session.ingress_entries = redirect.entries(session.key, route.ingress, (session.dpid,), cookie)
        session.egress_entries = redirect.entries(session.key, route.egress, route.egress_dpids, cookie)
        session.leading = len(session.egress_entries)
        session.waiting = session.leading + len(session.ingress_entries)
        for is_egress, placed in ((True, session.egress_entries), (False, session.ingress_entries)):
            installed = partial(self._installed, session, is_egress)
            for dpids, entry in placed:
                state.programmer.install(dpids, entry, installed, state.out)
        self._plan.fragments.begun(session)
        if self.begun is not None:
            self.begun(session)

    def _installed(self, session: Session, is_egress: bool, done: bool) -> None:
        """Handle a redirect entry's outcome. `done`: True if all barriers after the entry are answered, False if a barrier will never be
        answered."""
        if session.state is not Phase.PREPARING:
            return
        if not done:
            self.give_up(session, Outcome.DATAPATH_FAILED)
            return
        session.waiting -= 1
        session.leading -= is_egress
        session.installed_at = self._state.now
        if session.connect_at == math.inf and not session.leading:
            self._connect(session)
        self._complete(session)

    def _complete(self, session: Session) -> None:
        if len(session.ready) == 2 and not session.waiting:
            session.advance(Trigger.COMPLETE)
            self._activate(session)

    def _activate(self, session: Session) -> None:
        state = self._state
        state.sessions.settle(session)
        state.count("sessions", "begun")
        state.plain_traffic.accelerated(session.service, state.now)
        agent = state.agents.get(session.ingress)
        if agent is not None:
            wait = self._plan.cache_guard.wait(session)
            session.deliver_at = state.now + wait
            state.set_up_times.observe(session.deliver_at - session.created_at)
            self._opening_until = max(self._opening_until, session.deliver_at + OPENING_S)  # the maximum: sessions wait for different times
            self._deliver(agent, session.syn, wait)
        session.syn = b""
        state.notice("session", uuid=session.uuid.hex(), state=session.state.value, service=session.service)

    def _deliver(self, agent: Agent, data: bytes, after_s: float = 0.0) -> None:
        """Send a SYN to the ingress agent as its entries would."""
        frame = agent.beacon.mac + complete_checksum(data)[6:]
        actions = redirect.arrival(Leg(agent, True, self._state.rewritten_port(agent.agent_id, True, 0)))
        self._state.out.append(PacketOut(agent.location.dpid, PORT_CONTROLLER, actions, frame, after_s))

    def _unparsed(self, switch: Switch, in_port: PortNo, data: bytes) -> None:
        """Count a first packet that cannot be parsed, for the service that covers it. Retransmissions count as well, since they are
        indistinguishable. Then forward or refuse the packet."""
        state, ends, site = self._state, parse_ends(data), switch.site
        policy = None if ends is None or site is None else state.policies.first(site.name, ends)
        if ends is not None and policy is not None:
            reason = PlainReason.VLAN if ends.is_tagged else PlainReason.UNPARSED
            state.plain_traffic.plain(policy.service.id, reason, ends.key, state.now)
        if policy is not None and policy.service.require:
            refuse(state, switch, in_port, data)
        else:
            self._forwarding.release(switch, in_port, data)

    def _watch(self, session: Session, due: float) -> None:
        self._counter += 1
        session.due = due
        heapq.heappush(self._timers, Timer(due, self._counter, session))
