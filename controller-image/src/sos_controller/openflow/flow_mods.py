"""Changes of entries as OpenFlow messages."""

from __future__ import annotations

from sos_controller.core.commands import Apply, Install, Withdraw
from sos_controller.openflow import ofp


def apply(command: Apply) -> bytes:
    """Return adds, a barrier if adds and deletes exist, deletes, and a barrier if the command requests it. All messages except the barrier
    before the deletes carry the command's token."""
    parts = [ofp.flow_mod(entry, ofp.ADD, command.token) for entry in command.adds]
    if command.adds and command.deletes:
        parts.append(ofp.barrier_request(0))
    parts.extend([ofp.flow_mod(entry, ofp.DELETE_STRICT, command.token) for entry in command.deletes])
    if command.barrier:
        parts.append(ofp.barrier_request(command.token))
    return b"".join(parts)


def install(command: Install) -> bytes:
    """Return the flow-mod that adds the entry, the same for all datapaths."""
    return ofp.flow_mod(command.entry, ofp.ADD, command.token)


def withdraw(command: Withdraw) -> bytes:
    """Return the flow-mod that deletes the entry, the same for all datapaths."""
    return ofp.flow_mod(command.entry, ofp.DELETE_STRICT, 0)
