"""Where a server is that nobody has said anything of: its site's switches ask for it.

A controller that has just started knows no hosts, and a server speaks ARP rarely. Until it is known all agents of its site are equally
near: sessions are led to agents of other nodes, over ways that they would not need and that may fail. So the first connection to it asks.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sos_controller.core.commands import PacketOut
from sos_controller.core.flowtable import Action, Output
from sos_controller.core.model import Address, DatapathId, Location
from sos_controller.core.packets import build_arp_request
from sos_controller.core.pipeline import PORT_CONTROLLER
from sos_controller.core.state import State

ASK_S: Final = 1.0
"""Between two questions for the same server."""
MAX_ASKED: Final = 1_024
"""The oldest give way: they are asked for again."""


class Finder:
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
        """Ask for a host where hosts of a site may be."""
        state = self._state
        for switch in state.switches.values():
            if switch.site is not None and switch.site.name == site:
                places = [Location(switch.dpid, port.port_no) for port in switch.live_ports()]
                outputs: tuple[Action, ...] = tuple(Output(place.port_no) for place in places if state.is_edge(place))
                self._send(switch.dpid, outputs, server)

    def _send(self, dpid: DatapathId, outputs: tuple[Action, ...], server: Address) -> None:
        config = self._state.config
        if outputs and config is not None:
            frame = build_arp_request(config.discovery.ether, Address(0), server)
            self._state.out.append(PacketOut(dpid, PORT_CONTROLLER, outputs, frame))
            self._state.count("arp", "asked")
