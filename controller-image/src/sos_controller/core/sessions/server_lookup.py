"""Where a server is that nobody has said anything of: its site's switches ask for it.

A controller that has just started knows no hosts, and a server speaks ARP rarely. Until it is known all agents of its site are equally
near: sessions are led to agents of other nodes, over ways that they would not need and that may fail. So the first connection to it asks,
in the name of an agent of its site: an ARP request without a sender address is a probe, which tells a host that takes the address just then
of a conflict (RFC 5227, 2.1.1).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sos_controller.core.commands import PacketOut
from sos_controller.core.openflow.flow_entries import Action, Output
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER, PORT_NORMAL
from sos_controller.core.state import State
from sos_controller.core.tables.agents import Agent
from sos_controller.core.types import Address, DatapathId, Location
from sos_controller.core.wire.packets import build_arp_request

ASK_S: Final = 1.0
"""Between two questions for the same server."""
MAX_ASKED: Final = 1_024
"""The oldest give way: they are asked for again."""


class ServerLookup:
    """Servers that were asked for lately."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._asked: OrderedDict[Address, float] = OrderedDict()

    def __len__(self) -> int:
        """Questions that are remembered."""
        return len(self._asked)

    def look_for(self, site: str, server: Address) -> None:
        """Ask for a server where hosts of its site may be, unless it is known or was asked for just now; its answer is copied to us."""
        state = self._state
        if state.hosts.by_address(server) is not None or state.now - self._asked.get(server, float("-inf")) < ASK_S:
            return
        self._asked[server] = state.now
        self._asked.move_to_end(server)
        if len(self._asked) > MAX_ASKED:
            self._asked.popitem(last=False)
        self.ask(site, server)

    def ask(self, site: str, server: Address) -> None:
        """Ask for a host where hosts of a site may be; nobody asks where no agent is, as there are no sessions either."""
        agents = self._state.agents.all()
        asker = next((a for a in agents if self._site_of(a.location.dpid) == site and not a.silent), None)
        if asker is not None:
            self._ask(asker, site, server)

    def _site_of(self, dpid: DatapathId) -> str:
        claim = self._state.claims.get(dpid)
        return "" if claim is None else claim[0].name

    def _ask(self, asker: Agent, site: str, server: Address) -> None:
        """As if the agent had asked itself: its own switch forwards the question in the agent's VLAN (NORMAL). Where switches forward as
        we say, each of them sends it out of the ports where hosts may be."""
        state, at = self._state, asker.location
        frame = build_arp_request(asker.beacon.mac, asker.beacon.address, server)
        beside = state.switches.get(at.dpid)
        if beside is not None and not beside.is_ours:
            state.out.append(PacketOut(at.dpid, at.port_no, (Output(PORT_NORMAL),), frame))
            state.count("arp", "asked")
            return
        for switch in state.switches.values():
            if self._site_of(switch.dpid) == site:
                places = [Location(switch.dpid, port.port_no) for port in switch.live_ports()]
                outputs: tuple[Action, ...] = tuple(Output(place.port_no) for place in places if state.is_edge(place))
                if outputs:
                    state.out.append(PacketOut(switch.dpid, PORT_CONTROLLER, outputs, frame))
                    state.count("arp", "asked")
