"""Orders out: signed datagrams injected into the port an agent sits on (spec/order.md 1, 2)."""

from __future__ import annotations

from sos_controller.core import keys, order
from sos_controller.core.agents import Agent
from sos_controller.core.commands import PacketOut
from sos_controller.core.flowtable import Output
from sos_controller.core.model import Address, AgentId, MacAddress
from sos_controller.core.order import Header, OrderType
from sos_controller.core.packets import UdpTemplate
from sos_controller.core.pipeline import PORT_CONTROLLER
from sos_controller.core.state import State

MAX_TEMPLATES = 8_192


class Courier:
    """Sends orders. Sequences count over all agents: each agent sees them rise, which is all its replay window asks for."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._sequence = 0
        self._templates: dict[tuple[MacAddress, Address, int], UdpTemplate] = {}

    def send(self, agent: Agent, kind: OrderType, body: bytes, reply_to: int = 0) -> bool:
        """Sign an order and hand it to the agent's datapath; False when there is no key for the agent's site."""
        state, said = self._state, agent.beacon
        ring = state.agents.ring
        key_id = ring.newest(said.site_id)
        key = None if key_id is None else ring.derive(keys.TO_AGENT, said.site_id, key_id, said.agent_id)
        if key is None or key_id is None:
            return False
        self._sequence += 1
        identity = state.identity
        header = Header(kind, key_id, state.controller_id, said.agent_id, identity.boot_id, self._sequence, state.wall_ms, reply_to)
        frame = self._template(agent).render(order.encode(header, body, key))
        state.out.append(PacketOut(agent.location.dpid, PORT_CONTROLLER, (Output(agent.location.port_no),), frame))
        state.counters["orders_sent", kind.name] += 1
        return True

    def send_to(self, agent_id: AgentId, kind: OrderType, body: bytes, reply_to: int = 0) -> bool:
        """The same by id; False when the agent is not known any more."""
        agent = self._state.agents.get(agent_id)
        return agent is not None and self.send(agent, kind, body, reply_to)

    def _template(self, agent: Agent) -> UdpTemplate:
        said = agent.beacon
        index = (said.mac, said.address, said.order_port)
        found = self._templates.get(index)
        if found is None:
            config = self._state.config
            if config is None:
                raise AssertionError("agents are heard only while a configuration is in force")
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            d = config.discovery
            found = UdpTemplate((d.ether, said.mac), (d.ip, said.address), (d.order_port, said.order_port))
            self._templates[index] = found
        return found

    def forget_templates(self) -> None:
        """Render anew: the discovery addresses may have changed."""
        self._templates.clear()
