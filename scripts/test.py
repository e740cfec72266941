"""Runs every test suite, or those named, and ends with one line: `N passed, N failed`.

Suites that mostly wait run side by side; the testbed's have the machine to themselves, after them, two files at a time and at last
one by one what is marked `alone`. A suite that cannot be run, runs no test or ends badly without a failed test counts as one failure:
nothing is lost in a sum. Each suite's output is kept in out/test/<suite>.log.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
OUT = TOP / "out" / "test"
SUITE_TIMEOUT_S = 2400
SIDE_BY_SIDE = 3  # two wait for sockets and timers while one computes
WORKERS = ("-n", "2", "--dist", "loadfile")  # a file's tests share a lab, an API server or a controller
_CARGO_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed;", re.MULTILINE)


@dataclass(frozen=True)
class Count:
    """How a suite went."""

    passed: int
    failed: int


@dataclass(frozen=True)
class Suite:
    """One command and how its result is counted from its output."""

    name: str
    argv: tuple[str, ...]
    count: Callable[[str], Count]


def pytest_suite(folder: str, *arguments: str, name: str = "") -> Suite:
    """The tests of one Python package; each has its own pytest configuration. `arguments` choose some of them."""
    name = name or folder
    report = OUT / f"{name}.xml"
    report.unlink(missing_ok=True)
    argv = (sys.executable, "-m", "pytest", folder, *arguments, "--color=no", "-p", "no:cacheprovider", f"--junitxml={report}")
    return Suite(name, argv, lambda _output: count_junit(report))


def cargo_suite(name: str, folder: str) -> Suite:
    """The tests of one Cargo workspace, unit, integration and documentation."""
    argv = ("cargo", "test", "--locked", "--no-fail-fast", "--workspace", "--manifest-path", f"{folder}/Cargo.toml")
    return Suite(name, argv, count_cargo)


def count_junit(report: Path) -> Count:
    """Passed and failed from a JUnit file; an error in set-up is a failure; a skipped test has not passed."""
    try:
        cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314 - written by our own pytest
    except (OSError, ET.ParseError):
        return Count(0, 0)
    failed = sum(1 for case in cases if case.find("failure") is not None or case.find("error") is not None)
    skipped = sum(1 for case in cases if case.find("skipped") is not None)
    return Count(len(cases) - failed - skipped, failed)


def count_cargo(output: str) -> Count:
    """Sums of cargo's `test result:` lines."""
    found = [(int(passed), int(failed)) for passed, failed in _CARGO_RESULT.findall(output)]
    return Count(sum(passed for passed, _ in found), sum(failed for _, failed in found))


def run(suite: Suite, *, live: bool) -> Count:
    """Run a suite; its output goes to its log, and to the terminal as it comes (`live`) or in one piece at its end."""
    print(f"== {suite.name}: {' '.join(suite.argv[:4])} ...", flush=True)
    started = time.monotonic()
    output, status = execute(suite, live=live)
    counted = suite.count(output)
    verdict = "" if live else output
    if counted.failed == 0 and (status != 0 or counted.passed == 0):
        verdict += f"{suite.name}: status {status} and {counted.passed} passed: counted as a failure\n"
        counted = Count(counted.passed, 1)
    took = time.monotonic() - started
    print(f"{verdict}== {suite.name}: {counted.passed} passed, {counted.failed} failed in {took:.0f} s", flush=True)
    return counted


def execute(suite: Suite, *, live: bool) -> tuple[str, int]:
    """Output and status; a suite over its time is ended with its children."""
    lines: list[str] = []
    deadline = time.monotonic() + SUITE_TIMEOUT_S
    with (OUT / f"{suite.name}.log").open("w", encoding="utf-8") as log:

        def emit(line: str) -> None:
            lines.append(line)
            log.write(line)
            if live:
                print(line, end="", flush=True)

        try:
            process = subprocess.Popen(
                ("timeout", "--kill-after=30", str(SUITE_TIMEOUT_S), *suite.argv),
                cwd=TOP,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, "PYTHONSAFEPATH": "1"},
            )
        except OSError as error:
            emit(f"{error}\n")
            return "".join(lines), 127
        assert process.stdout is not None
        for line in process.stdout:
            emit(line)
        status = process.wait()
        if time.monotonic() > deadline:
            emit(f"{suite.name}: ended after {SUITE_TIMEOUT_S} s\n")
    return "".join(lines), status


def main() -> int:
    """All suites, or those named on the command line."""
    OUT.mkdir(parents=True, exist_ok=True)
    patient = [  # the longest first
        pytest_suite("operator", *WORKERS),
        pytest_suite("controller-image"),  # eventlet and execnet do not go together
        cargo_suite("agent-image", "agent-image"),
        cargo_suite("ofbench", "bench/controller"),
        pytest_suite("compile"),
    ]
    measuring = [
        cargo_suite("linkemu", "testbed/linkemu"),
        pytest_suite("testbed", "-m", "not alone", *WORKERS),
        pytest_suite("testbed", "-m", "alone", name="testbed-alone"),
    ]
    names = [suite.name for suite in patient + measuring]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(names))
    wanted = set(parser.parse_args().suites) or set(names)
    if unknown := sorted(wanted - set(names)):
        parser.error(f"no such suite: {', '.join(unknown)} (there are {', '.join(names)})")
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        counts = list(pool.map(lambda suite: run(suite, live=False), [suite for suite in patient if suite.name in wanted]))
    counts += [run(suite, live=True) for suite in measuring if suite.name in wanted]
    passed, failed = sum(count.passed for count in counts), sum(count.failed for count in counts)
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed or not counts else 0


if __name__ == "__main__":
    sys.exit(main())
