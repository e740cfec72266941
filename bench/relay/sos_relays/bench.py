"""Scenarios and schemes of the `relay` benchmark, and the measurement of one scheme."""

from __future__ import annotations

from sos_harness import relays
from sos_harness.loop import Bench
from sos_harness.results import tables
from sos_harness.results.figures import found
from sos_harness.results.run_log import Unit
from sos_harness.results.tables import Column
from sos_harness.scenario import COMPRESSED, ENCRYPTED, GBIT, MBIT, QUIC, Kind, Scenario, Scheme
from sos_harness.site import Site
from sos_harness.transfer import Emit, download, served
from sos_testbed.core.topology import PathOptions

SCHEMES = (
    Scheme(name="sos", kind=Kind.SOS),
    Scheme(name="sos-tls", kind=Kind.SOS, policy=ENCRYPTED),
    Scheme(name="sos-quic", kind=Kind.SOS, policy=QUIC),
    Scheme(name="haproxy", kind=Kind.HAPROXY, splice=True),
    Scheme(name="haproxy-auto", kind=Kind.HAPROXY),
    Scheme(name="socat", kind=Kind.SOCAT),
    Scheme(name="plain", kind=Kind.PLAIN),
)
COMPRESSING = (
    Scheme(name="sos", kind=Kind.SOS),
    Scheme(name="sos-zstd", kind=Kind.SOS, policy=COMPRESSED),
    Scheme(name="plain", kind=Kind.PLAIN),
)
OFFERED_BPS = {"1gbit": GBIT}
"""Maximum rate of the server by scenario, limited by pacing; in all other scenarios the server is not limited."""

SCENARIOS = tuple(
    Scenario(name=name, title=title, paths=(PathOptions(),), schemes=SCHEMES, emulated=False)
    for name, title in (("1gbit", "1 Gbit/s offered, no delay"), ("flat", "flat out, no delay"))
) + tuple(
    Scenario(
        name=f"{rate // MBIT}mbit-{'text' if text else 'noise'}",
        title=f"{rate // MBIT} Mbit/s, 20 ms, {'source code' if text else 'random bytes'}",
        paths=(PathOptions(rate_bps=rate, rtt_us=20_000),),
        schemes=COMPRESSING,
        text=text,
    )
    for rate in (100 * MBIT, GBIT)
    for text in (True, False)
)

COLUMNS = (
    Column(head="Mbit/s", figure="mbps_total", form=".0f", ratio=True),
    Column(head="CPU s/GB", figure="cpu_s_per_gb", form=".3f", ratio=True),
    Column(head="sender's", figure="cpu_sender_s_per_gb", form=".3f", ratio=True),
    Column(head="receiver's", figure="cpu_receiver_s_per_gb", form=".3f", ratio=True),
    Column(head="retr/GB", figure="retransmits_per_gb", form=".0f"),
    Column(head="load", figure="load", form=".1f"),
)


def measure(site: Site, unit: Unit, seconds: float, emit: Emit) -> None:
    """Measure one download. Raises NotAvailableError, or LabError if its programs do not start."""
    offered = ("--rate", str(OFFERED_BPS.get(unit.scenario.name, 0) // 8), *(("--text",) if unit.scenario.text else ()))
    with (
        relays.opened(site, unit.scheme) as way,
        served(site, "server", way.server_port, *offered),
        relays.all_accelerated(site, unit.scheme) as check,
    ):
        seen = download(site, way, seconds)
        check(1)
        emit(unit.scheme.name, found(seen, seconds))


BENCH = Bench(
    name="relay",
    about="CPU cost of relaying a byte, compared with other relays",
    scenarios=SCENARIOS,
    measure=measure,
    table=lambda summaries: tables.columns(summaries, COLUMNS, {each.name: each.title for each in SCENARIOS}),
    said=("mbps_total", "cpu_sender_s_per_gb", "cpu_receiver_s_per_gb"),
)
