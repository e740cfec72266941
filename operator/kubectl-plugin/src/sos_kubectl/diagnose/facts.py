"""Facts about two sites for `kubectl sos diagnose`: the controller's answers, the agents' counters, and results of real transfers.

Values only; `gather` fills them, and `checks` evaluates them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sos_kubectl.targets.transfer import End, Mtu, Transfer

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """A transfer in both directions. `port`: the server's port."""

    port: int
    up: Transfer
    down: Transfer

    @property
    def ok(self) -> bool:
        """True if both transfers arrived whole."""
        return self.up.ok and self.down.ok

    def of(self, direction: str) -> Transfer:
        """The transfer `up` or `down`."""
        return self.up if direction == "up" else self.down

    def with_transfer(self, direction: str, transfer: Transfer) -> Pair:
        """The same pair with another transfer in one direction."""
        return replace(self, up=transfer) if direction == "up" else replace(self, down=transfer)


@dataclass(frozen=True, slots=True)
class Server:
    """The user's own server, probed for a listening port from both sites."""

    address: str
    port: int
    far: str = ""
    """Failure seen from the other site, in one word of sos-probe; "" if there was none."""
    near: str = ""


@dataclass(frozen=True, slots=True)
class AgentView:
    """Status of an agent; `error` if the agent does not answer."""

    name: str
    site: str
    error: str = ""
    armed: int = 0
    streams: int = 0
    draining: bool = False
    told: bool = True
    """False if the agent runs, but the user may not query it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The question: two sites, and optionally a service and a server."""

    from_site: str
    to_site: str
    service: str = ""
    server: tuple[str, int] | None = None


@dataclass(slots=True)
class Facts:
    """All facts. Documents are those of spec/northbound.md, empty if there was no answer."""

    asked: Asked
    controller_error: str = ""
    config: Json = field(default_factory=dict)
    status: Json = field(default_factory=dict)
    agents: Json = field(default_factory=dict)
    topology: Json = field(default_factory=dict)
    objects: list[Json] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    """Beacons dropped during the diagnosis, by reason."""
    views: dict[str, AgentView] = field(default_factory=dict)
    """Status of agents, by agent id."""
    client: End | None = None
    server: End | None = None
    ends_error: str = ""
    """Reason of a missing client or server."""
    plain: Pair | None = None
    plain_reversed: bool = False
    """True if the server opened the plain transfer, because services cover every port in the usual direction."""
    through: Pair | None = None
    accelerated: bool = False
    """True if a session for the transfer was seen."""
    ratios: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Rates through SOS as fractions of plain TCP's, by direction (`up`, `down`), in pairs of transfers one after the other; empty for a
    direction in which SOS was fast enough the first time."""
    plain_connections: list[Json] = field(default_factory=list)
    """Connections of the service that recently went plain, as the controller lists them."""
    mtu: Mtu | None = None
    own_server: Server | None = None
