"""Sender of orders, as signed datagrams out of the agent's port (spec/order.md 1, 2)."""

from __future__ import annotations

from typing import Final, NamedTuple

from sos_controller.core.commands import PacketOut
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER
from sos_controller.core.state import State
from sos_controller.core.tables.agents import Agent
from sos_controller.core.types import Address, AgentId, MacAddress
from sos_controller.core.wire import keys, order
from sos_controller.core.wire.beacon import Beacon
from sos_controller.core.wire.order import Header, OrderType
from sos_controller.core.wire.packets import UdpTemplate

MAX_TEMPLATES: Final = 8_192


class _DatagramTemplate(NamedTuple):
    """Constant part of the datagrams to an agent, and the values it was built from."""

    ring: keys.KeyRing
    place: tuple[int, MacAddress, Address, int]
    key_id: int
    key: bytes
    template: UdpTemplate


class OrderSender:
    """Sender of orders. One sequence counter serves all agents: an agent's replay window only requires that the numbers increase."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._sequence = 0
        self._templates: dict[AgentId, _DatagramTemplate] = {}

    @property
    def next_sequence(self) -> int:
        """Return the sequence number of the next order."""
        return self._sequence + 1

    def send(self, agent: Agent, kind: OrderType, body: bytes, reply_to: int = 0) -> bool:
        """Sign an order and send it out of the agent's datapath; return False if there is no key for the agent's site."""
        state, said = self._state, agent.beacon
        cached = self._templates.get(said.agent_id)
        if cached is None or cached.ring is not state.agents.ring or cached.place != _place(said):
            cached = self._open(agent)
            if cached is None:
                return False
        self._sequence += 1
        boot_id, sequence = state.identity.boot_id, self._sequence
        header = Header(kind, cached.key_id, state.controller_id, said.agent_id, boot_id, sequence, state.wall_ms, reply_to)
        frame = cached.template.render(order.encode(header, body, cached.key))
        where = agent.location
        state.out.append(PacketOut(where.dpid, PORT_CONTROLLER, (Output(where.port_no),), frame))
        state.counters[_SENT[kind]] += 1
        return True

    def send_to(self, agent_id: AgentId, kind: OrderType, body: bytes, reply_to: int = 0) -> bool:
        """Send an order to an agent by id; return False if the agent is no longer known."""
        agent = self._state.agents.get(agent_id)
        return agent is not None and self.send(agent, kind, body, reply_to)

    def watch(self) -> None:
        """Request reports of sessions without an order from all agents."""
        for agent in self._state.agents.all():
            self.send(agent, OrderType.WATCH, b"")

    def _open(self, agent: Agent) -> _DatagramTemplate | None:
        config, said, ring = self._state.config, agent.beacon, self._state.agents.ring
        key_id = ring.sending(said.site_id)
        key = None if key_id is None else ring.derive(keys.TO_AGENT, said.site_id, key_id, said.agent_id)
        if config is None or key is None or key_id is None:
            return None
        if len(self._templates) >= MAX_TEMPLATES:
            self._templates.clear()
        d = config.discovery
        template = UdpTemplate((d.ether, said.mac), (d.ip, said.address), (d.order_port, said.order_port))
        cached = self._templates[said.agent_id] = _DatagramTemplate(ring, _place(said), key_id, key, template)
        return cached

    def forget_templates(self) -> None:
        """Drop cached templates: the discovery addresses, or an agent's site, may have changed."""
        self._templates.clear()


def _place(said: Beacon) -> tuple[int, MacAddress, Address, int]:
    return (said.site_id, said.mac, said.address, said.order_port)


_SENT: Final = {kind: ("orders_sent", kind.name) for kind in OrderType}
