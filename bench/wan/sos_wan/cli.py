"""Arguments, the loop, and the files it writes."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import FrameType

from sos_testbed.model import LabError

from sos_wan import book, figures, report
from sos_wan.book import Unit
from sos_wan.figures import FAILED, NOT_AVAILABLE, OK, Outcome, Row
from sos_wan.scenarios import SCENARIOS, SCHEMES
from sos_wan.site import Site, up
from sos_wan.transfer import NotAvailableError, measure

TOP = Path(__file__).resolve().parents[3]
RUNS, SECONDS = 5, 20.0
LEAST_SECONDS = 5.0  # less has no steady state
INTERRUPTED = 130


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    """What the user wants."""
    parser = argparse.ArgumentParser(prog="bench/wan/run.py", description="SOS beside other ways to fill a long fat network (root)")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"how often each scheme is measured ({RUNS})")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help=f"how long a transfer takes ({SECONDS:g})")
    parser.add_argument(
        "--only", action="append", default=[], metavar="SCENARIO", help="repeat for more: " + ", ".join(s.name for s in SCENARIOS)
    )
    parser.add_argument("--schemes", default="", metavar="A,B", help=", ".join(s.name for s in SCHEMES))
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before instead of going on from there")
    parser.add_argument("--report", action="store_true", help="measure nothing: write table and files of what there is")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), metavar="DIR", help="where wan.jsonl, wan.json and wan.png go")
    found = parser.parse_args()
    found.schemes = [name for name in found.schemes.split(",") if name]
    refuse_unknown(parser, "--only", found.only, [scenario.name for scenario in SCENARIOS])
    refuse_unknown(parser, "--schemes", found.schemes, [scheme.name for scheme in SCHEMES])
    if found.runs < 1 or found.seconds < LEAST_SECONDS:
        parser.error(f"at least one run, of {LEAST_SECONDS:g} s at least")
    return found


def refuse_unknown(parser: argparse.ArgumentParser, option: str, names: Iterable[str], known: Sequence[str]) -> None:
    """A typing error is not a scenario without rows."""
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"{option}: no {', '.join(unknown)}; there are {', '.join(known)}")


def settings(seconds: float) -> str:
    """What rows must have in common to be compared: the sources and the length of a transfer."""
    git = ("git", "-C", str(TOP))
    commit = subprocess.run((*git, "rev-parse", "--short=12", "HEAD"), capture_output=True, text=True, check=False).stdout.strip()
    changed = subprocess.run((*git, "status", "--porcelain", "-uno"), capture_output=True, text=True, check=False).stdout.strip()
    return f"{commit or 'no commit'}{'+changes' if changed else ''}, {seconds:g} s"


class Log:
    """wan.jsonl: a row is in it as soon as it was measured."""

    def __init__(self, path: Path, settings: str, fresh: bool) -> None:
        self.path = path
        self.settings = settings
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)

    def rows(self) -> list[Row]:
        """What was measured with these settings."""
        return book.parse(self.path.read_text(encoding="utf-8").splitlines(), self.settings) if self.path.exists() else []

    def append(self, row: Row) -> None:
        """Remember a row. A line that a power cut has left unfinished is ended first."""
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n") and self.path.stat().st_size > 0
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + book.encode(row) + "\n")


def run_all(left: Sequence[Unit], seconds: float, log: Log) -> None:
    """Measure what is left, a scenario's network up at a time."""
    began, done_s, all_s = time.monotonic(), 0.0, sum(unit.takes_s(seconds) for unit in left)
    for scenario, group in groupby(left, key=lambda unit: unit.scenario):
        say(f"{scenario.title}: putting up the network")
        with up(scenario, say) as site:
            for unit in group:
                spent = time.monotonic() - began
                pace = spent / done_s if done_s else 1.0
                say(f"{scenario.name} {unit.scheme.name}, run {unit.run} (about {(all_s - done_s) * pace / 60:.0f} min left)")
                run_unit(site, unit, seconds, log)
                done_s += unit.takes_s(seconds)


def run_unit(site: Site, unit: Unit, seconds: float, log: Log) -> None:
    """Measure one scheme once; what goes wrong with it is a row, too."""

    def emit(label: str, outcome: Outcome) -> None:
        row = figures.row(unit.blank(label, log.settings), outcome, seconds)
        log.append(row)
        say(f"  {label}: " + (f"{row.mbps_total:.0f} Mbit/s, {row.mbps_steady:.0f} steady" if row.status == OK else row.status))

    try:
        measure(site, unit.scheme, seconds, emit)
    except NotAvailableError as error:
        _absent(unit, f"{NOT_AVAILABLE}: {error}", log)
    except LabError as error:
        _absent(unit, f"{FAILED}: {error}", log)


def _absent(unit: Unit, status: str, log: Log) -> None:
    have = {row.key for row in log.rows() if row.status == OK}
    for blank in (unit.blank(label, log.settings) for label in unit.scheme.labels):
        if blank.key not in have:
            log.append(replace(blank, status=status))
    say(f"  {unit.scheme.name}: {status}")


def write(out: Path, wanted: Sequence[Unit], log: Log) -> list[figures.Summary]:
    """wan.json and wan.png of what is wanted and was measured."""
    found = figures.summaries(book.wanted_rows(wanted, log.rows()))
    machine = {"kernel": os.uname().release, "cpus": os.cpu_count()}
    document = {"settings": log.settings, "machine": machine, "rows": [each.encode() for each in found]}
    (out / "wan.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    report.chart(found, out / "wan.png")
    return found


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM and SIGHUP are Ctrl-C: everything is taken down."""
    raise KeyboardInterrupt


def guarded(act: Callable[[], None]) -> int:
    """Run it; the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        act()
    except LabError as error:
        say(f"wan: {error}")
        return 1
    except KeyboardInterrupt:
        say("wan: interrupted; the same command goes on from here")
        return INTERRUPTED
    return 0


def main() -> int:
    """Measure, write, print."""
    a = arguments()
    log = Log(a.out / "wan.jsonl", settings(a.seconds), a.fresh)
    wanted = book.units([scenario for scenario in SCENARIOS if not a.only or scenario.name in a.only], a.schemes, a.runs)

    def act() -> None:
        left = book.left(wanted, log.rows())
        say(f"{len(wanted) - len(left)} of {len(wanted)} measurements are there ({log.settings})")
        if not a.report:
            run_all(left, a.seconds, log)
        found = write(a.out, wanted, log)
        print("\n".join(report.table(found)))
        print(f"\n{log.path}, {a.out / 'wan.json'}, {a.out / 'wan.png'}")

    return guarded(act)
