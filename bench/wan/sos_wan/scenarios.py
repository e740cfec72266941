"""What is measured: scenarios, and the schemes that are measured beside each other in each of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sos_testbed.measure import formula_mbps
from sos_testbed.topology import PathOptions

ENCRYPTED, COMPRESSED, QUIC = "encrypted", "compressed", "quic"
"""Policies: YAML files of this benchmark."""


class Kind(StrEnum):
    """How a transfer is made."""

    SOS = "sos"
    PLAIN = "plain"
    IPERF3 = "iperf3"
    MPTCP = "mptcp"
    HAPROXY = "haproxy"
    SOCAT = "socat"
    GRIDFTP = "gridftp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One way to transfer. `large_buffers` lets the hosts' sockets grow to 64 MB; otherwise they are as Linux has them."""

    name: str
    kind: Kind
    congestion: str = "cubic"
    streams: int = 1
    large_buffers: bool = False
    several_paths: bool = False
    """Only where there are several paths: on one it is TCP with more words."""
    splice: bool = False
    """haproxy splices everything, instead of when it thinks fit: that it did not even at 10 Gbit/s (2.6, bench/relay/README.md)."""
    only_path: int | None = None
    """A download by plain TCP or SOS goes over this path alone, the first being 0; otherwise over all that it can use, or the first."""
    policy: str = ""
    """SOS with another policy than the default one: the name of its YAML file."""
    rows: tuple[str, ...] = ()
    """Names of the rows that one measurement of it gives, where it is not one with its own name."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the rows that one measurement of it gives."""
        return self.rows or (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Paths between two sites, and what is measured over them, in order; the order turns from run to run."""

    name: str
    title: str
    paths: tuple[PathOptions, ...]
    schemes: tuple[Scheme, ...]
    emulated: bool = True
    """Otherwise the sites are joined by plain veth pairs: no delay, no rate, segmentation offload."""
    shared: bool = False
    """A plain download of other hosts goes over the first path at the same time."""
    text: bool = False
    """The server sends what can be compressed, else noise."""
    resources: tuple[Path, ...] = ()
    """Custom resources besides those that every scenario has; they take the place of those with the same name."""

    @property
    def wire_limit_mbps(self) -> float:
        """TCP payload that the wires carry: of each full frame of 1538 byte times, 1448 bytes with timestamps at an MTU of 1500. A
        plain veth pair has none: 0."""
        return sum(formula_mbps(path.shape()) for path in self.paths) if self.emulated else 0.0

    @property
    def drain_s(self) -> float:
        """When everything has come out of the wires that was sent before, and been answered: a full queue and a round trip."""
        shapes = [path.shape() for path in self.paths]
        return max(shape.rtt_us / 1e6 + shape.queue_bytes * 8 / shape.rate_bps for shape in shapes) if self.emulated else 0.0


SCHEMES = (
    Scheme(name="sos", kind=Kind.SOS, rows=("sos first", "sos")),  # by agents that have just started, and by the same ones again
    Scheme(name="plain", kind=Kind.PLAIN),
    Scheme(name="plain-64m", kind=Kind.PLAIN, large_buffers=True),
    Scheme(name="plain-bbr", kind=Kind.PLAIN, congestion="bbr"),
    Scheme(name="iperf3-4", kind=Kind.IPERF3, streams=4),
    Scheme(name="iperf3-16", kind=Kind.IPERF3, streams=16),
    Scheme(name="iperf3-32", kind=Kind.IPERF3, streams=32),
    Scheme(name="mptcp", kind=Kind.MPTCP, several_paths=True),
    Scheme(name="mptcp-64m", kind=Kind.MPTCP, several_paths=True, large_buffers=True),
    Scheme(name="haproxy", kind=Kind.HAPROXY, congestion="bbr", splice=True),
    Scheme(name="gridftp-8", kind=Kind.GRIDFTP, streams=8),
)
ONLY_WHEN_SHARED = frozenset({"iperf3-4"})  # what a competitor gets beside it is the question; alone, 16 and 32 streams are the better peer

SHARED = frozenset({"sos", "plain", "iperf3-4"})

GBIT = 1_000_000_000
MBIT = 1_000_000


def wan(name: str, title: str, paths: tuple[PathOptions, ...], *, shared: bool = False) -> Scenario:
    """A scenario with the schemes that fit."""
    fitting = tuple(
        scheme
        for scheme in SCHEMES
        if (scheme.name in SHARED if shared else scheme.name not in ONLY_WHEN_SHARED) and (len(paths) > 1 or not scheme.several_paths)
    )
    return Scenario(name=name, title=title, paths=paths, schemes=fitting, shared=shared)


SCENARIOS = (
    wan(name="59ms", title="1 Gbit/s, 59 ms", paths=(PathOptions(rate_bps=GBIT, rtt_us=59_000),)),
    wan(name="164ms", title="1 Gbit/s, 164 ms", paths=(PathOptions(rate_bps=GBIT, rtt_us=164_000),)),
    wan(name="20ms-loss", title="1 Gbit/s, 20 ms, 1 % loss", paths=(PathOptions(rate_bps=GBIT, rtt_us=20_000, loss=0.01),)),
    wan(name="59ms-1mb", title="1 Gbit/s, 59 ms, queue of 1 MB", paths=(PathOptions(rate_bps=GBIT, rtt_us=59_000, queue_bytes=1_000_000),)),
    wan(
        name="200+200",
        title="200 + 200 Mbit/s, 54 and 160 ms",
        paths=(PathOptions(rate_bps=200 * MBIT, rtt_us=54_000), PathOptions(rate_bps=200 * MBIT, rtt_us=160_000)),
    ),
    wan(
        name="500+100",
        title="500 + 100 Mbit/s, 100 ms",
        paths=(PathOptions(rate_bps=500 * MBIT, rtt_us=100_000), PathOptions(rate_bps=100 * MBIT, rtt_us=100_000)),
    ),
    wan(
        name="59ms-shared",
        title="1 Gbit/s, 59 ms, beside a plain flow",
        paths=(PathOptions(rate_bps=GBIT, rtt_us=59_000),),
        shared=True,
    ),
)
