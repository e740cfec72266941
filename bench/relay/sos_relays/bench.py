"""Scenarios, schemes, and how one of them is measured."""

from __future__ import annotations

from sos_testbed.topology import PathOptions
from sos_wan import relays, report
from sos_wan.book import Unit
from sos_wan.figures import found
from sos_wan.loop import Bench
from sos_wan.report import Column
from sos_wan.scenarios import GBIT, Kind, Scenario, Scheme
from sos_wan.site import Site
from sos_wan.transfer import Emit, download, served

SCHEMES = (
    Scheme(name="sos", kind=Kind.SOS),
    Scheme(name="sos-tls", kind=Kind.SOS, streams_are="encrypted"),
    Scheme(name="sos-quic", kind=Kind.SOS, streams_are="quic"),
    Scheme(name="haproxy", kind=Kind.HAPROXY, splice=True),
    Scheme(name="haproxy-auto", kind=Kind.HAPROXY),
    Scheme(name="socat", kind=Kind.SOCAT),
    Scheme(name="plain", kind=Kind.PLAIN),
)
OFFERED_BPS = {"1gbit": GBIT, "flat": 0}
"""Scenario -> what the server sends at most, by pacing; 0: as much as it can."""

SCENARIOS = tuple(
    Scenario(name=name, title=title, paths=(PathOptions(),), schemes=SCHEMES, emulated=False)
    for name, title in (("1gbit", "1 Gbit/s offered, no delay"), ("flat", "flat out, no delay"))
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
    """A download, paced or not. NotAvailableError, or LabError if its programs do not start."""
    pace = ("--rate", str(OFFERED_BPS[unit.scenario.name] // 8))
    with (
        relays.opened(site, unit.scheme) as way,
        served(site, "server", way.server_port, *pace),
        relays.taken(site, unit.scheme) as check,
    ):
        seen = download(site, way, seconds)
        check(1)
        emit(unit.scheme.name, found(seen, seconds))


BENCH = Bench(
    name="relay",
    about="CPU time of an agent pair for each byte, beside other relays",
    scenarios=SCENARIOS,
    measure=measure,
    table=lambda summaries: report.columns(summaries, COLUMNS, {each.name: each.title for each in SCENARIOS}),
    said=("mbps_total", "cpu_sender_s_per_gb", "cpu_receiver_s_per_gb"),
)
