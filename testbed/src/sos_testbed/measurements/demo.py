"""`make demo`: plain TCP and SOS over one and over two long paths, in one run; prints a table and bars, writes a chart and JSON.
`make bench` measures more paths in the same way.

Both transfers use the same curl, nginx and file; port 80 is covered by the service of examples/01-two-sites, or of examples/08-routed-wan
in a lab without switches, and port 8080 is not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from sos_testbed.core.model import LabError, Shape
from sos_testbed.core.topology import PathOptions
from sos_testbed.core.web import PLAIN_PORT, SOS_PORT
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.declare import load
from sos_testbed.lifecycle.lab import BOTH_PATHS, ONE_PATH, PROACTIVE, Lab, Options
from sos_testbed.lifecycle.runner import uninterrupted
from sos_testbed.measurements import measure
from sos_testbed.measurements.measure import Request, Transfer, WireLimit

SHORTEST_TRANSFER_S = 6.0
TRANSFER_RTTS = 12  # round trips added to SHORTEST_TRANSFER_S, so that start-up has little influence
TIME_LIMIT_FACTOR = 6  # a transfer that is six times slower than its wire counts as failed
HONEST_SHARE = 0.9  # below this share of its calculated rate, a wire is limited by the machine's CPU
SLOWER_RATES = (300_000_000, 200_000_000, 100_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario: one path, or two paths with half the rate each, because one machine emulates both."""

    name: str
    rtt_us: int
    loss: float = 0.0
    queue_bytes: int | None = None
    paths: int = 1
    proactive: bool = False
    switches: bool = True
    """False: routes connect the sites (topology routed-wan)."""

    @property
    def transfer_s(self) -> float:
        """Duration of a transfer at the wire's limit: 8 s at 164 ms."""
        return SHORTEST_TRANSFER_S + TRANSFER_RTTS * self.rtt_us / 1e6

    @property
    def wire(self) -> tuple[int, float, int | None, int, bool]:
        """Key of scenarios that share one lab and one plain transfer."""
        return self.rtt_us, self.loss, self.queue_bytes, self.paths, self.switches

    def options(self, rate_bps: int) -> Options:
        """Options of a lab whose two paths have the scenario's shape, and whose service uses one path or both (`paths`)."""
        path = PathOptions(rate_bps=rate_bps // self.paths, rtt_us=self.rtt_us, loss=self.loss, queue_bytes=self.queue_bytes)
        options = Options(topology="figure8" if self.switches else "routed-wan", path1=path, path2=path)
        changed = BOTH_PATHS if self.switches else ONE_PATH
        # examples/01-two-sites has a service over one path, examples/08-routed-wan over both
        return options if (self.paths == 1) == self.switches else replace(options, examples=(*options.files(), changed))


SCENARIOS = (
    Scenario(name="59 ms", rtt_us=59_000),  # the paper's two paths
    Scenario(name="proactive, 59 ms", rtt_us=59_000, proactive=True),
    Scenario(name="164 ms", rtt_us=164_000),
    Scenario(name="20 ms, 1 % loss", rtt_us=20_000, loss=0.01),  # thesis table 19
    Scenario(name="no switches, 59 ms", rtt_us=59_000, switches=False),
    Scenario(name="both paths, 59 ms", rtt_us=59_000, paths=2),
    Scenario(name="both paths, 164 ms", rtt_us=164_000, paths=2),
)
BENCH_SCENARIOS = (
    *SCENARIOS,
    Scenario(name="59 ms, 1 MB queue", rtt_us=59_000, queue_bytes=1_000_000),  # parallel cubic streams collapse on this path
    Scenario(name="164 ms, 1 MB queue", rtt_us=164_000, queue_bytes=1_000_000),
    Scenario(name="5 ms", rtt_us=5_000),  # a path on which SOS should gain and lose nothing
    Scenario(name="100 ms, 0.1 % loss", rtt_us=100_000, loss=0.001),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the result; out/demo.json is a list of these. Rates of links and wires are totals over the used paths."""

    scenario: str
    rtt_ms: float
    link_mbps: float
    wire_limit_mbps: float
    plain_mbps: float
    sos_mbps: float
    ratio: float
    sha256_ok: bool
    client_saw: str
    server_saw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Baseline of a transfer through SOS: the wire, and plain TCP on this wire in the same run."""

    shape: Shape
    limit: WireLimit
    plain: Transfer
    plain_ok: bool


Say = Callable[[str], None]
Used = Callable[[Lab], None]


def main(out: Path, rate_bps: int, say: Say, scenarios: tuple[Scenario, ...] = SCENARIOS) -> list[Row]:
    """Run the scenarios and write demo.json and demo.png into `out`. Raise LabError if a transfer failed or changed a byte."""
    rows: list[Row] = []
    with _taken_down() as used:
        for _, alike in groupby(scenarios, key=lambda scenario: scenario.wire):
            group = tuple(alike)
            numbers = "-".join(str(len(rows) + end) for end in sorted({1, len(group)}))
            say(f"[{numbers}/{len(scenarios)}] {group[0].name}, {rate_bps / 1e6:g} Mbit/s")
            measured, rate_bps = _honest(group, rate_bps, used, say)
            rows += measured
    write(out, rows)
    print("\n".join(table(rows)))
    print("\n".join(bars(rows)))
    print(f"{out / 'demo.json'}, {out / 'demo.png'}")
    if not all(row.sha256_ok for row in rows):
        raise LabError("received bytes differ: " + ", ".join(row.scenario for row in rows if not row.sha256_ok))
    return rows


@contextmanager
def _taken_down() -> Iterator[Used]:
    """Take labs down one at a time while the next lab is built. On exit all labs are down, including a lab interrupted by Ctrl-C."""
    labs_used: list[Lab] = []
    with ThreadPoolExecutor(1) as pool:

        def used(lab: Lab) -> None:
            labs_used.append(lab)
            pool.submit(lab.down)

        try:
            yield used
        finally:
            with uninterrupted():
                pool.shutdown()
                for lab in [lab for lab in labs_used if lab.root.exists()]:
                    lab.down()


def _honest(group: Sequence[Scenario], rate_bps: int, used: Used, say: Say) -> tuple[list[Row], int]:
    """Measure at this rate, or at the next lower rate that the machine sustains."""
    slower = iter([rate for rate in SLOWER_RATES if rate < rate_bps])
    while True:
        rows = _measure(group, rate_bps, used, say)
        if rows is not None:
            return rows, rate_bps
        lower = next(slower, None)
        if lower is None:
            raise LabError(f"this machine carries less than {rate_bps / 1e6:g} Mbit/s")
        say(f"  this machine cannot carry {rate_bps / 1e6:g} Mbit/s without being the bottleneck; trying {lower / 1e6:g}")
        rate_bps = lower


def _measure(group: Sequence[Scenario], rate_bps: int, used: Used, say: Say) -> list[Row] | None:
    """Rows of the scenarios of one wire, or None if the wire does not reach HONEST_SHARE of its calculated rate."""
    options = group[0].options(rate_bps)
    shape = options.build().shaped()[0].shape
    if shape is None:
        raise LabError("the first wire has no shape")
    built = labs.up(options)
    try:
        limit = measure.wire_limit(built, shape, HONEST_SHARE).of(group[0].paths)
        say(f"  wire    {limit}")
        if limit.mbps < HONEST_SHARE * limit.formula_mbps:
            return None
        source = built.root / "www" / "payload"
        labs.make_payload(source, int(limit.mbps * 1e6 / 8 * group[0].transfer_s))
        plain, plain_ok = _fetch(built, source, PLAIN_PORT, group[0].transfer_s)
        say(f"  plain   {plain.mbps:6.0f} Mbit/s")
        peer = Peer(shape=shape, limit=limit, plain=plain, plain_ok=plain_ok)
        return [_compare(built, scenario, peer, say) for scenario in group]
    finally:
        used(built)


def _compare(built: Lab, scenario: Scenario, peer: Peer, say: Say) -> Row:
    if scenario.proactive:
        labs.wait_ready(built, built.declare(load((PROACTIVE,))))
    sos, sos_ok = _fetch(built, built.root / "www" / "payload", SOS_PORT, scenario.transfer_s * TIME_LIMIT_FACTOR)
    set_up = ", set up proactively" if scenario.proactive else ""
    say(f"  SOS     {sos.mbps:6.0f} Mbit/s, {sos.mbps / peer.limit.mbps:.0%} of the wire{set_up}")
    if not sos.complete:
        raise LabError(f"{scenario.name}: the transfer through SOS failed: {sos.error}")
    return Row(
        scenario=scenario.name,
        rtt_ms=peer.shape.rtt_us / 1000,
        link_mbps=peer.shape.rate_bps * scenario.paths / 1e6,
        wire_limit_mbps=round(peer.limit.mbps, 1),
        plain_mbps=round(peer.plain.mbps, 1),
        sos_mbps=round(sos.mbps, 1),
        ratio=round(sos.mbps / peer.plain.mbps, 1) if peer.plain.mbps else 0.0,
        sha256_ok=peer.plain_ok and sos_ok,
        client_saw=sos.client_saw,
        server_saw=sos.server_saw,
    )


def _fetch(built: Lab, source: Path, port: int, max_time_s: float) -> tuple[Transfer, bool]:
    copy = built.root / f"copy-{port}"
    done = measure.download(built, Request(port=port, path=source, max_time_s=max_time_s), copy)
    ok = copy.exists() and measure.same_bytes(source, copy, complete=done.complete)
    copy.unlink(missing_ok=True)
    return done, ok


def write(out: Path, rows: list[Row]) -> None:
    """Write demo.json and demo.png."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "demo.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    chart(out / "demo.png", rows)


def table(rows: list[Row]) -> list[str]:
    """Format rows as aligned columns for a terminal."""
    head = ("path", "link", "wire limit", "plain TCP", "SOS", "of wire", "faster", "sha256", "client saw", "server saw")
    body = [
        (
            row.scenario,
            f"{row.link_mbps:g}",
            f"{row.wire_limit_mbps:.0f}",
            f"{row.plain_mbps:.0f}",
            f"{row.sos_mbps:.0f}",
            f"{row.sos_mbps / row.wire_limit_mbps:.0%}",
            f"{row.ratio:g} x",
            "ok" if row.sha256_ok else "WRONG",
            row.client_saw,
            row.server_saw,
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (head, *body)) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in (head, *body)]


def bars(rows: list[Row], width: int = 50) -> list[str]:
    """Draw a bar per measurement in text; the full width is the wire's limit."""
    lines = []
    for row in rows:
        lines.append(row.scenario)
        for label, value in (("plain", row.plain_mbps), ("SOS", row.sos_mbps)):
            filled = min(width, round(width * value / row.wire_limit_mbps))
            lines.append(f"  {label:<6}{'█' * filled}{'·' * (width - filled)} {value:.0f} Mbit/s")
    return lines


def chart(path: Path, rows: list[Row]) -> None:
    """Draw a bar chart as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(2.2 + 2 * len(rows), 4.5), dpi=120)
    places = range(len(rows))
    series: list[tuple[str, str, Any]] = [
        ("plain TCP", "#9aa5b1", [row.plain_mbps for row in rows]),
        ("SOS", "#1f77b4", [row.sos_mbps for row in rows]),
    ]
    for shift, (label, colour, values) in zip((-0.2, 0.2), series, strict=True):
        drawn = axes.bar([place + shift for place in places], values, 0.38, label=label, color=colour)
        axes.bar_label(drawn, fmt="%.0f", padding=2)
    for place, row in zip(places, rows, strict=True):
        axes.hlines(row.wire_limit_mbps, place - 0.45, place + 0.45, colors="black", linestyles="dashed", linewidth=1)
    axes.plot([], [], "k--", linewidth=1, label="wire limit")
    axes.set_xticks(list(places), [row.scenario for row in rows])
    axes.set_ylabel("goodput of one download, Mbit/s")
    axes.set_title(f"curl over a {rows[0].link_mbps:g} Mbit/s link, hosts untouched")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncol=3, frameon=False)
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
