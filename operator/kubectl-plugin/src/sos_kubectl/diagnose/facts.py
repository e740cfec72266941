"""What `kubectl sos diagnose` has found out about two sites: the controller's words, the agents' numbers, and what real transfers did.

Values only; `gather` fills them, `diagnosis` judges them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sos_kubectl.targets.transfer import End, Mtu, Transfer

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same transfer both ways. `port` is the server's."""

    port: int
    up: Transfer
    down: Transfer

    @property
    def ok(self) -> bool:
        """Both have arrived whole."""
        return self.up.ok and self.down.ok


@dataclass(frozen=True, slots=True)
class Server:
    """Somebody's own server, asked whether it listens: from the other site, and from beside it."""

    address: str
    port: int
    far: str = ""
    """"" or how it failed, in one word of sos-probe."""
    near: str = ""


@dataclass(frozen=True, slots=True)
class AgentView:
    """What an agent says of itself; `error` when it does not answer."""

    name: str
    site: str
    error: str = ""
    armed: int = 0
    streams: int = 0
    draining: bool = False
    told: bool = True
    """Whether it has said anything: one may run without our being allowed to ask it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants to know."""

    from_site: str
    to_site: str
    service: str = ""
    server: tuple[str, int] | None = None


@dataclass(slots=True)
class Facts:
    """All there is to judge by. Documents are those of spec/northbound.md, empty where nobody answered."""

    asked: Asked
    controller_error: str = ""
    config: Json = field(default_factory=dict)
    status: Json = field(default_factory=dict)
    agents: Json = field(default_factory=dict)
    topology: Json = field(default_factory=dict)
    objects: list[Json] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    """Beacons dropped while this was looked at, by reason."""
    views: dict[str, AgentView] = field(default_factory=dict)
    """By agent id."""
    client: End | None = None
    server: End | None = None
    ends_error: str = ""
    """Why there is no client or no server."""
    plain: Pair | None = None
    plain_reversed: bool = False
    """Opened by the server, since every port in the usual direction belongs to a service."""
    through: Pair | None = None
    accelerated: bool = False
    """A session for the transfer was seen."""
    mtu: Mtu | None = None
    own_server: Server | None = None
