"""Scenarios (paths between two sites) and schemes (transfer methods) of all benchmarks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sos_testbed.core.topology import PathOptions
from sos_testbed.measurements.measure import formula_mbps

GBIT = 1_000_000_000
MBIT = 1_000_000

ENCRYPTED, COMPRESSED, QUIC = "encrypted", "compressed", "quic"
"""Policies of SOS; each name is a YAML file in ../resources."""
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
    """One transfer method. With `large_buffers` the hosts' socket buffers grow to 64 MB, else to the default limits of Linux."""

    name: str
    kind: Kind
    congestion: str = "cubic"
    streams: int = 1
    large_buffers: bool = False
    both_hosts: bool = False
    """The client uses the congestion control, too; otherwise only the server, which sends in a download."""
    several_paths: bool = False
    """The scheme applies only to scenarios with several paths; on one path it is equal to plain TCP."""
    splice: bool = False
    """haproxy splices all data; with splice-auto it did not splice even at 10 Gbit/s (haproxy 2.6, bench/relay/README.md)."""
    only_path: int | None = None
    """Index of the only path for a download by plain TCP or SOS; None: SOS uses all paths, plain TCP the first path."""
    policy: str = ""
    """Policy of SOS other than the default: the name of its YAML file."""
    rows: tuple[str, ...] = ()
    """Names of the rows of one measurement; empty: one row with the name of the scheme."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the rows of one measurement."""
        return self.rows or (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Paths between two sites, and the schemes measured over these paths; the order of schemes rotates from run to run."""

    name: str
    title: str
    paths: tuple[PathOptions, ...]
    schemes: tuple[Scheme, ...]
    emulated: bool = True
    """False: plain veth pairs connect the sites, without delay or rate limit, with segmentation offload."""
    shared: bool = False
    """True: a plain download between two other hosts shares the first path."""
    text: bool = False
    """True: the server sends compressible data; False: random bytes."""
    resources: tuple[Path, ...] = ()
    """Further custom resources, which replace resources with the same name."""

    @property
    def wire_limit_mbps(self) -> float:
        """Highest TCP payload rate of all links: 1448 bytes of each full frame, which takes the time of 1538 bytes (MTU 1500, TCP
        timestamps). 0 for plain veth pairs, which have no limit."""
        return sum(formula_mbps(path.shape()) for path in self.paths) if self.emulated else 0.0

    @property
    def drain_s(self) -> float:
        """Time until the links are empty: a full queue plus a round-trip time."""
        shapes = [path.shape() for path in self.paths]
        return max(shape.rtt_us / 1e6 + shape.queue_bytes * 8 / shape.rate_bps for shape in shapes) if self.emulated else 0.0
