"""L2 forwarding: plain forwarding on external switches, and release of a punted SYN as plain traffic everywhere.

On `Controller` datapaths table 1 contains, by descending priority: an entry per host along shortest paths; drop entries for ports on which
flooded packets must not arrive; one entry that floods over the edge ports and the ports of a loop-free tree. No entry has a timeout. Links
on which nodes accept labelled paths only are excluded from shortest paths and tree, since nodes drop plain packets on them. A port takes
part in flooding after a time within which a probe of a neighbouring switch would have arrived on it. An unreachable switch is assumed to
keep flooding as last programmed, so its links stay in or out of the tree until its ports go down. A host whose entry does not fit into the
table of one switch has no entries at all and is flooded: an entry at only some switches could point to a port on which flooded packets are
dropped. The same applies to all hosts if a switch does not have the entries that it acknowledges (`entry_check`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Set
from typing import Final

import networkx as nx

from sos_controller.core.commands import PacketOut
from sos_controller.core.forwarding.arp_relay import ArpRelay
from sos_controller.core.forwarding.host_ageing import HostAgeing
from sos_controller.core.forwarding.l3 import Routing
from sos_controller.core.openflow.flow_entries import Action, FlowEntry, Goto, Match, Output
from sos_controller.core.openflow.pipeline import (
    ETH_ARP,
    ETH_IPV4,
    ETH_LLDP,
    PORT_CONTROLLER,
    PORT_NORMAL,
    PRIORITY_ARP,
    PRIORITY_BLOCKED,
    PRIORITY_FLOOD,
    PRIORITY_HOST,
    PRIORITY_MISS,
    PRIORITY_TO_CONTROLLER,
    PROTO_UDP,
    TABLE_FORWARD,
    TABLE_REDIRECT,
    Kind,
)
from sos_controller.core.state import PORT_SETTLE_S, State, Switch
from sos_controller.core.topology import paths
from sos_controller.core.topology.hosts import Host
from sos_controller.core.topology.links import Link
from sos_controller.core.types import MAX_PORT_NO, Address, DatapathId, Location, MacAddress, PortNo
from sos_controller.core.wire.packets import Arp, build_arp_reply, complete_checksum, ipv4_source, is_claim

ARP_FRESH_S: Final = 300.0
"""Maximum time since a host was last seen for which the controller answers ARP requests for its address; the request is flooded in any
case."""

MAX_UNSETTLED: Final = 1_024
"""Maximum number of hosts remembered until their ports have settled; further hosts are learned from their next packets."""

PLACE_AGAIN_S: Final = 5.0
"""Interval at which hosts without entries, because a table was full, get entries if there is space."""

_EXACT: Final = 0xFFFFFFFF


class Forwarding:
    """Hosts and the entries that reach them."""

    def __init__(self, state: State, routing: Routing, heard: Callable[[MacAddress, Iterable[Address], Location], None]) -> None:
        self._state, self._routing, self._heard = state, routing, heard
        self.relay = ArpRelay(state)
        self.ageing = HostAgeing(state)
        self._tree: frozenset[Link] = frozenset()
        self._flooded: frozenset[Link] = frozenset()
        """Links that flooded packets cross: links of the tree, and all links between switches that forward by themselves. Empty while all
        switches forward by themselves."""
        self._alone = True
        """All switches forwarded by themselves at the last planning."""
        self._plain, self._plain_revision = state.graph, -1
        self._distances: dict[DatapathId, dict[DatapathId, int]] = {}
        self._flood: dict[DatapathId, tuple[PortNo, ...]] = {}
        self._checked_at = self._place_at = 0.0
        self._unsettled: dict[tuple[MacAddress, Address], Location] = {}
        """Hosts detected at unsettled ports, behind which a switch may still be discovered."""

    def learn(self, mac: MacAddress, address: Address, location: Location) -> None:
        """Learn a host from a packet if hosts can be at the location. Its address is learned only if it belongs to the location's site."""
        state = self._state
        known = state.hosts.by_mac(mac)
        if known is not None and known.location == location and known.addresses[:1] == (address,) and state.now - known.seen_at < 1:
            return
        claim = state.claims.get(location.dpid)
        if claim is None or not state.is_edge(location):
            return
        addresses = {address, *(known.addresses if known is not None and known.location != location else ())}
        if state.is_settled(location):
            self._unsettled.pop((mac, address), None)
            mine = address not in state.agent_addresses and any(p.holds(address) for p in state.subnets[claim[0].name])
            if state.hosts.learn(mac, address if mine else Address(0), location, state.now):
                self._place(("host", mac), mac, location)
        elif len(self._unsettled) < MAX_UNSETTLED:
            self._unsettled[mac, address] = location
        self._heard(mac, addresses, location)

    def segment(self, location: Location, data: bytes) -> None:
        """Handle a segment of a host with sessions, copied by a switch other than the host's known switch."""
        source = ipv4_source(data)
        if source is not None:
            self.learn(MacAddress(data[6:12]), source, location)

    def arp(self, switch: Switch, in_port: PortNo, packet: Arp) -> None:
        """Handle an ARP packet copied to the controller: learn its sender. On `Controller` datapaths, answer for known hosts; on other
        datapaths, relay the packet."""
        state = self._state
        location = Location(switch.dpid, in_port)
        self.learn(packet.sender_mac, packet.sender, location)
        if not switch.is_ours:
            self.relay.handle(location, packet)
            return
        if not packet.request or is_claim(packet) or not state.is_edge(location):
            return
        target = state.hosts.by_address(packet.target)
        if target is not None and target.location != location and state.now - target.seen_at < ARP_FRESH_S:
            state.out.append(PacketOut(switch.dpid, PORT_CONTROLLER, (Output(in_port),), build_arp_reply(packet, target.mac)))
            state.count("arp", "answered")

    def release(self, switch: Switch, in_port: PortNo, data: bytes) -> None:
        """Forward a punted packet as plain forwarding would have done."""
        if self._routing.concerns(switch, data):
            self._routing.packet(switch, in_port, data)
            return
        actions = self._plain_actions(switch, in_port, MacAddress(data[:6]))
        if actions:
            self._state.out.append(PacketOut(switch.dpid, in_port, actions, complete_checksum(data) if len(data) >= 54 else data))

    def tick(self) -> None:
        """Replan flooding when ports have settled, and learn the hosts behind them; forget hosts that are gone."""
        now, then = self._state.now, self._checked_at
        self._checked_at = now
        for switch in self._state.switches.values():
            if switch.is_ours and any(then - PORT_SETTLE_S < up <= now - PORT_SETTLE_S for up in switch.up_since.values()):
                self._state.dirty.add("forwarding")
        for (mac, address), location in list(self._unsettled.items()):
            if self._state.is_settled(location):
                del self._unsettled[mac, address]
                self.learn(mac, address, location)
            elif self._state.is_down(location):
                del self._unsettled[mac, address]
        self.purge(self.ageing.tick())
        if now >= self._place_at:
            self._place_at = now + PLACE_AGAIN_S
            self._place_flooded()

    def flooded(self) -> int:
        """Return the number of hosts without entries on external switches, because a switch has no space for them or is inaccurate."""
        state = self._state
        if not (state.programmer.is_bounded or state.inaccurate) or not any(s.is_ours for s in state.switches.values()):
            return 0
        return sum(not state.programmer.has_group(("host", host.mac)) for host in state.hosts)

    def _place_flooded(self) -> None:
        """Install entries of hosts without entries, as far as there is space."""
        if self.flooded():
            for host in self._state.hosts:
                group = ("host", host.mac)
                if not self._state.programmer.has_group(group) and not self._place(group, host.mac, host.location):
                    return

    def purge(self, hosts: list[Host]) -> None:
        """Remove the entries of hosts that are no longer known."""
        for host in hosts:
            self._state.programmer.set_group(("host", host.mac), {}, self._state.out)

    def replan(self) -> None:
        """Recompute base entries, tree and host entries; the switches of sites may have changed."""
        state = self._state
        ours = {dpid: s for dpid, s in state.switches.items() if s.is_ours}
        self._plan_tree(ours.keys())
        self._flood = {dpid: self._flood_ports(s) for dpid, s in ours.items()}
        state.programmer.set_group("base", {dpid: self._base_entries() for dpid in ours}, state.out)
        state.programmer.set_group("flood", {dpid: self._flood_entries(s) for dpid, s in ours.items()}, state.out)
        if not ours and not any(map(_is_placed, state.programmer.groups())):
            return
        agents = {("agent", a.beacon.mac): a.location for a in state.agents.all()}
        hosts = {("host", h.mac): h.location for h in state.hosts.all() if ("agent", h.mac) not in agents}
        for group in state.programmer.groups():
            if _is_placed(group) and group not in agents and group not in hosts:
                state.programmer.set_group(group, {}, state.out)
        for group, location in sorted((agents | hosts).items()):
            self._place(group, group[1], location)

    def _plan_tree(self, ours: Set[DatapathId]) -> None:
        state, alone, self._alone = self._state, self._alone, not ours
        if not ours:  # no need to read thousands of links
            self._tree = self._flooded = frozenset()
            return
        links = [found for found in state.topology.links() if not self._is_labelled(found)]
        unheard = [found for found in state.topology.unheard() if not any(map(state.is_down, found))]
        kept = self._flooded.intersection(unheard)
        if alone:
            kept |= {f for f in unheard if f.a.dpid not in ours and f.b.dpid not in ours and not self._is_labelled(f)}
        fixed = [*kept, *(f for f in links if f.a.dpid not in ours and f.b.dpid not in ours)]
        choose = [f for f in links if (f.a.dpid in ours or f.b.dpid in ours) and not {f.a.dpid, f.b.dpid} - state.switches.keys()]
        self._tree = kept | paths.spanning_links(choose, lambda f: (max(f.a.port_no, f.b.port_no),), fixed)
        self._flooded = self._tree.union(fixed)

    def covers(self, dpid: DatapathId) -> bool:
        """Return whether a datapath's flood ports are known."""
        return dpid in self._flood

    def _graph(self) -> nx.MultiGraph:
        """Return the graph of links that plain packets use."""
        state = self._state
        if self._plain_revision != state.graph_revision:
            self._plain, self._plain_revision = state.graph, state.graph_revision
            labelled = [edge for edge in state.graph.edges(keys=True) if self._is_labelled(edge[2])]
            if labelled:
                self._plain = state.graph.copy()
                self._plain.remove_edges_from(labelled)
            self._distances.clear()
        return self._plain

    def _distances_to(self, dpid: DatapathId) -> dict[DatapathId, int]:
        """Return the cost from every switch to one, for plain packets; computed once for all its hosts."""
        graph = self._graph()
        found = self._distances.get(dpid)
        if found is None:
            found = self._distances[dpid] = paths.distances(graph, dpid)
        return found

    def _is_labelled(self, found: Link) -> bool:
        return self._state.is_labelled(found.a) or self._state.is_labelled(found.b)

    def _place(self, group: tuple[str, MacAddress], mac: MacAddress, location: Location) -> bool:
        """Install entries for one MAC address on every `Controller` datapath, the nearest first, so that no entry points to a datapath
        without an entry. Return False if they do not fit."""
        state = self._state
        ours = [dpid for dpid, s in state.switches.items() if s.is_ours]
        if not ours or (group[0] == "host" and state.programmer.has_group(("agent", mac))):
            return True
        graph, left = self._graph(), self._distances_to(location.dpid)
        wanted: dict[DatapathId, list[FlowEntry]] = {}
        for dpid in sorted((d for d in ours if d in left and d in state.accurate), key=lambda d: (left[d], d)):
            hop = paths.next_hop(graph, dpid, left)
            port = location.port_no if hop is None else hop.port_no
            match = Match(eth_dst=mac, any_vlan=True)
            wanted[dpid] = [FlowEntry(TABLE_FORWARD, PRIORITY_HOST, match, (Output(port),), state.cookie(Kind.FORWARD))]
        fits = not state.inaccurate and (group[0] == "agent" or state.programmer.has_room(group, wanted))
        state.programmer.set_group(group, wanted if fits else {}, state.out)
        return fits

    def _flood_ports(self, switch: Switch) -> tuple[PortNo, ...]:
        state, dpid = self._state, switch.dpid
        tree = {end for found in self._tree for end in found if end.dpid == dpid}
        edge = []
        for port in switch.live_ports():
            location = Location(dpid, port.port_no)
            quiet = not state.topology.is_inter_switch(location) and state.is_settled(location)
            if location in tree or quiet:
                edge.append(port.port_no)
        return tuple(edge)

    def _flood_entries(self, switch: Switch) -> list[FlowEntry]:
        cookie, flood = self._state.cookie(Kind.FORWARD), self._flood[switch.dpid]
        # Block ports that are down as well: such a port may come up while the switch is disconnected, and lead to another switch.
        blocked = [number for number in sorted(switch.ports) if number < MAX_PORT_NO and number not in flood]
        entries = [FlowEntry(TABLE_FORWARD, PRIORITY_BLOCKED, Match(in_port=p, any_vlan=True), (), cookie) for p in blocked]
        everywhere: tuple[Action, ...] = tuple(Output(p) for p in flood)
        return [*entries, FlowEntry(TABLE_FORWARD, PRIORITY_FLOOD, Match(any_vlan=True), everywhere, cookie)] if flood else entries

    def _base_entries(self) -> list[FlowEntry]:
        state = self._state
        if state.config is None:
            return []
        cookie, d = state.cookie(Kind.FORWARD), state.config.discovery
        up: tuple[Action, ...] = (Output(PORT_CONTROLLER),)
        told = [
            Match(eth_type=ETH_IPV4, ip_proto=PROTO_UDP, ipv4_dst=(d.ip, _EXACT), udp_dst=port) for port in (d.beacon_port, d.order_port)
        ]
        return [
            FlowEntry(TABLE_REDIRECT, PRIORITY_TO_CONTROLLER, Match(eth_type=ETH_LLDP), up, cookie),
            *(FlowEntry(TABLE_REDIRECT, PRIORITY_TO_CONTROLLER, match, up, cookie) for match in told),
            FlowEntry(TABLE_REDIRECT, PRIORITY_ARP, Match(eth_type=ETH_ARP), (*up, Goto(TABLE_FORWARD)), cookie),
            FlowEntry(TABLE_REDIRECT, PRIORITY_MISS, Match(any_vlan=True), (Goto(TABLE_FORWARD),), cookie),
        ]

    def _plain_actions(self, switch: Switch, in_port: PortNo, target: MacAddress) -> tuple[Action, ...]:
        if switch.claim is None:
            return ()
        if not switch.is_ours:
            return (Output(PORT_NORMAL),)
        host = self._state.hosts.by_mac(target)
        if host is not None:
            graph, left = self._graph(), self._distances_to(host.location.dpid)
            if switch.dpid in left:
                hop = paths.next_hop(graph, switch.dpid, left)
                port = host.location.port_no if hop is None else hop.port_no
                return (Output(port),) if port != in_port else ()
        return tuple(Output(p) for p in self._flood.get(switch.dpid, ()) if p != in_port)


def _is_placed(group: Hashable) -> bool:
    """Return whether a group has the entries of one MAC address."""
    return isinstance(group, tuple) and group[0] in ("host", "agent")
