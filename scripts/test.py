"""Runs the test suites, or those named, and ends with one line: `N passed, N failed`.

Suites run side by side, and of those that mostly wait several files at a time: two on two cores, so that what has sockets, timers and
switches to serve is not kept waiting for seconds. Slow tests run when they are named (`make test-long`), as do those that measure and
want the machine to themselves (the same), and those that take minutes (`make test-soak`, `make test-compiled`). A suite that cannot be run,
runs no test or ends badly without a failed test counts as one failure: nothing is lost in a sum. Each suite's output is kept in
out/test/<suite>.log. Ctrl-C ends what runs, labs and API servers included.

SOS_REPEAT_FAILED=N repeats failed tests once, alone, after all suites: only in suites with at most N failures, and all of them must pass.
Tests that pass alone are listed as unstable and counted as passed. CI on shared cores sets the variable; nightly runs do not.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from sos_testbed.lifecycle import lab as labs

TOP = Path(__file__).resolve().parents[1]
OUT = TOP / "out" / "test"
SUITE_TIMEOUT_S = 2400
GRACE_S = 60  # for what a suite has to take down when it is interrupted
AT_ONCE = max(1, min(3, os.cpu_count() or 1))  # suites, and files of one
NICE = 10  # of what computes, beside what has sockets, timers and switches to serve
_TESTS_NAMESPACE = re.compile(r"(sosn-\w+-[0-9a-f]{8}|c[0-9a-f]{6}-\w+)\b")  # sos-node's and the controller's tests
_CARGO_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed;", re.MULTILINE)
_CARGO_FAILED = re.compile(r"^test (\S+) (?:- should panic )?\.\.\. FAILED$", re.MULTILINE)
_PYTEST_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", re.MULTILINE)


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
    nice: int = 0
    repeat: Callable[[str], Suite | None] = lambda _output: None
    """Maps the suite's output to a suite of its failed tests only; None if the output names none."""


@dataclass(frozen=True)
class Ended:
    """How a suite's command ended, and its seconds of CPU with those of the children it waited for."""

    status: int
    cpu_s: float


def pytest_suite(folder: str, *arguments: str, name: str = "", files_at_once: int = 1, nice: int = 0) -> Suite:
    """The tests of one Python package; each has its own pytest configuration. `arguments` choose some of them."""
    name = name or folder
    report = OUT / f"{name}.xml"
    # a file's tests share a lab, an API server or a controller
    workers = () if files_at_once == 1 else ("-n", str(files_at_once), "--dist", "loadfile")
    options = ("--color=no", "-p", "no:cacheprovider")
    argv = (sys.executable, "-m", "pytest", folder, *arguments, *workers, *options, f"--junitxml={report}")

    def repeat(output: str) -> Suite | None:
        failed = failed_pytest(output)
        second_report = OUT / f"{name}-repeated.xml"
        again = (sys.executable, "-m", "pytest", *failed, *options, f"--junitxml={second_report}")
        return Suite(f"{name}-repeated", again, lambda _output: count_junit(second_report)) if failed else None

    return Suite(name, argv, lambda _output: count_junit(report), nice, repeat)


def compiled_suite() -> Suite:
    """The controller's tests against what scripts/compiled.sh made, but for those that fuzz its sources or put a class in place of one."""
    left_out = ("fuzz", "engine_bugs")
    ignored = (f"--ignore=controller-image/tests/process/test_controller_{name}.py" for name in left_out)
    source = pytest_suite("controller-image", *ignored, name="controller-compiled")
    modules = TOP / "out" / "compiled" / "site"
    environment = ("env", f"PYTHONPATH={modules}", f"SOS_COMPILED={modules}")

    def repeat(output: str) -> Suite | None:
        failed = source.repeat(output)
        return replace(failed, argv=(*environment, *failed.argv)) if failed else None

    return replace(source, argv=(*environment, *source.argv), repeat=repeat)


def cargo_suite(name: str, folder: str) -> Suite:
    """The tests of one Cargo workspace, unit, integration and documentation."""
    argv = ("cargo", "test", "--locked", "--no-fail-fast", "--workspace", "--manifest-path", f"{folder}/Cargo.toml")

    def repeat(output: str) -> Suite | None:
        failed = failed_cargo(output)
        return Suite(f"{name}-repeated", (*argv, "--", "--exact", *failed), count_cargo) if failed else None

    return Suite(name, argv, count_cargo, NICE, repeat)


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


def failed_pytest(output: str) -> tuple[str, ...]:
    """Node ids of failed tests, and of tests whose set-up or teardown failed, from pytest's summary."""
    return tuple(dict.fromkeys(_PYTEST_FAILED.findall(output)))


def failed_cargo(output: str) -> tuple[str, ...]:
    """Names of failed tests of `cargo test`."""
    return tuple(dict.fromkeys(_CARGO_FAILED.findall(output)))


class Processes:
    """The suites that run, each the leader of a process group: what is late or interrupted is ended with all it started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._ending = False

    def start(self, suite: Suite) -> subprocess.Popen[str]:
        """Start a suite; OSError if its program is not there, InterruptedError once `end` was called."""
        with self._lock:
            if self._ending:
                raise InterruptedError("interrupted")
            process = subprocess.Popen(
                ("nice", "-n", str(suite.nice), *suite.argv),
                cwd=TOP,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, "PYTHONSAFEPATH": "1"},
                start_new_session=True,
            )
            self._running.add(process)
        return process

    def wait(self, process: subprocess.Popen[str]) -> Ended:
        """Collect a process whose output has ended."""
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its number stays taken while a signal may be on its way
        with self._lock:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self._running.discard(process)
        return Ended(process.returncode, used.ru_utime + used.ru_stime)

    def signal(self, process: subprocess.Popen[str], number: signal.Signals) -> None:
        """Send a signal to all of a process's group, if it still runs."""
        with self._lock:
            if process in self._running:
                os.killpg(process.pid, number)

    def end(self) -> None:
        """Interrupt all that run, so that they take down what they have up; kill what has not ended after a minute."""
        with self._lock:
            self._ending = True
        for process in self._left():
            self.signal(process, signal.SIGINT)
        deadline = time.monotonic() + GRACE_S
        while self._left() and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in self._left():
            self.signal(process, signal.SIGKILL)

    def _left(self) -> set[subprocess.Popen[str]]:
        with self._lock:
            return set(self._running)


PROCESSES = Processes()


@dataclass(frozen=True)
class Result:
    """One suite's run."""

    suite: Suite
    count: Count
    output: str


def run(suite: Suite, *, live: bool) -> Result:
    """Run a suite; its output goes to its log, and to the terminal as it comes (`live`) or in one piece at its end."""
    print(f"== {suite.name}: {' '.join(suite.argv[:4])} ...", flush=True)
    started = time.monotonic()
    output, ended = execute(suite, live=live)
    counted = suite.count(output)
    verdict = "" if live else output
    if counted.failed == 0 and (ended.status != 0 or counted.passed == 0):
        verdict += f"{suite.name}: status {ended.status} and {counted.passed} passed: counted as a failure\n"
        counted = Count(counted.passed, 1)
    took = time.monotonic() - started
    print(
        f"{verdict}== {suite.name}: {counted.passed} passed, {counted.failed} failed in {took:.0f} s ({ended.cpu_s:.0f} s of CPU)",
        flush=True,
    )
    return Result(suite, counted, output)


def repeat_failed(result: Result, limit: int) -> tuple[Count, tuple[str, ...]]:
    """Run a suite's failed tests once more, alone; returns the final count, and the tests that passed the second time.

    More than `limit` failures point to a fault, not to a busy machine, and are not repeated. If one test fails again, all failures count.
    """
    failed = result.count.failed
    second = result.suite.repeat(result.output) if 0 < failed <= limit else None
    if second is None:
        return result.count, ()
    count = run(second, live=True).count
    if count.failed or count.passed != failed:
        return result.count, ()
    names = failed_pytest(result.output) or failed_cargo(result.output)
    return Count(result.count.passed + failed, 0), names


def execute(suite: Suite, *, live: bool) -> tuple[str, Ended]:
    """A suite's output, kept in its log too, and how it ended; one over its time is interrupted, then killed."""
    lines: list[str] = []
    with (OUT / f"{suite.name}.log").open("w", encoding="utf-8") as log:

        def emit(line: str) -> None:
            lines.append(line)
            log.write(line)
            if live:
                print(line, end="", flush=True)

        try:
            process = PROCESSES.start(suite)
        except OSError as error:
            emit(f"{error}\n")
            return "".join(lines), Ended(127, 0.0)
        limits = [
            threading.Timer(SUITE_TIMEOUT_S, PROCESSES.signal, (process, signal.SIGINT)),
            threading.Timer(SUITE_TIMEOUT_S + GRACE_S, PROCESSES.signal, (process, signal.SIGKILL)),
        ]
        for limit in limits:
            limit.daemon = True
            limit.start()
        assert process.stdout is not None
        for line in process.stdout:
            emit(line)
        ended = PROCESSES.wait(process)
        if limits[0].finished.is_set():
            emit(f"{suite.name}: interrupted after {SUITE_TIMEOUT_S} s\n")
        for limit in limits:
            limit.cancel()
    return "".join(lines), ended


def side_by_side(suites: list[Suite]) -> list[Result]:
    """Run suites a few at a time, in their order."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            return list(pool.map(lambda suite: run(suite, live=False), suites))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            PROCESSES.end()
            raise


def sweep() -> None:
    """Remove the labs and namespaces of tests that were interrupted: those with a test's name and nothing that runs in them."""
    labs.sweep(lambda line: print(line, file=sys.stderr, flush=True))
    listed = subprocess.run(("ip", "netns", "list"), capture_output=True, text=True, check=False).stdout
    for name in [line.split()[0] for line in listed.splitlines() if _TESTS_NAMESPACE.match(line)]:
        if not subprocess.run(("ip", "netns", "pids", name), capture_output=True, text=True, check=False).stdout.strip():
            subprocess.run(("ip", "netns", "del", name), check=False)


def interrupt(_number: int, _frame: object) -> None:
    """SIGTERM, and SIGINT where it was ignored, are Ctrl-C."""
    raise KeyboardInterrupt


def main() -> int:
    """All suites, or those named on the command line."""
    together = [
        # The longest begins; what computes runs niced beside what waits.
        pytest_suite("operator", "-m", "not slow and not long", files_at_once=2, nice=NICE),
        pytest_suite("testbed", "-m", "not slow and not measures and not long", files_at_once=AT_ONCE),
        pytest_suite("controller-image"),  # eventlet and execnet do not go together
        cargo_suite("agent-image", "agent-image"),
        pytest_suite("compile", nice=NICE),
        cargo_suite("linkemu", "testbed/linkemu"),
        cargo_suite("ofbench", "bench/controller"),
        cargo_suite("agent-fuzz", "agent-image/fuzz"),  # what fuzzing has learned, once more
    ]
    slow = [
        pytest_suite("operator", "-m", "slow and not long", name="operator-slow", files_at_once=2, nice=NICE),
        pytest_suite("testbed", "-m", "slow and not measures", name="testbed-slow", files_at_once=AT_ONCE),
    ]
    alone = [
        pytest_suite("testbed", "-m", "measures", name="testbed-measures"),
        pytest_suite("operator", "-m", "long", name="operator-long"),
        pytest_suite("testbed", "-m", "long", name="testbed-long"),
        compiled_suite(),
    ]
    names = [suite.name for suite in together + slow + alone]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(names))
    wanted = set(parser.parse_args().suites) or {suite.name for suite in together}
    if unknown := sorted(wanted - set(names)):
        parser.error(f"no such suite: {', '.join(unknown)} (there are {', '.join(names)})")
    OUT.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # handled here, so that suites do not inherit it ignored from a background job
        signal.signal(number, interrupt)
    try:
        results = side_by_side([suite for suite in together + slow if suite.name in wanted])
        results += [run(suite, live=True) for suite in alone if suite.name in wanted]
        final = [repeat_failed(result, int(os.environ.get("SOS_REPEAT_FAILED", "0"))) for result in results]
    except KeyboardInterrupt:
        PROCESSES.end()
        sweep()
        print("interrupted: nothing is counted", file=sys.stderr)
        return 130
    for name in [name for _, names in final for name in names]:
        print(f"unstable: {name} failed beside other tests and passed alone", flush=True)
    counts = [count for count, _ in final]
    passed, failed = sum(count.passed for count in counts), sum(count.failed for count in counts)
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed or not counts else 0


if __name__ == "__main__":
    sys.exit(main())
