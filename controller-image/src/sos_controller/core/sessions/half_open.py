"""A host whose agent died with its machine is made to ask, and so is told.

The kernel of an agent that is killed resets its connections. Where the machine dies, nobody does: a host that only listens would wait
for ever, since its other end has long been reset by the other agent. So when both sides of such a session are over, its host gets an empty
segment with numbers outside of its window. It answers with its own (RFC 9293, 3.10.7.4); the answer is redirected no more, reaches the
other host, and that resets what it does not know, with the very number that was acknowledged (3.10.7.1), which the first one accepts.

A host that has no such connection any more resets in turn what nobody has, so a nudge too many does no harm. Where both agents are lost
none is sent: both hosts would have the connection, and would tell each other numbers that neither takes.
"""

from __future__ import annotations

from typing import Final

from sos_controller.core.commands import PacketOut
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER
from sos_controller.core.state import State
from sos_controller.core.tables.sessions import Session
from sos_controller.core.types import Address, FlowKey
from sos_controller.core.wire.packets import build_acknowledgement

NUDGES: Final = ((0.0, 0x00000000), (2.0, 0x80000000))
"""Seconds after the end, and sequence numbers: no window of less than 2 GiB holds both, and one of the segments may be lost."""
LOST: Final = "agent-lost"


def probe_half_open(state: State, session: Session) -> None:
    """Both sides of a session are over: nudge the host whose agent was lost, if the other host's agent has told that it was not."""
    lost = [agent_id for agent_id, how in session.ended_by.items() if how == LOST]
    if len(lost) != 1 or len(session.ended_by) != 2:
        return
    key = session.key
    back = FlowKey(key[4:8] + key[:4] + key[10:12] + key[8:10])
    towards = back if lost[0] == session.near else key  # to the client as from the server, or to the server as from the client
    target = state.hosts.by_address(Address(int.from_bytes(towards[4:8], "big")))
    if target is None or state.config is None:
        return
    where = target.location
    for after_s, number in NUDGES:
        frame = build_acknowledgement(state.config.discovery.ether, target.mac, towards, number)
        state.out.append(PacketOut(where.dpid, PORT_CONTROLLER, (Output(where.port_no),), frame, after_s))
    state.count("sessions", "nudged")
