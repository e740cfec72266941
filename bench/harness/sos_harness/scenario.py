"""Scenarios (paths between two sites) and schemes (ways to transfer) of all benchmarks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sos_testbed.core.topology import PathOptions
from sos_testbed.measurements.measure import formula_mbps

GBIT = 1_000_000_000
MBIT = 1_000_000

ENCRYPTED, COMPRESSED, QUIC = "encrypted", "compressed", "quic"
"""Policies: YAML files in ../resources."""
ROUTES = "routes"
"""Policy without a file: the agents are attached to routes instead of a bridge (docs/adr/0056)."""


class Kind(StrEnum):
    """Program and protocol of a transfer."""

    SOS = "sos"
    PLAIN = "plain"
    IPERF3 = "iperf3"
    MPTCP = "mptcp"
    HAPROXY = "haproxy"
    SOCAT = "socat"
    GRIDFTP = "gridftp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One way to transfer. `large_buffers` lets the hosts' sockets grow to 64 MB; otherwise they have the limits of Linux."""

    name: str
    kind: Kind
    congestion: str = "cubic"
    streams: int = 1
    large_buffers: bool = False
    both_hosts: bool = False
    """The client's host uses the congestion control, too; otherwise the server alone, the sender of a download."""
    several_paths: bool = False
    """Only for scenarios of several paths: on one path it is plain TCP."""
    splice: bool = False
    """haproxy splices all data; by its own heuristics it did not even at 10 Gbit/s (2.6, bench/relay/README.md)."""
    only_path: int | None = None
    """Path that a download by plain TCP or SOS is restricted to, the first being 0; None: all paths it can use, or the first."""
    policy: str = ""
    """Policy of SOS other than the default: the name of its YAML file."""
    rows: tuple[str, ...] = ()
    """Rows of one measurement, where it yields other than one row of the scheme's name."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Rows of one measurement."""
        return self.rows or (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Paths between two sites, and the schemes measured over them; their order rotates from run to run."""

    name: str
    title: str
    paths: tuple[PathOptions, ...]
    schemes: tuple[Scheme, ...]
    emulated: bool = True
    """Otherwise the sites are joined by plain veth pairs: no delay, no rate, segmentation offload."""
    shared: bool = False
    """A plain download of two other hosts shares the first path."""
    text: bool = False
    """The server sends compressible data, else random bytes."""
    resources: tuple[Path, ...] = ()
    """Further custom resources; they replace those of the same name."""

    @property
    def wire_limit_mbps(self) -> float:
        """TCP payload that the wires carry: of each full frame of 1538 byte times, 1448 bytes with timestamps at an MTU of 1500. A
        plain veth pair has none: 0."""
        return sum(formula_mbps(path.shape()) for path in self.paths) if self.emulated else 0.0

    @property
    def drain_s(self) -> float:
        """Time for the wires to drain: a full queue and a round trip."""
        shapes = [path.shape() for path in self.paths]
        return max(shape.rtt_us / 1e6 + shape.queue_bytes * 8 / shape.rate_bps for shape in shapes) if self.emulated else 0.0
