"""Messages of agents: beacons and orders, and the loss of agents whose beacons are missing (spec/beacon.md, spec/order.md).

A message that fails a check is counted with the reason and dropped; nothing that an agent sends can raise beyond `datagram`.
"""

from __future__ import annotations

from collections.abc import Callable

from sos_controller.core.forwarding.l2 import Forwarding
from sos_controller.core.plain.outcome import Outcome
from sos_controller.core.sessions.order_sender import OrderSender
from sos_controller.core.sessions.setup import SetUp
from sos_controller.core.sessions.teardown import Teardown
from sos_controller.core.state import State
from sos_controller.core.tables.agents import Agent, Surroundings
from sos_controller.core.types import Location
from sos_controller.core.wire import order
from sos_controller.core.wire.beacon import BeaconError
from sos_controller.core.wire.keys import FROM_AGENT
from sos_controller.core.wire.order import Header, OrderError, OrderType
from sos_controller.core.wire.packets import Datagram, parse_udp
from sos_controller.core.wire.path_report import decode_path_report
from sos_controller.core.wire.plain_report import decode_plain_report

AWAY_S = 3600.0
"""Time without beacons after which an agent counts as lost even if its switch is silent or disconnected; until then, the agent may still
carry traffic."""


class AgentMessages:
    """Handles datagrams to the discovery address, and ends the sessions of lost agents."""

    def __init__(self, state: State, setup: SetUp, teardown: Teardown, forwarding: Forwarding, order_sender: OrderSender) -> None:
        self._state, self._setup, self._teardown, self._forwarding = state, setup, teardown, forwarding
        self._order_sender = order_sender
        self._around = Surroundings(state.site_of, state.topology.is_inter_switch)

    def datagram(self, location: Location, data: bytes) -> None:
        """Handle an IPv4 packet that arrived at `location`, if it is a beacon or an order; ignore all others."""
        state, packet = self._state, parse_udp(data)
        config = state.config
        if packet is None or config is None or packet.destination != state.discovery_ip:
            return
        if packet.destination_port == config.discovery.beacon_port:
            self._beacon(location, packet)
        elif packet.destination_port == config.discovery.order_port:
            try:
                self._order(packet.payload)
            except OrderError as error:
                state.count("orders_dropped", str(error))

    def _beacon(self, location: Location, packet: Datagram) -> None:
        state = self._state
        try:
            heard = state.agents.hear(packet.payload, location, self._around, (state.wall_ms, state.now))
        except BeaconError as error:
            state.count("beacons_dropped", str(error))
            return
        state.count("beacons")
        agent = heard.agent
        if heard.restarted:
            self._end_sessions(agent)
        if heard.appeared or heard.restarted:
            self._forwarding.purge(state.hosts.forget_location(agent.location))
            self._teardown.agent_heard(agent.agent_id, agent.beacon.mac)
            self._order_sender.send(agent, OrderType.WATCH, b"")
            state.dirty |= {"plan", "forwarding"}
            self._notice(agent, "restarted" if heard.restarted else "appeared")
        elif heard.turned:
            state.dirty.add("plan")
            self._notice(agent, "changed")

    def _order(self, data: bytes) -> None:
        header = order.decode_header(data)
        state = self._state
        if header.controller_id != state.controller_id:
            return
        agent = state.agents.get(header.agent_id)
        if agent is None:
            raise OrderError("agent")
        key = state.agents.ring.derive(FROM_AGENT, agent.beacon.site_id, header.key_id, header.agent_id)
        if key is None:
            raise OrderError("key")
        if not order.signed_by(data, key):
            raise OrderError("tag")
        if not state.agents.accept_order(header.agent_id, header.boot_id, header.sequence, header.time_ms, state.wall_ms):
            raise OrderError("replay")
        self._obey(header, order.body(data))

    def _obey(self, header: Header, body: bytes) -> None:
        agent_id = header.agent_id
        if header.type == OrderType.READY:
            self._setup.ready(agent_id, *order.decode_ready(body), header.reply_to)
        elif header.type == OrderType.REFUSED:
            uuid, reason = order.decode_refused(body)
            self._setup.refused(agent_id, uuid, reason)
        elif header.type == OrderType.ENDED:
            unborn = self._teardown.ended(agent_id, order.decode_ended(body), header.sequence)
            if unborn is not None:
                self._setup.give_up(unborn, Outcome.AGENT_ENDED)
        elif header.type == OrderType.SESSION_REPORT:
            self._teardown.report(agent_id, order.decode_report(body))
        elif header.type == OrderType.FLOW_REPORT:
            if self._state.agent_sessions.report(agent_id, order.decode_flow_report(body), self._state.now):
                self._state.dirty.add("plan")
        elif header.type == OrderType.PATH_REPORT:
            self._state.path_stats.report(agent_id, decode_path_report(body), self._state.now)
        elif header.type == OrderType.PLAIN_REPORT:
            self._state.plain_traffic.report(agent_id, decode_plain_report(body), self._state.now)
        else:
            raise OrderError("type")

    def lose(self, gone: Callable[[Agent], bool]) -> None:
        """Forget the agents for which `gone` is true, and end their sessions."""
        for agent in self._state.agents.forget(gone):
            self._end_sessions(agent)
            self._state.dirty |= {"plan", "forwarding"}
            self._notice(agent, "gone")

    def miss(self, expiry_s: float) -> None:
        """Stop choosing agents whose beacons are missing. Declare an agent lost only if its switch has sent messages since the agent's last
        beacon. If the switch is silent or disconnected too, perhaps only the connection to the switch is broken."""
        state = self._state
        for agent in state.agents.all():
            if not agent.silent and state.now - agent.seen_at > expiry_s:
                agent.silent = True
                self._teardown.agent_silent(agent.agent_id)
                state.dirty.add("plan")
        self.lose(lambda agent: state.missed_s(agent) > expiry_s or state.now - agent.seen_at > AWAY_S)

    def _end_sessions(self, agent: Agent) -> None:
        self._state.agent_sessions.forget(agent.agent_id)
        self._state.path_stats.forget(agent.agent_id)
        self._state.plain_traffic.forget(agent.agent_id)
        for session in self._teardown.agent_lost(agent.agent_id):
            self._setup.give_up(session, Outcome.AGENT_LOST)

    def _notice(self, agent: Agent, what: str) -> None:
        self._state.notice("agent", id=agent.agent_id.hex(), name=agent.beacon.name, site=agent.beacon.site_id, state=what)
