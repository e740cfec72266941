"""Main loop of the benchmarks: arguments, missing measurements, result files."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from types import FrameType

from sos_testbed.core.model import LabError

from sos_harness.relays import NotAvailableError
from sos_harness.results import figures, run_log
from sos_harness.results.figures import FAILED, NOT_AVAILABLE, OK, Found, Row, Summary
from sos_harness.results.run_log import Unit
from sos_harness.scenario import Scenario
from sos_harness.site import Site, up
from sos_harness.transfer import Emit

TOP = Path(__file__).resolve().parents[3]
INTERRUPTED = 130
FILES = 65_536
"""Limit of open files: with ten thousand sessions, a proxy has twenty thousand sockets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A benchmark: its scenarios, its measurement, and the form of its results."""

    name: str
    about: str
    scenarios: tuple[Scenario, ...]
    measure: Callable[[Site, Unit, float, Emit], None]
    table: Callable[[Sequence[Summary]], list[str]]
    said: tuple[str, ...]
    """Names of the figures to print as progress."""
    chart: Callable[[Sequence[Summary], Path], None] | None = None
    more: Callable[[Sequence[Summary]], Mapping[str, object]] = field(default=lambda _found: {})
    """Further entries of the .json."""
    runs: int = 5
    seconds: float = 10.0
    least_seconds: float = 1.0

    @property
    def schemes(self) -> list[str]:
        """Names of all schemes, in order of first appearance."""
        return list(dict.fromkeys(scheme.name for scenario in self.scenarios for scheme in scenario.schemes))


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def arguments(bench: Bench) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog=f"bench/{bench.name}/run.py", description=f"{bench.about} (root)")
    parser.add_argument("--runs", type=int, default=bench.runs, metavar="N", help=f"runs of each scheme ({bench.runs})")
    usual = f"length of a measurement ({bench.seconds:g})"
    parser.add_argument("--seconds", type=float, default=bench.seconds, metavar="S", help=usual)
    names = [scenario.name for scenario in bench.scenarios]
    parser.add_argument("--only", action="append", default=[], metavar="SCENARIO", help="may be repeated: " + ", ".join(names))
    parser.add_argument("--schemes", default="", metavar="A,B", help=", ".join(bench.schemes))
    parser.add_argument("--fresh", action="store_true", help="discard earlier measurements instead of resuming")
    parser.add_argument("--report", action="store_true", help="write table and files from existing rows, without measuring")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), metavar="DIR", help=f"folder for {bench.name}.jsonl and .json")
    found = parser.parse_args()
    found.schemes = [name for name in found.schemes.split(",") if name]
    refuse_unknown(parser, "--only", found.only, names)
    refuse_unknown(parser, "--schemes", found.schemes, bench.schemes)
    if found.runs < 1 or found.seconds < bench.least_seconds:
        parser.error(f"--runs must be at least 1, and --seconds at least {bench.least_seconds:g}")
    return found


def refuse_unknown(parser: argparse.ArgumentParser, option: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Refuse unknown names, because a typo would otherwise select no measurement."""
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"{option}: unknown {', '.join(unknown)}; choose from {', '.join(known)}")


def settings(seconds: float) -> str:
    """Identify comparable rows by the commit and the length of a measurement."""
    git = ("git", "-C", str(TOP))
    commit = subprocess.run((*git, "rev-parse", "--short=12", "HEAD"), capture_output=True, text=True, check=False).stdout.strip()
    changed = subprocess.run((*git, "status", "--porcelain", "-uno"), capture_output=True, text=True, check=False).stdout.strip()
    return f"{commit or 'no commit'}{'+changes' if changed else ''}, {seconds:g} s"


class Log:
    """The .jsonl file, to which each row is appended immediately."""

    def __init__(self, path: Path, settings: str, fresh: bool) -> None:
        self.path = path
        self.settings = settings
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)

    def rows(self) -> list[Row]:
        """Rows measured with these settings."""
        return run_log.parse(self.path.read_text(encoding="utf-8").splitlines(), self.settings) if self.path.exists() else []

    def append(self, row: Row) -> None:
        """Append a row. First end a truncated last line, which a power failure may have left."""
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n") and self.path.stat().st_size > 0
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + run_log.encode(row) + "\n")


def run_all(bench: Bench, left: Sequence[Unit], seconds: float, log: Log) -> None:
    """Run the missing measurements, with the network of one scenario at a time."""
    began, done_s, all_s = time.monotonic(), 0.0, sum(unit.takes_s(seconds) for unit in left)
    places = {scenario.name: f"{number}/{len(bench.scenarios)}" for number, scenario in enumerate(bench.scenarios, 1)}
    for scenario, group in groupby(left, key=lambda unit: unit.scenario):
        say(f"[{places[scenario.name]}] {scenario.title}: setting up the network")
        with up(scenario, say) as site:
            for unit in group:
                spent = time.monotonic() - began
                pace = spent / done_s if done_s else 1.0
                say(f"{scenario.name} {unit.scheme.name}, run {unit.run} (about {(all_s - done_s) * pace / 60:.0f} min left)")
                run_unit(bench, site, unit, seconds, log)
                done_s += unit.takes_s(seconds)


def run_unit(bench: Bench, site: Site, unit: Unit, seconds: float, log: Log) -> None:
    """Measure one scheme once; record a failure as a row, too."""

    def emit(label: str, measured: Found) -> None:
        row = figures.row(unit.blank(label, log.settings), measured)
        log.append(row)
        values = (f"{name} {value:g}" for name in bench.said if (value := getattr(row, name)) is not None)
        say(f"  {label}: " + (", ".join(values) if row.status == OK else row.status))

    try:
        bench.measure(site, unit, seconds, emit)
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


def write(bench: Bench, out: Path, wanted: Sequence[Unit], log: Log) -> tuple[list[Summary], list[Path]]:
    """Write the .json of all wanted rows, and the chart if the benchmark has one; return summaries and files."""
    found, files = figures.summaries(run_log.wanted_rows(wanted, log.rows())), [log.path, out / f"{bench.name}.json"]
    machine = {"kernel": os.uname().release, "cpus": os.cpu_count()}
    document = {"settings": log.settings, "machine": machine, "rows": [each.encode() for each in found], **bench.more(found)}
    files[1].write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if bench.chart is not None:
        files.append(out / f"{bench.name}.png")
        bench.chart(found, files[2])
    return found, files


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that the network is taken down."""
    raise KeyboardInterrupt


def guarded(name: str, act: Callable[[], None]) -> int:
    """Run `act` and return the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        act()
    except LabError as error:
        say(f"{name}: {error}")
        return 1
    except KeyboardInterrupt:
        say(f"{name}: interrupted; the same command resumes from here")
        return INTERRUPTED
    return 0


def allow_files(wanted: int) -> None:
    """Raise the limit of open files for child processes to `wanted`, or to the hard limit."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in {resource.RLIM_INFINITY} and hard < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
            return
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(bench: Bench) -> int:
    """Run the benchmark: measure, write files, print the table."""
    a = arguments(bench)
    log = Log(a.out / f"{bench.name}.jsonl", settings(a.seconds), a.fresh)
    wanted = run_log.units([scenario for scenario in bench.scenarios if not a.only or scenario.name in a.only], a.schemes, a.runs)
    allow_files(FILES)

    def act() -> None:
        left = run_log.left(wanted, log.rows())
        takes = sum(unit.takes_s(a.seconds) for unit in left) / 60
        say(f"{len(wanted) - len(left)} of {len(wanted)} measurements exist ({log.settings}); the missing ones take about {takes:.0f} min")
        if not a.report:
            run_all(bench, left, a.seconds, log)
        found, files = write(bench, a.out, wanted, log)
        print("\n".join(bench.table(found)))
        print("\n" + ", ".join(str(file) for file in files))

    return guarded(bench.name, act)
