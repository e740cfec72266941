"""Endpoints of a transfer and its result, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class End:
    """An endpoint of connections: a lab's host, or a probe pod. `prefix` runs a command there."""

    name: str
    address: str
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer of verified bytes, in the words of sos-probe."""

    ok: bool
    bytes: int = 0
    seconds: float = 0.0
    failure: str = ""
    detail: str = ""
    own: str = ""
    """The client's own address and port."""
    seen: str = ""
    """The client's address and port as the server saw them."""

    @property
    def mbps(self) -> float:
        """Payload from the first SYN to the last byte, in Mbit/s."""
        return self.bytes * 8 / self.seconds / 1e6 if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Mtu:
    """The largest IP packets that pass unfragmented; 0 = none passed."""

    local: int
    forward: int
    back: int
    detail: str = ""
