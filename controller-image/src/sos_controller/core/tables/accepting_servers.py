"""Servers that accepted a connection recently: for these, an agent answers the client's SYN immediately; for all other servers, after the
server has accepted.

An entry is an address and port, for all clients. An accepted connection adds it; a refusal or an unanswered SYN removes it immediately.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sos_controller.core.types import FlowKey
from sos_controller.core.wire.order import ENDS, Ended

LEARNED_S: Final = 300.0
"""Lifetime of an entry: servers are stopped and moved within hours, clients reconnect within minutes."""
MAX_SERVERS: Final = 65_536
"""Maximum number of servers remembered; the server confirmed longest ago is dropped, and its next connection waits for the server again."""
_REFUSES: Final = (ENDS.index("server-refused"), ENDS.index("server-unreachable"))


class AcceptingServers:
    """Time of each server's last accepted connection."""

    def __init__(self) -> None:
        self._accepted_at: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accepted_at)

    def note(self, key: FlowKey, now: float) -> None:
        """Record that the server of a flow has accepted a connection."""
        accepted_at, server = self._accepted_at, _server(key)
        accepted_at[server] = now
        accepted_at.move_to_end(server)
        while len(accepted_at) > MAX_SERVERS or accepted_at[next(iter(accepted_at))] <= now - LEARNED_S:
            accepted_at.popitem(last=False)

    def forget(self, key: FlowKey) -> None:
        """Forget the server of a flow, which refused a connection or did not answer."""
        self._accepted_at.pop(_server(key), None)

    def ended(self, key: FlowKey, said: Ended, now: float) -> None:
        """Learn from the end of a session: bytes from the server prove that it had accepted."""
        if said.reason in _REFUSES:
            self.forget(key)
        elif said.bytes_to_client:
            self.note(key, now)

    def holds(self, key: FlowKey, now: float) -> bool:
        """Return whether the server of a flow is expected to accept."""
        accepted_at = self._accepted_at.get(_server(key))
        return accepted_at is not None and now < accepted_at + LEARNED_S


def _server(key: FlowKey) -> bytes:
    """Return address and port of a flow's server."""
    return key[4:8] + key[10:12]
