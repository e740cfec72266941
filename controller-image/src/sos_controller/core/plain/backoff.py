"""Clients and servers that agents cannot serve although plain TCP may: plain for a time that grows (docs/adr/0046).

A *client* is silent when the near agent's preparation expires: the agent was given its SYN, and the handshake was never completed. Whatever
the cause is (a VLAN, a filter, a route back that does not lead past the agent), the next connection would hang as well. A *server* is
unreachable when the far agent's SYNs were not answered twice; when plain SYNs to it are answered meanwhile, its answers take another way.

Anybody can send SYNs in another host's name. So a client is known by its address, its MAC address and the port that it is at: somebody
elsewhere does not speak for it. And a client that has once completed a handshake (`proven`) is plain for FIRST_S at most before it is
tried again, since the cause cannot be one that lasts: a flood of SYNs from its own port slows it for as long, and no longer.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, NamedTuple, TypeVar

from sos_controller.core.types import Address, Location, MacAddress
from sos_controller.core.wire.packets import Syn

FIRST_S: Final = 30.0
MAX_S: Final = 3_600.0
"""The first time, doubled with each that follows, up to an hour: a mended network is noticed within that."""
FORGET_S: Final = 2 * MAX_S
"""Failures so long ago say nothing of now."""
PROVEN_FAILURES: Final = 3
"""Of a proven client, without a success between them: one that dies in the middle of a handshake is no reason."""
CLIENT_FAILURES, SERVER_FAILURES = 1, 2
MAX_KEPT: Final = 4_096
"""Failing ones, and proven ones, kept; those heard of longest ago give way, and are tried again."""
REPEAT_S: Final = 1.5
"""An unanswered SYN is repeated after a second (RFC 6298, 2.1)."""

Key = TypeVar("Key", bound=tuple[object, ...])


class ClientKey(NamedTuple):
    """A client where its SYNs come from."""

    address: Address
    mac: MacAddress
    location: Location


class ServerKey(NamedTuple):
    """A server's port at a site."""

    site: str
    address: Address
    port: int


class _Failing(NamedTuple):
    failures: int
    times: int
    until: float
    at: float


class Backoff(Generic[Key]):
    """Who fails, and until when they are plain. Bounded."""

    def __init__(self, failures: int, limit: int = MAX_KEPT) -> None:
        self._needed, self._limit = failures, limit
        self._failing: OrderedDict[Key, _Failing] = OrderedDict()
        self._proven: OrderedDict[Key, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failing) + len(self._proven)

    def failed(self, key: Key, now: float) -> None:
        """An agent could not serve one of its connections."""
        found = self._failing.get(key)
        if found is None or now - found.at >= FORGET_S:
            found = _Failing(0, 0, 0.0, now)
        if now < found.until:  # begun before the verdict
            return
        proven = key in self._proven
        needed = PROVEN_FAILURES if proven else 1 if found.times else self._needed
        if found.failures + 1 < needed:
            made = _Failing(found.failures + 1, found.times, 0.0, now)
        else:
            times = 1 if proven else found.times + 1
            made = _Failing(0, times, now + min(FIRST_S * 2 ** min(times - 1, 16), MAX_S), now)
        _put(self._failing, key, made, self._limit)

    def succeeded(self, key: Key) -> None:
        """An agent served one of its connections: all is forgiven."""
        self._failing.pop(key, None)
        _put(self._proven, key, None, self._limit)

    def is_plain(self, key: Key, now: float) -> bool:
        """Whether its connections are to be plain."""
        found = self._failing.get(key)
        return found is not None and now < found.until


Value = TypeVar("Value")


def _put(table: OrderedDict[Key, Value], key: Key, value: Value, limit: int) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > limit:
        table.popitem(last=False)


class _Plain(NamedTuple):
    """A SYN that went plain, to see whether it is answered."""

    decision: bytes
    at: float


class PlainBackoff:
    """Clients and servers that are plain for a while."""

    def __init__(self) -> None:
        self.clients = Backoff[ClientKey](CLIENT_FAILURES)
        self.servers = Backoff[ServerKey](SERVER_FAILURES)
        self._watched: OrderedDict[ServerKey, _Plain | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.clients) + len(self.servers) + len(self._watched)

    def why(self, syn: Syn, location: Location, site: str, now: float) -> str:
        """Why a SYN must go plain; "" when it need not."""
        if self.clients.is_plain(ClientKey(syn.client, syn.mac, location), now):
            return "client-silent"
        server = ServerKey(site, syn.server, syn.server_port)
        if not self.servers.is_plain(server, now):
            return ""
        watched = self._watched.get(server)
        if watched is not None and now - watched.at >= REPEAT_S:
            return "server-elsewhere"
        if watched is None:
            _put(self._watched, server, _Plain(syn.key + syn.isn, now), MAX_KEPT)
        return "server-unreachable"

    def repeated(self, syn: Syn, site: str) -> None:
        """A SYN that went plain comes again: it has not been answered, so that its server is not merely unreachable for agents."""
        server = ServerKey(site, syn.server, syn.server_port)
        watched = self._watched.get(server)
        if watched is not None and watched.decision == syn.key + syn.isn:
            del self._watched[server]
