"""Apply commands as OpenFlow messages. An entry that goes to one switch after the other is rendered once."""

from __future__ import annotations

from sos_controller import ofp
from sos_controller.core.commands import Apply
from sos_controller.core.flowtable import FlowEntry

_XID_AT, _XID_END = 4, 8


class FlowMods:
    """Renders commands, and remembers the last flow-mod: a session has the same entry on every switch of the other site."""

    def __init__(self) -> None:
        self._entry: FlowEntry | None = None
        self._command = ofp.ADD
        self._head = self._tail = b""

    def encode(self, command: Apply) -> bytes:
        """Adds, a barrier where deletes follow, deletes, a barrier to hear of it: all under the command's token."""
        xid = command.token.to_bytes(4, "big")
        parts = [self._flow_mod(entry, ofp.ADD, xid) for entry in command.adds]
        if command.adds and command.deletes:
            parts.append(ofp.barrier_request(0))
        parts.extend([self._flow_mod(entry, ofp.DELETE_STRICT, xid) for entry in command.deletes])
        if command.barrier:
            parts.append(ofp.barrier_request(command.token))
        return b"".join(parts)

    def _flow_mod(self, entry: FlowEntry, command: int, xid: bytes) -> bytes:
        if entry is not self._entry or command != self._command:
            message = ofp.flow_mod(entry, command, 0)
            self._entry, self._command = entry, command
            self._head, self._tail = message[:_XID_AT], message[_XID_END:]
        return self._head + xid + self._tail
