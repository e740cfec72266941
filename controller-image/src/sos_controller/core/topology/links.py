"""Links between datapaths: learned from probes and expired when probes stop, or tunnels, which switches watch.

A link exists only if probes in both directions have arrived within the expiry, so that an attacker cannot create a link by replaying or
relaying a single probe. A port that has received one of our probes from another port is *inter-switch* immediately, because it is safer to
assume a switch there. The port stays inter-switch while the switch at either end is unreachable (it may still forward), while both ends are
down, and for one link expiry after that. While probes are missing in one or both directions, the link of such a port is *unheard*: no path
uses it, but it may still forward packets and close a loop.

Both ends of a tunnel are known in advance (`tunnels`): its ports are inter-switch, no probe changes its far end, and it never expires.
It is a link while it is up, else unheard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeVar

import networkx as nx

from sos_controller.core.types import DatapathId, Location, PortNo

MAX_HEARD = 65_536
"""Maximum number of ports with recorded probes, and of ports with unheard links."""
DEFAULT_COST = 10

_NO_PORTS: frozenset[PortNo] = frozenset()

K = TypeVar("K")
V = TypeVar("V")


class Link(NamedTuple):
    """An undirected link; `a` is the lower end."""

    a: Location
    b: Location


class _Heard(NamedTuple):
    origin: Location
    at: float


class _Unheard(NamedTuple):
    origin: Location
    since: float | None
    """Time since which probes could arrive again; None while they cannot arrive."""


def link(one: Location, other: Location) -> Link:
    """Return the link between two ports, ends in order."""
    return Link(one, other) if one < other else Link(other, one)


class Topology:
    """Received probes: receiver, origin and time. Links follow each change, and a change costs the same in a network of any size."""

    def __init__(self) -> None:
        self._heard: dict[Location, _Heard] = {}
        """In the order of the times at which the last probes arrived."""
        self._unheard: dict[Location, _Unheard] = {}
        """Origins of probes received at a port before it went down, or before one of the two switches became unreachable."""
        self._tunnels: dict[Location, Location | None] = {}
        """Far ends of tunnels; None if there is no such port."""
        self._tunnel_ports: dict[DatapathId, set[PortNo]] = {}
        self._links: set[Link] = set()
        self._changed: set[Link] = set()
        self._ports: dict[DatapathId, set[PortNo]] = {}
        """Inter-switch ports of each datapath."""
        self._receivers: dict[Location, set[Location]] = {}
        """Receivers of the probes of each port."""

    def __len__(self) -> int:
        return len(self._links)

    def __contains__(self, found: Link) -> bool:
        return found in self._links

    def observe(self, origin: Location, receiver: Location, now: float) -> bool:
        """Record a probe sent from `origin` that arrived at `receiver`; return True if links or inter-switch ports changed."""
        if origin == receiver or origin in self._tunnels or receiver in self._tunnels:
            return False
        before = self._heard.pop(receiver, None)
        if before is None and len(self._heard) >= MAX_HEARD:
            return False
        self._heard[receiver] = _Heard(origin, now)
        if before is not None and before.origin == origin:
            return False
        if before is not None:
            self._unlink(receiver, before.origin)
        self._drop_unheard(receiver)
        self._record(receiver, origin)
        back = self._heard.get(origin)
        if back is not None and back.origin == receiver:
            self._links.add(link(receiver, origin))
            self._changed.add(link(receiver, origin))
        return True

    def set_tunnel(self, one: Location, other: Location | None, up: bool = False) -> bool:
        """Record that a port leads to `other` and to no other port (None = its far end is not there). Return True if links or inter-switch
        ports changed."""
        changed = self._lead(one, other)
        if other is None:
            return changed
        changed |= self._lead(other, one)
        found = link(one, other)
        if up == (found in self._links):
            return changed
        self._links.symmetric_difference_update((found,))
        self._changed.add(found)
        return True

    def forget_tunnel(self, end: Location, gone: bool) -> bool:
        """Handle a port that is no tunnel any more, or removed (`gone`); return True if links changed. An existing port stays inter-switch
        until probes have had the time to arrive at it."""
        if end not in self._tunnels:
            return False
        far = self._tunnels.pop(end)
        _discard(self._ports, end.dpid, end.port_no)
        _discard(self._tunnel_ports, end.dpid, end.port_no)
        if far is None:
            return True
        if self._tunnels.get(far) == end:
            self._tunnels[far] = None
        self._end_link(end, far)
        if not gone and len(self._unheard) < MAX_HEARD:
            self._unheard[end] = _Unheard(far, None)
            self._record(end, far)
        return True

    def is_tunnel(self, location: Location) -> bool:
        """Return whether a port is the end of a tunnel."""
        return location in self._tunnels

    def tunnel_ports(self, dpid: DatapathId) -> AbstractSet[PortNo]:
        """Return the numbers of the ports of a datapath's tunnels."""
        return self._tunnel_ports.get(dpid, _NO_PORTS)

    def far_end_of_tunnel(self, location: Location) -> Location | None:
        """Return the port to which a tunnel's port leads, None if there is none."""
        return self._tunnels.get(location)

    def port_down(self, location: Location, gone: bool) -> bool:
        """Handle a port that is down: its link ends immediately. When the port is up again, it is assumed to lead to the same port, unless
        it was removed (`gone`)."""
        receivers = [location, *self._receivers.get(location, ())]
        return self._forget(receivers) if gone else self._lose(receivers)

    def datapath_down(self, dpid: DatapathId) -> bool:
        """Handle a lost connection to a datapath, which can then neither send nor receive probes."""
        return self._lose([r for r, h in self._heard.items() if dpid in (r.dpid, h.origin.dpid)])

    def keep(self, dpids: Collection[DatapathId]) -> bool:
        """Forget the tunnels of all other datapaths, and all probes except those that one of these datapaths has sent to another."""
        gone = False
        for end in [end for end in self._tunnels if end.dpid not in dpids]:
            gone |= self.forget_tunnel(end, True)
        known = [(r, h.origin) for r, h in self._heard.items()] + [(r, u.origin) for r, u in self._unheard.items()]
        return self._forget([r for r, origin in known if r.dpid not in dpids or origin.dpid not in dpids]) or gone

    def expire(self, now: float, max_age: float, present: Collection[DatapathId], is_down: Callable[[Location], bool]) -> bool:
        """Forget each link whose probes have been missing for more than `max_age` seconds during which they could have arrived.

        Probes cannot arrive while one of the link's datapaths is not `present`, or while both ends are down. If only one end is down, the
        time still counts: both ends of one cable come up together, so the end that is up no longer leads to the other.
        """
        gone, lost = list[Location](), list[Location]()
        for receiver, (origin, before) in self._unheard.items():
            could = receiver.dpid in present and origin.dpid in present and not (is_down(receiver) and is_down(origin))
            since = (now if before is None else before) if could else None
            self._unheard[receiver] = _Unheard(origin, since)
            if since is not None and now - since > max_age:
                gone.append(receiver)
        for receiver, (origin, at) in self._heard.items():
            if now - at <= max_age:
                break
            (gone if receiver.dpid in present and origin.dpid in present else lost).append(receiver)
        changed = self._lose(lost)
        return self._forget(gone) or changed

    def is_inter_switch(self, location: Location) -> bool:
        """Return whether probes of another switch have arrived on this port, or it is a tunnel's."""
        return location in self._heard or location in self._unheard or location in self._tunnels

    def inter_switch_ports(self, dpid: DatapathId) -> list[Location]:
        """Return all inter-switch ports of a datapath, sorted."""
        return [Location(dpid, port_no) for port_no in sorted(self._ports.get(dpid, ()))]

    def ports_of(self, dpid: DatapathId) -> AbstractSet[PortNo]:
        """Return the numbers of all inter-switch ports of a datapath."""
        return self._ports.get(dpid, _NO_PORTS)

    def links(self) -> list[Link]:
        """Return all links, sorted."""
        return sorted(self._links)

    def links_of(self, dpid: DatapathId) -> list[Link]:
        """Return the links of a datapath."""
        ends = ((end, self._far_end(end)) for end in (Location(dpid, port_no) for port_no in self._ports.get(dpid, ())))
        return [found for end, far in ends if far is not None and (found := link(end, far)) in self._links]

    def take_changed(self) -> set[Link]:
        """Return the links that have come or gone since the last call, and those that `touch` has named."""
        changed, self._changed = self._changed, set()
        return changed

    @property
    def has_changed(self) -> bool:
        """Return whether `take_changed` would return a link."""
        return bool(self._changed)

    def postpone(self, found: Link) -> None:
        """Report a link as changed at the next `take_changed`, again."""
        self._changed.add(found)

    def touch_all(self) -> None:
        """Report all links as changed: their costs may be others."""
        self._changed |= self._links

    def touch(self, location: Location) -> None:
        """Report the link of a port as changed: the port has another name, and with it the link may have another cost."""
        far = self._far_end(location)
        if far is not None:
            self._changed.add(link(location, far))

    def unheard(self) -> list[Link]:
        """Return all tunnels that are not up, and all links with a direction in which no probes arrive, sorted."""
        tunnels = (link(end, far) for end, far in self._tunnels.items() if far is not None and end < far)
        found = {tunnel for tunnel in tunnels if tunnel not in self._links}
        for receiver, (origin, _) in self._unheard.items():
            back = self._heard.get(origin) or self._unheard.get(origin)
            if back is not None and back.origin == receiver:
                found.add(link(receiver, origin))
        return sorted(found)

    def heard_at(self, found: Link) -> float | None:
        """Return the older of the two times at which the last probe in each direction of a link arrived; None for tunnels."""
        ends = [self._heard[end].at for end in found if end in self._heard]
        return min(ends) if ends else None

    def _far_end(self, location: Location) -> Location | None:
        heard = self._heard.get(location)
        return self._tunnels.get(location) if heard is None else heard.origin

    def _lead(self, end: Location, far: Location | None) -> bool:
        """Set the far end of a tunnel's port."""
        was = self._tunnels.get(end, end)
        if was == far:
            return False
        if was == end:
            self._forget([end, *self._receivers.get(end, ())])
            self._ports.setdefault(end.dpid, set()).add(end.port_no)
            self._tunnel_ports.setdefault(end.dpid, set()).add(end.port_no)
        elif was is not None:
            self._end_link(end, was)
        self._tunnels[end] = far
        return True

    def _forget(self, receivers: Iterable[Location]) -> bool:
        """Forget the probes that have arrived at these ports."""
        changed = False
        for receiver in receivers:
            heard = self._heard.pop(receiver, None)
            if heard is not None:
                self._unlink(receiver, heard.origin)
            changed |= self._drop_unheard(receiver) or heard is not None
        return changed

    def _lose(self, receivers: Iterable[Location]) -> bool:
        """Make the links of these ports unheard."""
        changed = False
        for receiver in receivers:
            heard = self._heard.pop(receiver, None)
            if heard is None:
                continue
            changed = True
            self._unlink(receiver, heard.origin)
            if len(self._unheard) < MAX_HEARD:
                self._unheard[receiver] = _Unheard(heard.origin, None)
                self._record(receiver, heard.origin)
        return changed

    def _drop_unheard(self, receiver: Location) -> bool:
        unheard = self._unheard.pop(receiver, None)
        if unheard is not None:
            self._erase(receiver, unheard.origin)
        return unheard is not None

    def _unlink(self, receiver: Location, origin: Location) -> None:
        """End the link of a port at which probes of `origin` have arrived."""
        self._erase(receiver, origin)
        self._end_link(receiver, origin)

    def _end_link(self, one: Location, other: Location) -> None:
        ended = link(one, other)
        if ended in self._links:
            self._links.discard(ended)
            self._changed.add(ended)

    def _record(self, receiver: Location, origin: Location) -> None:
        self._ports.setdefault(receiver.dpid, set()).add(receiver.port_no)
        self._receivers.setdefault(origin, set()).add(receiver)

    def _erase(self, receiver: Location, origin: Location) -> None:
        _discard(self._ports, receiver.dpid, receiver.port_no)
        _discard(self._receivers, origin, receiver)


def _discard(index: dict[K, set[V]], key: K, value: V) -> None:
    """Remove a value from an index, and the key with its last value."""
    found = index.get(key)
    if found is not None:
        found.discard(value)
        if not found:
            del index[key]


def graph(dpids: Iterable[DatapathId], links: Iterable[Link], cost: Callable[[Link], int] = lambda _: DEFAULT_COST) -> nx.MultiGraph:
    """Return the graph of datapaths, with the Link as an edge's key and its cost as the weight. The order of the input does not matter."""
    built: nx.MultiGraph = nx.MultiGraph()
    built.add_nodes_from(sorted(set(dpids)))
    for found in sorted(set(links)):
        if found.a.dpid in built and found.b.dpid in built and found.a.dpid != found.b.dpid:
            built.add_edge(found.a.dpid, found.b.dpid, key=found, weight=cost(found))
    return built
