"""Scenarios and schemes of the `sessions` benchmark, and the measurement of each scenario."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from sos_harness import load_run, relays
from sos_harness.loop import Bench
from sos_harness.relays import NotAvailableError, Way
from sos_harness.results import parse, tables
from sos_harness.results.figures import Found, percentile
from sos_harness.results.run_log import Unit
from sos_harness.results.tables import Column
from sos_harness.scenario import MBIT, Kind, Scenario, Scheme
from sos_harness.site import Site, resident_kb
from sos_harness.transfer import Emit
from sos_testbed.core.topology import PathOptions

SOS = Scheme(name="sos", kind=Kind.SOS)
PLAIN = Scheme(name="plain", kind=Kind.PLAIN)
HAPROXY = Scheme(name="haproxy", kind=Kind.HAPROXY, congestion="bbr")
MANY, FULL, BURST, READERS = 10_000, 4_000, 500, 100
OPENED_AT_ONCE = 64
SLOW_BYTES = 10_000
"""Bytes per second of a slow reader."""
SPARE_FILES = 500
"""File descriptors that a relay needs in addition to its sessions."""
SETTLE_S = 1.0
WARM_UP_S = 3.0
"""Warm-up time: newly started agents do not know the path, so the first half of the comparison would be slower."""
MANY_YAML = Path(__file__).resolve().parents[1] / "many.yaml"
PATH = (PathOptions(rate_bps=200 * MBIT, rtt_us=20_000),)

SCENARIOS = (
    Scenario(
        name="idle",
        title=f"{MANY:,} sessions open, no delay",
        paths=(PathOptions(),),
        schemes=(SOS, HAPROXY),
        emulated=False,
        resources=(MANY_YAML,),
    ),
    Scenario(
        name="full",
        title=f"{FULL:,} connections at once at agents with their default limits, no delay",
        paths=(PathOptions(),),
        schemes=(SOS,),
        emulated=False,
    ),
    Scenario(name="burst", title=f"{BURST} sessions opened at one instant, 20 ms", paths=PATH, schemes=(SOS, PLAIN, HAPROXY)),
    Scenario(
        name="slow-reader",
        title=f"one of {READERS} bulk sessions reads slowly, 200 Mbit/s, 20 ms",
        paths=PATH,
        schemes=(SOS, PLAIN, HAPROXY),
    ),
    Scenario(name="small", title="a small session beside a bulk session, 200 Mbit/s, 20 ms", paths=PATH, schemes=(SOS, PLAIN, HAPROXY)),
)

COLUMNS = (
    Column(head="open", figure="connections", form=".0f"),
    Column(head="failed", figure="failed", form=".0f"),
    Column(head="accelerated", figure="accelerated", form=".0f"),
    Column(head="opened per s", figure="connections_per_s", form=".0f", ratio=True),
    Column(head="kB each, sender", figure="rss_sender_kb_per_session", form=".1f", ratio=True),
    Column(head="kB each, receiver", figure="rss_receiver_kb_per_session", form=".1f", ratio=True),
    Column(head="alone p50 ms", figure="idle_p50_ms", form=".1f"),
    Column(head="alone p99 ms", figure="idle_p99_ms", form=".1f", ratio=True),
    Column(head="p50 ms", figure="p50_ms", form=".1f"),
    Column(head="p99 ms", figure="p99_ms", form=".1f", ratio=True),
    Column(head="Mbit/s each, none slow", figure="others_alone_mbps", form=".2f"),
    Column(head="beside a slow one", figure="others_mbps", form=".2f", ratio=True),
    Column(head="slower by %", figure="others_slowed_percent", form=".1f"),
)


def measure(site: Site, unit: Unit, seconds: float, emit: Emit) -> None:
    """Measure one scheme in one scenario. Raises NotAvailableError, or LabError if its programs do not start."""
    kind, sessions, act = unit.scheme.kind, *ACTS[unit.scenario.name]
    refuse_few_files(kind, sessions)
    with (
        relays.opened(site, unit.scheme, sessions + SPARE_FILES) as way,
        load_run.serving(site, way),
        relays.all_accelerated(site, unit.scheme) as check,
    ):
        found = act(site, way, seconds)
        check(max(0, sessions - int(found.values.get("failed") or 0)))
        emit(unit.scheme.name, found)


def refuse_few_files(kind: Kind, sessions: int) -> None:
    """Raise NotAvailableError if the limit of open files is too low: haproxy needs two files per session, an agent one."""
    needed = sessions * (2 if kind is Kind.HAPROXY else 1) + SPARE_FILES
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard not in {resource.RLIM_INFINITY} and needed > hard:
        raise NotAvailableError(f"{needed} open files are needed and {hard} allowed (ulimit -Hn)")


def idle(site: Site, way: Way, _seconds: float) -> Found:
    """Measure the memory of idle sessions."""
    before = [resident_kb(pid) for pid in way.relays or ()]
    with load_run.holding(site, way, MANY, OPENED_AT_ONCE) as report:
        time.sleep(SETTLE_S)
        after = [resident_kb(pid) for pid in way.relays or ()]
        opened = len(report.last_ms)
        kb = [round((new - old) / opened, 2) if opened else None for old, new in zip(before, after, strict=True)]
        each = dict(zip(("rss_sender_kb_per_session", "rss_receiver_kb_per_session"), kb, strict=False))
        return load_run.found(report, **each, connections_per_s=round(opened / report.seconds, 1))


def burst(site: Site, way: Way, _seconds: float) -> Found:
    """Open all connections simultaneously."""
    with load_run.holding(site, way, BURST, BURST) as report:
        return load_run.found(report)


def full(site: Site, way: Way, _seconds: float) -> Found:
    """Open more connections than the agents' limits allow: the excess connections must go plain, and no connection may fail."""
    before = site.accepted()
    with load_run.holding(site, way, FULL, OPENED_AT_ONCE) as report:
        return load_run.found(report, accelerated=site.accepted() - before)


def slow_reader(site: Site, way: Way, seconds: float) -> Found:
    """Measure the rate of fast readers, without and with a slow reader."""

    def each_mbps(seconds: float, *words: str) -> float:
        rates = load_run.run_client(site, way, parse.parse_readers, seconds, "read", str(READERS), str(seconds), *words)
        time.sleep(SETTLE_S)
        return statistics.median(rates)

    each_mbps(WARM_UP_S)
    alone, beside = each_mbps(seconds), each_mbps(seconds, "--slow", str(SLOW_BYTES))
    slowed = round(100 * (1 - beside / alone), 1) if alone else None
    return Found(values={"others_alone_mbps": round(alone, 3), "others_mbps": round(beside, 3), "others_slowed_percent": slowed})


def small(site: Site, way: Way, seconds: float) -> Found:
    """Measure requests of a session alone on the path, then beside a bulk transfer."""
    alone = load_run.run_client(site, way, parse.parse_load, seconds, "talk", str(seconds))
    with load_run.background_client(site, way, "read", "1", str(2 * seconds + load_run.GRACE_S)):
        time.sleep(SETTLE_S)
        beside = load_run.run_client(site, way, parse.parse_load, seconds, "talk", str(seconds))
    values = {f"idle_p{share:.0f}_ms": percentile(alone.last_ms, share / 100) for share in (50, 99)}
    return Found(values={**values, **{f"p{share:.0f}_ms": percentile(beside.last_ms, share / 100) for share in (50, 99)}})


ACTS: dict[str, tuple[int, Callable[[Site, Way, float], Found]]] = {
    "idle": (MANY, idle),
    "full": (0, full),
    "burst": (BURST, burst),
    "slow-reader": (3 * READERS, slow_reader),
    "small": (3, small),
}
"""Number of sessions that agents must accept, and measuring function, by scenario."""

BENCH = Bench(
    name="sessions",
    about="many sessions at one pair of agents, and interference between sessions",
    scenarios=SCENARIOS,
    measure=measure,
    table=lambda summaries: tables.columns(summaries, COLUMNS, {each.name: each.title for each in SCENARIOS}),
    said=(
        *("connections", "failed", "accelerated", "p50_ms", "p99_ms", "connections_per_s", "rss_sender_kb_per_session"),
        *("rss_receiver_kb_per_session", "others_slowed_percent"),
    ),
)
