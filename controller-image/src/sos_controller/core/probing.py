"""Probing: probes out of the ports of claimed datapaths, except tunnels that switches watch, and the check of probes that arrive.

Ports that cannot lead to another datapath (`Datapath.link_ports`) send no probes, and probes that arrive there make no link: a host can
relay probes, but not become a link.

An echo request follows a datapath's probes on the same connection. Its reply marks the place in the datapath's messages up to which they
are older than the request, for two purposes:

- The age of a probe is the time from its transmission to the last marker before it. The time for which messages wait to be read does not
  count, so that a controller that is behind believes all probes. A probe that is replayed later than MAX_AGE_MS and one probe interval
  is older than the marker before it.
- A datapath gets no further probes before its last marker has been read: no more than one round of probes waits to be read.
"""

from __future__ import annotations

from typing import Final

from sos_controller.core.commands import Echo, PacketOut
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER
from sos_controller.core.state import State, Switch
from sos_controller.core.types import Location, format_dpid
from sos_controller.core.wire import lldp
from sos_controller.core.wire.lldp import Probe

REPEAT_S: Final = 2.0
"""Time after which probes are sent although the last echo request has not been answered: shorter than the expiry of links (3 s), in case
that a switch does not answer in time."""


MAX_PER_TICK: Final = 1_000
"""Number of probes after which the other datapaths wait for the next tick, 25 ms later: in a mesh of 200 switches, all probes of a round
together would stop the controller for a quarter of a second."""

MAX_REPORTED: Final = 1_024
"""Maximum number of undeclared ports that are reported one by one; all are counted."""


class Probing:
    """Sender and checker of probes."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._round = 1
        self._undeclared: set[Location] = set()
        """Undeclared ports that have been reported."""

    def hurry(self) -> None:
        """Make probes of all datapaths due."""
        self._round += 1

    def tick(self, interval_s: float) -> None:
        """Send probes out of the ports of the claimed datapaths whose probes are due, the longest overdue first. Those whose marker is
        outstanding wait for it."""
        sent = 0
        for switch in sorted(filter(lambda s: self._is_due(s, interval_s), self._state.switches.values()), key=lambda s: s.marker_ms):
            if sent >= MAX_PER_TICK:
                return
            sent += self._send(switch)

    def is_declared(self, location: Location) -> bool:
        """Return whether a port may lead to another datapath."""
        switch = self._state.switches.get(location.dpid)
        if switch is None or switch.claim is None:
            return False
        port = switch.ports.get(location.port_no)
        return port is not None and switch.claim.may_link(port.name)

    def report_undeclared(self, receiver: Location, origin: Location) -> None:
        """Report a probe at an undeclared port: wrong cabling, a missing declaration, or a host that relays probes of another port. Each
        port is reported once."""
        state = self._state
        state.count("probes", "undeclared")
        if receiver in self._undeclared or len(self._undeclared) >= MAX_REPORTED:
            return
        self._undeclared.add(receiver)
        ports = state.switches[receiver.dpid].ports
        name = ports[receiver.port_no].name if receiver.port_no in ports else str(receiver.port_no)
        state.notice("undeclared-link", dpid=format_dpid(receiver.dpid), port=name, origin=f"{format_dpid(origin.dpid)}/{origin.port_no}")

    def answered(self, switch: Switch, marker_ms: int) -> None:
        """Handle the reply to an echo request."""
        if marker_ms == switch.marker_ms:
            switch.marked_ms = marker_ms

    def check(self, receiver: Location, data: bytes) -> Probe | None:
        """Return the probe in a frame if it is ours and recent."""
        state, switch = self._state, self._state.switches.get(receiver.dpid)
        seen = None if switch is None else lldp.decode(state.identity.probe_key, data, (switch.marked_ms, self._now_ms()))
        ours = seen is not None and seen.controller_id == state.controller_id and seen.origin.dpid in state.claims
        return seen if ours else None

    def _is_due(self, switch: Switch, interval_s: float) -> bool:
        if switch.claim is None:
            return False
        since_s = (self._now_ms() - switch.marker_ms) / 1000
        if switch.marker_ms != switch.marked_ms and since_s < REPEAT_S:
            return False
        return switch.probe_round != self._round or since_s >= interval_s

    def _send(self, switch: Switch) -> int:
        """Send the probes of a datapath; return their number."""
        state, now_ms = self._state, self._now_ms()
        claim = switch.claim
        live = switch.live_ports(state.topology.tunnel_ports(switch.dpid))
        ports = [port for port in live if claim is not None and claim.may_link(port.name)]
        for port in ports:
            said = Probe(state.controller_id, Location(switch.dpid, port.port_no), now_ms)
            frame = lldp.encode(state.identity.probe_key, said, port.mac)
            state.out.append(PacketOut(switch.dpid, PORT_CONTROLLER, (Output(port.port_no),), frame))
        state.out.append(Echo(switch.dpid, now_ms))
        switch.marker_ms, switch.probe_round = now_ms, self._round
        return len(ports)

    def _now_ms(self) -> int:
        return int(self._state.now * 1000)
