"""Changes of entries as OpenFlow messages."""

from __future__ import annotations

from sos_controller.core.commands import Apply, Install, Withdraw
from sos_controller.core.openflow.flow_entries import FlowEntry
from sos_controller.core.openflow.pipeline import cookie_kind
from sos_controller.core.types import DatapathId
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


class Renewals:
    """Renewals of leases, encoded once: thousands of services renew the same entries every 1.5 s. Bounded: the last renewal of each kind of
    entry for each connected datapath."""

    def __init__(self) -> None:
        self._encoded: dict[DatapathId, dict[int, tuple[tuple[FlowEntry, ...], bytes]]] = {}

    def encode(self, command: Apply) -> bytes:
        """Return `apply` of a command without a token. The same tuple of entries has the same encoding, as entries never change."""
        if not command.adds or command.deletes or command.barrier or command.token:
            return apply(command)
        kind = cookie_kind(command.adds[0].cookie)
        known = self._encoded.get(command.dpid, {}).get(kind)
        if known is not None and known[0] is command.adds:
            return known[1]
        data = apply(command)
        self._encoded.setdefault(command.dpid, {})[kind] = (command.adds, data)
        return data

    def forget(self, dpid: DatapathId) -> None:
        """Forget the renewals of a datapath that has disconnected."""
        self._encoded.pop(dpid, None)
