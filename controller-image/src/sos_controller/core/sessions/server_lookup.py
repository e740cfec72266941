"""Server lookup: locate unknown servers by an ARP request at their site.

A controller that has just started knows no hosts, and a server rarely sends ARP. Until a server is known, all agents of its site are
equally near: sessions would be redirected to agents of other nodes, over unnecessary paths that may fail. So the first
connection triggers an ARP request with an agent of the site as its sender. A request without a sender address would be an ARP probe, which
signals a conflict to a host that is just taking the address (RFC 5227, 2.1.1).
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
"""Minimum interval between two requests for the same server."""
MAX_ASKED: Final = 1_024
"""Maximum number of lookups remembered. The oldest lookups are dropped, and repeated on demand."""


class ServerLookup:
    """Servers that were looked up recently."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._asked: OrderedDict[Address, float] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of lookups remembered."""
        return len(self._asked)

    def look_for(self, site: str, server: Address) -> None:
        """Send a request for a server, unless the server is known or a request was sent within the last ASK_S seconds. Switches copy the
        reply to the controller."""
        state = self._state
        if state.hosts.by_address(server) is not None or state.now - self._asked.get(server, float("-inf")) < ASK_S:
            return
        self._asked[server] = state.now
        self._asked.move_to_end(server)
        if len(self._asked) > MAX_ASKED:
            self._asked.popitem(last=False)
        self.ask(site, server)

    def ask(self, site: str, server: Address) -> None:
        """Send a request for a host at a site. Without an agent at the site, no request is sent, since the site can have no sessions."""
        agents = self._state.agents.all()
        asker = next((a for a in agents if self._site_of(a.location.dpid) == site and not a.silent), None)
        if asker is not None:
            self._ask(asker, site, server)

    def _site_of(self, dpid: DatapathId) -> str:
        claim = self._state.claims.get(dpid)
        return "" if claim is None else claim[0].name

    def _ask(self, asker: Agent, site: str, server: Address) -> None:
        """Send the request as if from the agent: the agent's switch forwards it in the agent's VLAN (NORMAL). If the controller forwards at
        the agent's switch, each switch of the site sends the request out of the ports where hosts may be."""
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
