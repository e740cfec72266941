"""`make demo`: plain TCP and SOS over long paths, one and two at once, measured in one run, as a table, bars, a chart and JSON.
`make bench` is the same over more paths.

Both transfers are the same curl asking the same nginx for the same file; port 80 is covered by the service of
examples/01-two-sites and port 8080 is not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sos_testbed import lab as labs
from sos_testbed import measure
from sos_testbed.lab import BOTH_PATHS, PROACTIVE, Lab, Options
from sos_testbed.measure import Request, Transfer, WireLimit
from sos_testbed.model import LabError, Shape
from sos_testbed.topology import PathOptions
from sos_testbed.web import PLAIN_PORT, SOS_PORT

TRANSFER_S = 13.0  # six scenarios, with building and probing, stay under six minutes
TIME_LIMIT_FACTOR = 6  # a transfer six times slower than its wire has failed
HONEST_SHARE = 0.9  # a wire that carries less than this of its arithmetic is limited by this machine's processors
SLOWER_RATES = (300_000_000, 200_000_000, 100_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What to measure: one path, or both at once with half of the rate each, since one machine carries them."""

    name: str
    rtt_us: int
    loss: float = 0.0
    queue_bytes: int | None = None
    paths: int = 1
    proactive: bool = False

    def options(self, rate_bps: int) -> Options:
        """A lab with this on both paths, for a service that uses as many of them."""
        path = PathOptions(rate_bps=rate_bps // self.paths, rtt_us=self.rtt_us, loss=self.loss, queue_bytes=self.queue_bytes)
        options = Options(topology="figure8", path1=path, path2=path)
        if self.proactive:
            return replace(options, examples=(PROACTIVE,))
        return options if self.paths == 1 else replace(options, examples=(*options.files(), BOTH_PATHS))


SCENARIOS = (
    Scenario(name="59 ms", rtt_us=59_000),  # the paper's two paths
    Scenario(name="164 ms", rtt_us=164_000),
    Scenario(name="20 ms, 1 % loss", rtt_us=20_000, loss=0.01),  # thesis table 19
    Scenario(name="proactive, 59 ms", rtt_us=59_000, proactive=True),
    Scenario(name="both paths, 59 ms", rtt_us=59_000, paths=2),
    Scenario(name="both paths, 164 ms", rtt_us=164_000, paths=2),
)
BENCH_SCENARIOS = (
    *SCENARIOS,
    Scenario(name="59 ms, 1 MB queue", rtt_us=59_000, queue_bytes=1_000_000),  # where parallel cubic streams collapse
    Scenario(name="164 ms, 1 MB queue", rtt_us=164_000, queue_bytes=1_000_000),
    Scenario(name="5 ms", rtt_us=5_000),  # where there is nothing to win and nothing must be lost
    Scenario(name="100 ms, 0.1 % loss", rtt_us=100_000, loss=0.001),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the result; out/demo.json is a list of these. Rates of links and wires are those of all paths used together."""

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


Say = Callable[[str], None]


def main(out: Path, rate_bps: int, say: Say, scenarios: tuple[Scenario, ...] = SCENARIOS) -> list[Row]:
    """Run the scenarios and write demo.json and demo.png into `out`. LabError if a transfer failed or changed a byte."""
    rows = []
    for number, scenario in enumerate(scenarios, 1):
        say(f"[{number}/{len(scenarios)}] {scenario.name}, {rate_bps / 1e6:g} Mbit/s")
        row, rate_bps = _honest(scenario, rate_bps, say)
        rows.append(row)
    write(out, rows)
    print("\n".join(table(rows)))
    print("\n".join(bars(rows)))
    print(f"{out / 'demo.json'}, {out / 'demo.png'}")
    if not all(row.sha256_ok for row in rows):
        raise LabError("bytes were changed on the way: " + ", ".join(row.scenario for row in rows if not row.sha256_ok))
    return rows


def _honest(scenario: Scenario, rate_bps: int, say: Say) -> tuple[Row, int]:
    """Measure at this rate, or at the next lower one that this machine can carry."""
    slower = iter([rate for rate in SLOWER_RATES if rate < rate_bps])
    while True:
        row = _scenario(scenario, rate_bps, say)
        if row is not None:
            return row, rate_bps
        lower = next(slower, None)
        if lower is None:
            raise LabError(f"this machine carries less than {rate_bps / 1e6:g} Mbit/s")
        say(f"  this machine cannot carry {rate_bps / 1e6:g} Mbit/s honestly; trying {lower / 1e6:g}")
        rate_bps = lower


def _scenario(scenario: Scenario, rate_bps: int, say: Say) -> Row | None:
    """One row, or None where the wire itself falls short of its arithmetic."""
    options = scenario.options(rate_bps)
    shape = options.build().shaped()[0].shape
    if shape is None:
        raise LabError("the first wire has no shape")
    built = labs.up(options)
    try:
        limit = measure.wire_limit(built, shape).of(scenario.paths)
        say(f"  wire    {limit.mbps:6.0f} Mbit/s (arithmetic {limit.formula_mbps:.0f}, TCP {limit.tcp_mbps:.0f}, UDP {limit.udp_mbps:.0f})")
        if limit.mbps < HONEST_SHARE * limit.formula_mbps:
            return None
        return _compare(built, scenario, shape, limit, say)
    finally:
        built.down()


def _compare(built: Lab, scenario: Scenario, shape: Shape, limit: WireLimit, say: Say) -> Row:
    source = built.root / "www" / "payload"
    labs.make_payload(source, int(limit.mbps * 1e6 / 8 * TRANSFER_S))
    plain, plain_ok = _fetch(built, source, PLAIN_PORT, TRANSFER_S)
    say(f"  plain   {plain.mbps:6.0f} Mbit/s")
    sos, sos_ok = _fetch(built, source, SOS_PORT, TRANSFER_S * TIME_LIMIT_FACTOR)
    say(f"  SOS     {sos.mbps:6.0f} Mbit/s, {sos.mbps / limit.mbps:.0%} of the wire")
    if not sos.complete:
        raise LabError(f"{scenario.name}: the transfer through SOS failed: {sos.error}")
    return Row(
        scenario=scenario.name,
        rtt_ms=shape.rtt_us / 1000,
        link_mbps=shape.rate_bps * scenario.paths / 1e6,
        wire_limit_mbps=round(limit.mbps, 1),
        plain_mbps=round(plain.mbps, 1),
        sos_mbps=round(sos.mbps, 1),
        ratio=round(sos.mbps / plain.mbps, 1) if plain.mbps else 0.0,
        sha256_ok=plain_ok and sos_ok,
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
    """demo.json and demo.png."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "demo.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    chart(out / "demo.png", rows)


def table(rows: list[Row]) -> list[str]:
    """Aligned columns for a terminal."""
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
    """A bar per measurement; the full width is the wire's limit."""
    lines = []
    for row in rows:
        lines.append(row.scenario)
        for label, value in (("plain", row.plain_mbps), ("SOS", row.sos_mbps)):
            filled = min(width, round(width * value / row.wire_limit_mbps))
            lines.append(f"  {label:<6}{'█' * filled}{'·' * (width - filled)} {value:.0f} Mbit/s")
    return lines


def chart(path: Path, rows: list[Row]) -> None:
    """A PNG with the same bars."""
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
