"""Scenarios and schemes of the `short` benchmark, and the measurement of one scheme."""

from __future__ import annotations

from sos_harness import load_run, relays
from sos_harness.loop import Bench
from sos_harness.results import parse, tables
from sos_harness.results.run_log import Unit
from sos_harness.results.tables import Column
from sos_harness.scenario import GBIT, Kind, Scenario, Scheme
from sos_harness.site import Site
from sos_harness.transfer import Emit
from sos_testbed.core.topology import PathOptions

SCHEMES = (
    Scheme(name="sos", kind=Kind.SOS),
    Scheme(name="plain", kind=Kind.PLAIN),
    Scheme(name="haproxy", kind=Kind.HAPROXY, congestion="bbr"),
)
LONG = (PathOptions(rate_bps=GBIT, rtt_us=100_000),)
LOSSY = (PathOptions(rate_bps=GBIT, rtt_us=100_000, loss=0.01),)
BYTES = {"1kb": 1_000, "10kb": 10_000, "100kb": 100_000, "1mb": 1_000_000}
"""Size of the answer to a request of 1 kB over the long path, by scenario."""
LOSSY_BYTES = {"1kb-loss": 1_000, "10kb-loss": 10_000}
"""The same with 1 % loss in each direction, where tail loss dominates the duration."""
CONNECTIONS = "connections"
"""Name of the scenario without delay."""
AT_ONCE = {CONNECTIONS: 32}
FEW = 4
"""Number of concurrent requests over the long path: enough requests for a p99, but too few for a queue."""

SCENARIOS = (
    *(
        Scenario(name=name, title=f"{size // 1000} kB asked for by 1 kB, 1 Gbit/s, 100 ms", paths=LONG, schemes=SCHEMES)
        for name, size in BYTES.items()
    ),
    *(
        Scenario(name=name, title=f"{size // 1000} kB asked for by 1 kB, 1 Gbit/s, 100 ms, 1 % loss", paths=LOSSY, schemes=SCHEMES)
        for name, size in LOSSY_BYTES.items()
    ),
    Scenario(
        name=CONNECTIONS,
        title="connections of 1 kB each way, 32 at a time, no delay",
        paths=(PathOptions(),),
        schemes=SCHEMES,
        emulated=False,
    ),
)

COLUMNS = (
    Column(head="number", figure="connections", form=".0f"),
    Column(head="failed", figure="failed", form=".0f"),
    Column(head="first byte p50 ms", figure="first_byte_p50_ms", form=".1f", ratio=True),
    Column(head="p99", figure="first_byte_p99_ms", form=".1f"),
    Column(head="whole p50 ms", figure="p50_ms", form=".1f", ratio=True),
    Column(head="whole p99 ms", figure="p99_ms", form=".1f", ratio=True),
    Column(head="per s", figure="connections_per_s", form=".0f", ratio=True),
    Column(head="per CPU s of a relay", figure="connections_per_cpu_s", form=".0f", ratio=True),
)


def measure(site: Site, unit: Unit, seconds: float, emit: Emit) -> None:
    """Measure connections of one request each for `seconds`. Raises NotAvailableError, or LabError if its programs do not start."""
    size, at_once = (BYTES | LOSSY_BYTES).get(unit.scenario.name, 1_000), AT_ONCE.get(unit.scenario.name, FEW)
    words = (str(size), str(seconds), "--at-once", str(at_once))
    with (
        relays.opened(site, unit.scheme) as way,
        load_run.serving(site, way),
        relays.all_accelerated(site, unit.scheme) as check,
    ):
        before = load_run.cpu(way)
        report = load_run.run_client(site, way, parse.parse_load, seconds, "ask", *words)
        used = tuple(after - start for after, start in zip(load_run.cpu(way), before, strict=True))
        check(len(report.last_ms))
        paced = load_run.rates(report, used) if unit.scenario.name == CONNECTIONS else {}
        emit(unit.scheme.name, load_run.found(report, **paced))


BENCH = Bench(
    name="short",
    about="short requests over a long path, and connections per second",
    scenarios=SCENARIOS,
    measure=measure,
    table=lambda summaries: tables.columns(summaries, COLUMNS, {each.name: each.title for each in SCENARIOS}),
    said=("connections", "failed", "first_byte_p50_ms", "p50_ms", "p99_ms", "connections_per_s", "connections_per_cpu_s"),
)
