"""Tunnels between bridges of nodes, as the configuration declares them: links that switches watch, so that no probe is needed.

The configuration gives bridges a tunnel number each; the port `sosvxN` of one bridge leads to the bridge with the number N
(spec/controller-config.md clause 9). Numbers of ports come from port descriptions. Open vSwitch watches the far end of a tunnel by BFD
(RFC 5880) and reports the result in the port's status; a flag of the port says that it does (`Port.watched`).

A tunnel is declared if the ports at both ends are watched. The others, between nodes of which one has an earlier `sos-node`, are learned
from probes like all links. A declared tunnel is up while both ports are up and live and no end is silent. While one end is away or its port
does not exist, the tunnel is down, and nothing is sent there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sos_controller.core.topology.links import Topology
from sos_controller.core.types import DatapathId, Location, Port, tunnel_number


class Tunnels:
    """Ports of tunnels by datapath and by the number of their far end; keeps the tunnels of a `Topology`.

    Methods return True if links or inter-switch ports changed.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._number: dict[DatapathId, int] = {}
        self._dpid: dict[int, DatapathId] = {}
        self._ports: dict[DatapathId, dict[int, Port]] = {}
        """Of connected datapaths, whether the configuration gives them a number or not."""
        self._silent: set[DatapathId] = set()

    def configure(self, numbers: Mapping[DatapathId, int]) -> bool:
        """Set the tunnel numbers of datapaths."""
        if numbers == self._number:
            return False
        before, self._number = self._number, dict(numbers)
        self._dpid = {number: dpid for dpid, number in numbers.items()}
        moved = {dpid for dpid in before.keys() | numbers.keys() if before.get(dpid) != numbers.get(dpid)}
        stale = {before[dpid] for dpid in moved if dpid in before} | {numbers[dpid] for dpid in moved if dpid in numbers}
        changed = False
        for dpid in list(self._ports):
            for number in list(self._ports[dpid]) if dpid in moved else stale.intersection(self._ports[dpid]):
                changed |= self._update(dpid, number)
        return changed

    def connect(self, dpid: DatapathId, ports: Iterable[Port]) -> bool:
        """Record the ports of a datapath that has connected."""
        self._silent.discard(dpid)
        there = self._ports[dpid] = {number: port for port in ports if (number := tunnel_number(port.name))}
        changed = False
        for port_no in self._topology.tunnel_ports(dpid) - {port.port_no for port in there.values()}:
            changed |= self._topology.forget_tunnel(Location(dpid, port_no), True)
        changed |= self._update_all(dpid)
        number = self._number.get(dpid, 0)
        for other, ports_there in self._ports.items():
            if number in ports_there and self._number.get(other, 0) not in there:
                changed |= self._update(other, number)
        return changed

    def disconnect(self, dpid: DatapathId) -> bool:
        """Handle a lost connection: the ports may still forward, but their state is unknown."""
        changed = False
        self._ports.pop(dpid, None)
        for port_no in list(self._topology.tunnel_ports(dpid)):
            end = Location(dpid, port_no)
            far = self._topology.far_end_of_tunnel(end)
            if far is not None:
                changed |= self._topology.set_tunnel(end, far)
        return changed

    def port_changed(self, dpid: DatapathId, port: Port, gone: bool) -> bool:
        """Handle a change of a port, which may have another name."""
        ports = self._ports.get(dpid)
        if ports is None:
            return False
        changed, number = False, tunnel_number(port.name)
        for former in [n for n, known in ports.items() if known.port_no == port.port_no and (gone or n != number)]:
            del ports[former]
            changed |= self._topology.forget_tunnel(Location(dpid, port.port_no), gone)
            changed |= self._update_far(dpid, former)
        if number and not gone:
            before = ports.get(number)
            ports[number] = port
            if before is not None and before.port_no != port.port_no:
                changed |= self._topology.forget_tunnel(Location(dpid, before.port_no), False)
            changed |= self._update(dpid, number)
        return changed

    def silence(self, silent: set[DatapathId]) -> bool:
        """Set the connected datapaths from which nothing has been heard: their ports' state may be out of date."""
        differ, self._silent = self._silent ^ silent, silent
        changed = False
        for dpid in differ & self._ports.keys():
            changed |= self._update_all(dpid)
        return changed

    def _far(self, dpid: DatapathId, number: int) -> DatapathId | None:
        """Return the datapath to which a tunnel leads."""
        far = self._dpid.get(number)
        return far if dpid in self._number and far != dpid else None

    def _update_all(self, dpid: DatapathId) -> bool:
        changed = False
        for number in self._ports[dpid]:
            changed |= self._update(dpid, number)
        return changed

    def _update(self, dpid: DatapathId, number: int) -> bool:
        """Take over the state of a tunnel's port, and of the port at the far end."""
        port, far = self._ports[dpid][number], self._far(dpid, number)
        end, topology = Location(dpid, port.port_no), self._topology
        theirs = None if far is None else self._ports.get(far, {}).get(self._number[dpid])
        if far is None or (theirs is None and not port.watched):
            return topology.forget_tunnel(end, False)
        if theirs is None:
            known = topology.far_end_of_tunnel(end) if far not in self._ports else None
            return topology.set_tunnel(end, known if known is not None and known.dpid == far else None)
        there = Location(far, theirs.port_no)
        if not port.watched or not theirs.watched:
            changed = topology.forget_tunnel(end, False)
            return topology.forget_tunnel(there, False) or changed
        is_live = port.up and port.live and theirs.up and theirs.live
        return topology.set_tunnel(end, there, is_live and self._silent.isdisjoint((dpid, far)))

    def _update_far(self, dpid: DatapathId, number: int) -> bool:
        """Update the far end of a port that is no longer there."""
        far = self._far(dpid, number)
        back = self._number.get(dpid, 0)
        return far is not None and back in self._ports.get(far, {}) and self._update(far, back)
