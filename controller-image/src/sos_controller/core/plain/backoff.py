"""Back-off: if agents cannot serve a client or server that plain TCP may reach, its connections are plain for increasing times
(docs/adr/0046).

A *client* is silent when the ingress agent's preparation expires: the agent received its SYN, but the handshake was never completed.
Whatever the cause (a VLAN, a filter, a return path that bypasses the agent), the next connection would hang as well. A *server* is
unreachable when it has left the egress agent's SYNs unanswered twice; if it answers plain SYNs meanwhile, its packets bypass the agent.

Any host can forge another host's SYNs. So a client is identified by its address, its MAC address and its port: forged SYNs from elsewhere
do not count against it. And a client that has once completed a handshake (`proven`) is plain for FIRST_S at most before it is tried again,
since the cause cannot be permanent: a flood of forged SYNs from its own port slows it for FIRST_S at most.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, NamedTuple, TypeVar

from sos_controller.core.plain.outcome import Outcome
from sos_controller.core.types import Address, Location, MacAddress
from sos_controller.core.wire.packets import Syn

FIRST_S: Final = 30.0
MAX_S: Final = 3_600.0
"""Back-off, which starts at FIRST_S and doubles with each further failure up to MAX_S: a repaired network is noticed within an hour."""
FORGET_S: Final = 2 * MAX_S
"""Age at which failures no longer count."""
PROVEN_FAILURES: Final = 3
"""Consecutive failures that make a proven client plain: a client that fails once during a handshake must not become plain."""
CLIENT_FAILURES, SERVER_FAILURES = 1, 2
MAX_KEPT: Final = 4_096
"""Maximum number of failing, and of proven, clients or servers in a table; the least recently recorded are dropped, and tried again."""
REPEAT_S: Final = 1.5
"""Time after which a plain SYN without a retransmission counts as answered: an unanswered SYN is retransmitted after a second (RFC 6298,
2.1)."""

Key = TypeVar("Key", bound=tuple[object, ...])


class ClientKey(NamedTuple):
    """A client, identified with the origin of its SYNs."""

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
    """Failing clients or servers, and the end of each back-off. Bounded."""

    def __init__(self, failures: int, limit: int = MAX_KEPT) -> None:
        self._needed, self._limit = failures, limit
        self._failing: OrderedDict[Key, _Failing] = OrderedDict()
        self._proven: OrderedDict[Key, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failing) + len(self._proven)

    def failed(self, key: Key, now: float) -> None:
        """Record that an agent could not serve a connection of a client or server."""
        found = self._failing.get(key)
        if found is None or now - found.at >= FORGET_S:
            found = _Failing(0, 0, 0.0, now)
        if now < found.until:  # the connection began before the back-off
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
        """Record that an agent served a connection of a client or server: forget all failures."""
        self._failing.pop(key, None)
        _put(self._proven, key, None, self._limit)

    def is_plain(self, key: Key, now: float) -> bool:
        """Return whether connections of a client or server must be plain."""
        found = self._failing.get(key)
        return found is not None and now < found.until


Value = TypeVar("Value")


def _put(table: OrderedDict[Key, Value], key: Key, value: Value, limit: int) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > limit:
        table.popitem(last=False)


class _Plain(NamedTuple):
    """A SYN that went plain, watched for an answer."""

    decision: bytes
    at: float


class PlainBackoff:
    """Clients and servers that are temporarily plain."""

    def __init__(self) -> None:
        self.clients = Backoff[ClientKey](CLIENT_FAILURES)
        self.servers = Backoff[ServerKey](SERVER_FAILURES)
        self._watched: OrderedDict[ServerKey, _Plain | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.clients) + len(self.servers) + len(self._watched)

    def why(self, syn: Syn, location: Location, site: str, now: float) -> Outcome | None:
        """Return the outcome of a SYN that must go plain; None if it need not."""
        if self.clients.is_plain(ClientKey(syn.client, syn.mac, location), now):
            return Outcome.CLIENT_SILENT
        server = ServerKey(site, syn.server, syn.server_port)
        if not self.servers.is_plain(server, now):
            return None
        watched = self._watched.get(server)
        if watched is not None and now - watched.at >= REPEAT_S:
            return Outcome.SERVER_ELSEWHERE
        if watched is None:
            _put(self._watched, server, _Plain(syn.key + syn.isn, now), MAX_KEPT)
        return Outcome.SERVER_UNREACHABLE

    def repeated(self, syn: Syn, site: str) -> None:
        """Record a retransmission of a SYN that went plain: the SYN was not answered, so its server is unreachable for plain TCP, too."""
        server = ServerKey(site, syn.server, syn.server_port)
        watched = self._watched.get(server)
        if watched is not None and watched.decision == syn.key + syn.isn:
            del self._watched[server]
