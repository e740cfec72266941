"""L3 forwarding between sites with subnets of their own: the switch answers for a virtual gateway, and entries route to hosts of other such
sites.

Hosts send packets for other sites to `GATEWAY_MAC`. An entry for each requested destination changes this address to the destination host's
MAC address and decrements the TTL; plain forwarding does the rest (RFC 1812, 5.2). The source's MAC address is unchanged, so that switches
learn locations of hosts and never a location of the gateway. Destinations are resolved by ARP; a few packets to unresolved destinations are
held for a short time. Punts are leases; routes and ARP entries have no timeout, so that known hosts keep communicating, and switches answer
for the gateway, while no controller runs. The next controller adopts existing routes and sends ARP requests to their hosts, so routes
survive a restart.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sos_controller.core.commands import Apply, PacketOut
from sos_controller.core.config import Site
from sos_controller.core.openflow.arp_responder import arp_answer, asking
from sos_controller.core.openflow.flow_entries import Action, DecTtl, FlowEntry, Match, Output, SetEthDst
from sos_controller.core.openflow.pipeline import (
    ETH_IPV4,
    GATEWAY_MAC,
    LEASE_RENEWAL_S,
    LEASE_S,
    PORT_CONTROLLER,
    PORT_NORMAL,
    PRIORITY_QUIET,
    PRIORITY_ROUTE,
    PRIORITY_UNROUTED,
    TABLE_FORWARD,
    Kind,
    cookie_kind,
)
from sos_controller.core.state import State, Switch
from sos_controller.core.types import Address, DatapathId, Location, MacAddress, PortNo, Prefix, parse_address, parse_prefix
from sos_controller.core.wire.packets import build_arp_request, complete_checksum, ipv4_destination

MAX_ROUTES = 16_384
"""Maximum number of destinations over all datapaths; the least recently requested destination is dropped."""
MAX_HELD, HELD_S = 256, 3.0
"""Maximum number of packets held until their destination is resolved, and their maximum age. A further packet replaces the oldest."""
QUIET_S = 1
"""Hard timeout of the entry that drops packets to a destination being resolved, to prevent further packet-ins."""
CHECK_S = 0.1
CONFIRM_AFTER_S = 3.0
"""Delay before the first ARP request to the host of an earlier run's route: ports have normally settled by then (PORT_SETTLE_S)."""
CONFIRM_GAP_S, CONFIRM_TIMES = 1.0, 3
"""Interval of ARP requests to the host of an earlier run's route, and number of unanswered requests after which the route is dropped."""
MAX_CONFIRMED = 64
"""Maximum number of hosts of earlier routes that are checked in one tick."""

_EXACT = 0xFFFFFFFF


class Routed(NamedTuple):
    """A site with a gateway."""

    site: Site
    gateway: Address
    prefixes: tuple[Prefix, ...]


class Held(NamedTuple):
    """A packet held until its destination is resolved."""

    since: float
    dpid: DatapathId
    in_port: PortNo
    target: Address
    data: bytes


class Unconfirmed(NamedTuple):
    """A destination of an earlier run's routes, and the time of its next ARP request."""

    due: float
    target: Address
    asked: int


class Routing:
    """Routes between sites."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._routed: dict[str, Routed] = {}
        self._wanted: OrderedDict[tuple[DatapathId, Address], MacAddress] = OrderedDict()
        self._held: deque[Held] = deque(maxlen=MAX_HELD)
        self._presumed: dict[Address, MacAddress] = {}
        self._unconfirmed: deque[Unconfirmed] = deque()
        self._check_at = self._renew_at = 0.0

    def configure(self) -> None:
        """Index the configuration in force."""
        state = self._state
        sites = [s for s in state.sites.values() if s.gateway is not None and s.prefixes]
        made = [Routed(s, parse_address(s.gateway or ""), tuple(map(parse_prefix, s.prefixes))) for s in sites]
        self._routed = {r.site.name: r for r in made} if len(made) > 1 else {}
        state.dirty.add("routes")

    def adopt(self, dpid: DatapathId, earlier: Iterable[FlowEntry]) -> None:
        """Adopt the routes of an earlier run on a datapath that has just been read, until their hosts have been checked by ARP."""
        for entry in earlier:
            route = _route(entry)
            if route is None or len(self._wanted) >= MAX_ROUTES:
                continue
            target, mac = route
            if target not in self._presumed:
                self._presumed[target] = mac
                self._unconfirmed.append(Unconfirmed(self._state.now + CONFIRM_AFTER_S, target, 0))
            self._want(dpid, target, mac)

    def datapath_down(self, dpid: DatapathId) -> None:
        """Handle a lost datapath: its hosts have probably not moved, so their routes stay until ARP has checked the hosts."""
        for target in {target for _, target in self._wanted}:
            host = self._state.hosts.by_address(target)
            if host is not None and host.location.dpid == dpid and target not in self._presumed:
                self._presumed[target] = host.mac
                self._unconfirmed.append(Unconfirmed(self._state.now + CONFIRM_AFTER_S, target, 0))

    def concerns(self, switch: Switch, data: bytes) -> bool:
        """Return whether a packet at a datapath is for the gateway of its site."""
        return data[:6] == GATEWAY_MAC and self._of(switch) is not None

    def packet(self, switch: Switch, in_port: PortNo, data: bytes) -> None:
        """Handle a packet to the gateway without a route, or a first packet that is released as plain."""
        state, target = self._state, ipv4_destination(data)
        there = None if target is None else self._site_of(target)
        if target is None or there is None or self._of(switch) is None:
            state.count("routed", "dropped")
            return
        mac = self._mac(target)
        if mac is not None:
            self._want(switch.dpid, target, mac)
            self._send(switch.dpid, in_port, data, mac)
            return
        state.count("routed", "held")
        self._held.append(Held(state.now, switch.dpid, in_port, target, data))
        self._ask(there, target)
        state.out.append(Apply(switch.dpid, (self._quiet(target),), (), 0, False))

    def tick(self) -> None:
        """Release held packets whose destination is known, and drop expired packets; update routes of hosts that have changed their MAC
        address or are gone; renew leases."""
        state = self._state
        if not self._routed or state.now < self._check_at:
            return
        self._check_at = state.now + CHECK_S
        self._confirm()
        waiting, self._held = self._held, deque(maxlen=MAX_HELD)
        for held in waiting:
            mac = self._mac(held.target)
            if mac is not None:
                self._want(held.dpid, held.target, mac)
                self._send(held.dpid, held.in_port, held.data, mac)
            elif state.now - held.since < HELD_S:
                self._held.append(held)
            else:
                state.count("routed", "unreachable")
        if any(self._mac(target) != mac for (_, target), mac in self._wanted.items()):
            state.dirty.add("routes")
        if state.now >= self._renew_at:
            self._renew_at = state.now + LEASE_RENEWAL_S
            state.programmer.renew("route-punts", state.out)

    def replan(self) -> None:
        """Update routes and punts to the current state."""
        state = self._state
        for key in list(self._wanted):
            mac = self._mac(key[1])
            if mac is None or self._site_of(key[1]) is None:
                del self._wanted[key]
            else:
                self._wanted[key] = mac
        cookie = state.cookie(Kind.ROUTE)
        routes: dict[DatapathId, list[FlowEntry]] = {}
        for (dpid, target), mac in self._wanted.items():
            routes.setdefault(dpid, []).append(FlowEntry(TABLE_FORWARD, PRIORITY_ROUTE, _to(target), _onward(mac), cookie))
        for dpid, here in self._here():
            routes.setdefault(dpid, []).append(arp_answer(asking((here.gateway, _EXACT)), GATEWAY_MAC, cookie))
        state.programmer.set_group("routes", routes, state.out)
        state.programmer.set_group("route-punts", self._punts(cookie), state.out)

    # -- internals

    def _of(self, switch: Switch) -> Routed | None:
        """Return the routed site of a datapath that forwards by itself (`forwarding: Node`); None for other datapaths."""
        if switch.site is None or switch.claim is None or switch.is_ours:
            return None
        return self._routed.get(switch.site.name)

    def _site_of(self, target: Address) -> Routed | None:
        return next((r for r in self._routed.values() if any(p.holds(target) for p in r.prefixes)), None)

    def _confirm(self) -> None:
        """Send ARP requests to hosts of an earlier run's routes. Hosts that answer become ordinary hosts; silent hosts lose their
        routes."""
        state = self._state
        for _ in range(min(len(self._unconfirmed), MAX_CONFIRMED)):
            if self._unconfirmed[0].due > state.now:
                return
            _, target, asked = self._unconfirmed.popleft()
            there = self._site_of(target)
            if there is None or asked == CONFIRM_TIMES or self._heard(target) is not None:
                del self._presumed[target]
                state.dirty.add("routes")
            else:
                whole = self._is_whole(there.site)
                if whole:
                    self._ask(there, target)
                self._unconfirmed.append(Unconfirmed(state.now + CONFIRM_GAP_S, target, asked + whole))

    def _mac(self, target: Address) -> MacAddress | None:
        return self._heard(target) or self._presumed.get(target)

    def _heard(self, target: Address) -> MacAddress | None:
        host = self._state.hosts.by_address(target)
        if host is not None:
            return host.mac
        return next((a.beacon.mac for a in self._state.agents.all() if a.beacon.address == target), None)

    def _want(self, dpid: DatapathId, target: Address, mac: MacAddress) -> None:
        self._wanted[dpid, target] = mac
        self._wanted.move_to_end((dpid, target))
        if len(self._wanted) > MAX_ROUTES:
            self._wanted.popitem(last=False)
        self._state.dirty.add("routes")

    def _send(self, dpid: DatapathId, in_port: PortNo, data: bytes, mac: MacAddress) -> None:
        self._state.count("routed", "sent")
        self._state.out.append(PacketOut(dpid, in_port, _onward(mac), complete_checksum(data)))

    def _is_whole(self, site: Site) -> bool:
        """Return whether requests would reach all hosts of a site: its datapaths are connected, and their ports have settled."""
        state = self._state
        switches = [state.switches.get(datapath.number) for datapath in site.datapaths]
        return all(s is not None and all(state.is_settled(Location(s.dpid, p.port_no)) for p in s.live_ports()) for s in switches)

    def _ask(self, there: Routed, target: Address) -> None:
        """Send an ARP request out of every port of the other site at which hosts may be."""
        state, frame = self._state, build_arp_request(GATEWAY_MAC, there.gateway, target)
        for datapath in there.site.datapaths:
            switch = state.switches.get(datapath.number)
            ports = [] if switch is None else [p for p in switch.live_ports() if state.is_edge(Location(switch.dpid, p.port_no))]
            if ports:
                outputs: tuple[Action, ...] = tuple(Output(p.port_no) for p in ports)
                state.out.append(PacketOut(datapath.number, PORT_CONTROLLER, outputs, frame))

    def _quiet(self, target: Address) -> FlowEntry:
        return FlowEntry(TABLE_FORWARD, PRIORITY_QUIET, _to(target), (), self._state.cookie(Kind.ROUTE), QUIET_S)

    def _punts(self, cookie: int) -> dict[DatapathId, list[FlowEntry]]:
        """Return punts at every datapath of a routed site, for the prefixes of the other routed sites."""
        action: tuple[Action, ...] = (Output(PORT_CONTROLLER),)
        found: dict[DatapathId, list[FlowEntry]] = {}
        for dpid, here in self._here():
            beyond = [p for r in self._routed.values() if r is not here for p in r.prefixes]
            matches = [Match(eth_dst=GATEWAY_MAC, eth_type=ETH_IPV4, ipv4_dst=(p.network, p.mask)) for p in beyond]
            found[dpid] = [FlowEntry(TABLE_FORWARD, PRIORITY_UNROUTED, m, action, cookie, LEASE_S) for m in matches]
        return found

    def _here(self) -> Iterator[tuple[DatapathId, Routed]]:
        """Return datapaths of routed sites."""
        for switch in self._state.switches.values():
            here = self._of(switch)
            if here is not None:
                yield switch.dpid, here


def _to(target: Address) -> Match:
    return Match(eth_dst=GATEWAY_MAC, eth_type=ETH_IPV4, ipv4_dst=(target, _EXACT))


def _route(entry: FlowEntry) -> tuple[Address, MacAddress] | None:
    """Return destination and MAC address of an entry made by `replan` in any run; None for other entries."""
    if cookie_kind(entry.cookie) != Kind.ROUTE or entry.match.ipv4_dst is None or len(entry.actions) != len(_onward(GATEWAY_MAC)):
        return None
    target, onward = Address(entry.match.ipv4_dst[0]), entry.actions[1]
    if not isinstance(onward, SetEthDst) or (entry.match, entry.actions) != (_to(target), _onward(onward.mac)):
        return None
    return target, onward.mac


def _onward(mac: MacAddress) -> tuple[Action, ...]:
    return (DecTtl(), SetEthDst(mac), Output(PORT_NORMAL))
