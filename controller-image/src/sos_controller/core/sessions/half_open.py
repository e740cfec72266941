"""Detect half-open host connections after an agent node dies: send an out-of-window ACK, so that the host's challenge ACK draws a reset.

The kernel of a killed agent resets its connections. A dead machine resets none: a host that only receives would wait forever, since the
other agent has long reset the peer. So when both sides of such a session are over, the controller sends the dead agent's host an empty
segment with out-of-window numbers. The host answers with a challenge ACK (RFC 9293, 3.10.7.4). No entry redirects that ACK any more, so it
reaches the peer, which resets the unknown connection with the acknowledged sequence number (3.10.7.1), and the host accepts that reset.

A host without such a connection answers with a reset that matches no connection, so a superfluous ACK does no harm. If both agents are
lost, no ACK is sent: both hosts would still have the connection, and each would reject the sequence numbers of the other.
"""

from __future__ import annotations

from typing import Final

from sos_controller.core.commands import PacketOut
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER
from sos_controller.core.plain.outcome import Outcome
from sos_controller.core.state import State
from sos_controller.core.tables.sessions import Session
from sos_controller.core.types import Address, FlowKey
from sos_controller.core.wire.packets import build_acknowledgement

PROBES: Final = ((0.0, 0x00000000), (2.0, 0x80000000))
"""Delay of each segment in seconds after the end of the session, and its sequence number. Two segments are sent, since one may be lost, and
no window of less than 2 GiB contains both numbers."""


def probe_half_open(state: State, session: Session) -> None:
    """Probe the host whose agent was lost, once both sides of a session are over and the other agent has confirmed its own end."""
    lost = [agent_id for agent_id, how in session.ended_by.items() if how is Outcome.AGENT_LOST]
    if len(lost) != 1 or len(session.ended_by) != 2:
        return
    key = session.key
    back = FlowKey(key[4:8] + key[:4] + key[10:12] + key[8:10])
    towards = back if lost[0] == session.ingress else key  # to the client from the server's address, or the reverse
    target = state.hosts.by_address(Address(int.from_bytes(towards[4:8], "big")))
    if target is None or state.config is None:
        return
    where = target.location
    for after_s, number in PROBES:
        frame = build_acknowledgement(state.config.discovery.ether, target.mac, towards, number)
        state.out.append(PacketOut(where.dpid, PORT_CONTROLLER, (Output(where.port_no),), frame, after_s))
    state.count("sessions", "nudged")
