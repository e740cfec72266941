"""Ageing of hosts: a host that has been silent for SILENT_S is asked by ARP, and forgotten if it does not answer.

The controller sees ARP packets, SYNs and tracked segments of a host, not its other packets. Idle timeouts of the hosts' entries would show
these, but entries of plain forwarding have no timeout: while no controller runs, an entry that expires at one switch would leave the
switches before it pointing to a port on which flooded packets are dropped (docs/adr/0071).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sos_controller.core.commands import PacketOut
from sos_controller.core.config import Site
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER
from sos_controller.core.state import State
from sos_controller.core.topology.hosts import Host
from sos_controller.core.types import Address, MacAddress
from sos_controller.core.wire.packets import build_arp_request

SILENT_S: Final = 300.0
"""Time without packets of a host at the controller after which the host is asked: the default ageing time of bridges (IEEE 802.1Q-2018,
table 8-6)."""
ASK_TIMES, ASK_GAP_S = 3, 2.0
"""Number of unanswered ARP requests after which a host is forgotten, and their interval."""
CHECK_S: Final = 1.0
MAX_ASKED: Final = 256
"""Maximum number of ARP requests per check. The hosts of a full table, 65,536, are asked within 13 minutes."""
MAX_FORGOTTEN: Final = 1_024
"""Maximum number of hosts forgotten in one check, each with an entry on every external switch."""


class Asked(NamedTuple):
    """Requests sent to a silent host, and the time of the next one."""

    times: int
    due: float


class HostAgeing:
    """Silent hosts that are being asked."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._asked: dict[MacAddress, Asked] = {}
        self._check_at = 0.0

    def tick(self) -> list[Host]:
        """Ask silent hosts; return the hosts that were forgotten."""
        state = self._state
        if state.now < self._check_at:
            return []
        self._check_at, since = state.now + CHECK_S, state.now - SILENT_S
        self._asked = {mac: asked for mac, asked in self._asked.items() if self._is_silent(mac, since)}
        gone, sent = list[MacAddress](), 0
        for host in state.hosts.silent(since):
            before = self._asked.get(host.mac, Asked(0, 0.0))
            if state.now < before.due:
                continue
            if sent >= MAX_ASKED or len(gone) >= MAX_FORGOTTEN:
                break
            if before.times < ASK_TIMES and self._ask(host):
                sent += 1
                self._asked[host.mac] = Asked(before.times + 1, state.now + ASK_GAP_S)
            elif self._is_needed(host):
                self._asked[host.mac] = Asked(0, state.now + SILENT_S)
            else:
                gone.append(host.mac)
        return state.hosts.forget(gone)

    def _is_silent(self, mac: MacAddress, since: float) -> bool:
        host = self._state.hosts.by_mac(mac)
        return host is not None and host.seen_at <= since

    def _is_needed(self, host: Host) -> bool:
        """Return whether a host stays although it has not answered: it has sessions, whose packets pass without the controller, or no agent
        of its site is alive in whose name it could have been asked."""
        claim = self._state.claims.get(host.location.dpid)
        if any(map(self._state.sessions.has_host, host.addresses)):
            return True
        return bool(host.addresses) and claim is not None and bool(claim[0].agents) and self._sender(claim[0]) is None

    def _ask(self, host: Host) -> bool:
        """Send an ARP request out of the host's port. Return False if the host has no address, or no
        agent of the site can send the request."""
        state, at = self._state, host.location
        claim = state.claims.get(at.dpid)
        sender = self._sender(claim[0]) if claim is not None and host.addresses else None
        if sender is None:
            return False
        frame = build_arp_request(*sender, host.addresses[0])
        state.out.append(PacketOut(at.dpid, PORT_CONTROLLER, (Output(at.port_no),), frame))
        state.count("arp", "asked")
        return True

    def _sender(self, site: Site) -> tuple[MacAddress, Address] | None:
        """Return MAC and IP address of a live agent of a site. A request without a sender's address would be an ARP probe (RFC 5227,
        2.1.1)."""
        live = (self._state.agents.get(agent.agent_id) for agent in site.agents)
        return next(((agent.beacon.mac, agent.beacon.address) for agent in live if agent is not None and not agent.silent), None)
