"""Scenarios of the `wan` benchmark, and the schemes of each scenario. Pure."""

from __future__ import annotations

from sos_harness.scenario import GBIT, MBIT, ROUTES, Kind, Scenario, Scheme
from sos_testbed.core.topology import PathOptions

SCHEMES = (
    Scheme(name="sos", kind=Kind.SOS, rows=("sos first", "sos")),  # first and second transfer of newly started agents
    Scheme(name="sos-routes", kind=Kind.SOS, policy=ROUTES, rows=("sos-routes first", "sos-routes")),
    Scheme(name="plain", kind=Kind.PLAIN),
    Scheme(name="plain-64m", kind=Kind.PLAIN, large_buffers=True),
    Scheme(name="plain-bbr", kind=Kind.PLAIN, congestion="bbr"),
    Scheme(name="plain-bbr-64m", kind=Kind.PLAIN, congestion="bbr", both_hosts=True, large_buffers=True),
    Scheme(name="iperf3-4", kind=Kind.IPERF3, streams=4),
    Scheme(name="iperf3-16", kind=Kind.IPERF3, streams=16),
    Scheme(name="iperf3-32", kind=Kind.IPERF3, streams=32),
    Scheme(name="mptcp", kind=Kind.MPTCP, several_paths=True),
    Scheme(name="mptcp-64m", kind=Kind.MPTCP, several_paths=True, large_buffers=True),
    Scheme(name="haproxy", kind=Kind.HAPROXY, congestion="bbr", splice=True),
    Scheme(name="gridftp-8", kind=Kind.GRIDFTP, streams=8),
)
ONLY_WHEN_SHARED = frozenset({"iperf3-4"})  # shows the competitor's remaining rate; otherwise 16 or 32 streams are better peers

SHARED = frozenset({"sos", "plain", "iperf3-4"})


def wan(name: str, title: str, paths: tuple[PathOptions, ...], *, shared: bool = False) -> Scenario:
    """A scenario with all schemes that apply to it."""
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
