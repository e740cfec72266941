"""Run the test suites, or the named suites; the last line is `N passed, N failed`.

Suites run in parallel, and so do the files of suites that mostly wait: two on two cores, so that sockets, timers and switches are not
delayed by seconds. Suites that run only by name: slow tests, and measuring tests, which need an idle machine (`make test-long`); tests that
take minutes (`make test-soak`); the compiled controller (`make test-compiled`); crates for arm64 (`make test-arm64`). A suite that cannot
start, runs no test, or fails without a failed test counts as one failure. Each suite's output is stored in out/test/<suite>.log. Ctrl-C
ends all running suites, labs and API servers.

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
GRACE_S = 60  # time for an interrupted suite to clean up
AT_ONCE = max(1, min(3, os.cpu_count() or 1))  # parallel suites, and parallel files of a suite
NICE = 10  # niceness of suites that compute, so that suites with sockets, timers and switches have precedence
# Integration tests of agent-image without network namespaces, switches or thousands of emulated sessions
ARM64_TESTS = ("card", "codec", "vectors", "core", "cards")
ARM64_CASES = 32  # of a property, instead of 256: an emulated process takes ten times as long
ARM64_SKIPPED = (
    "netns::sock_diag",  # qemu's emulation of a process has no netlink sockets of this kind
    "the_kernel_reports_path_statistics",  # it returns four bytes of TCP_INFO
    "an_error_contains_the_message_of_the_program",  # it emulates vfork by fork, so a program that does not exist seems to start
)
# of the tests of sos-node, of the controller and of sos-agent
_TESTS_NAMESPACE = re.compile(r"(sosn-\w+-[0-9a-f]{8}|c[0-9a-f]{6}-\w+|sa[0-9a-f]+-\w+)\b")
_CARGO_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed;", re.MULTILINE)
_CARGO_FAILED = re.compile(r"^test (\S+) (?:- should panic )?\.\.\. FAILED$", re.MULTILINE)
_PYTEST_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Count:
    """Numbers of passed and failed tests."""

    passed: int
    failed: int


@dataclass(frozen=True)
class Suite:
    """A command, and the function that counts its test results from its output."""

    name: str
    argv: tuple[str, ...]
    count: Callable[[str], Count]
    nice: int = 0
    repeat: Callable[[str], Suite | None] = lambda _output: None
    """Maps the suite's output to a suite of its failed tests only; None if the output names none."""


@dataclass(frozen=True)
class Ended:
    """Exit status of a suite's command, and CPU seconds of the command and of the children that it waited for."""

    status: int
    cpu_s: float


def pytest_suite(folder: str, *arguments: str, name: str = "", files_at_once: int = 1, nice: int = 0) -> Suite:
    """Suite of one Python package, with the package's own pytest configuration; `arguments` select some of its tests."""
    name = name or folder
    report = OUT / f"{name}.xml"
    # a file stays on one worker, because its tests share a lab, an API server or a controller
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
    """Suite of the controller's tests with the modules of scripts/compiled.sh, without tests that fuzz the sources or replace a class."""
    left_out = ("process/test_controller_fuzz", "process/test_controller_engine_bugs", "services/test_controller_replan_extent")
    ignored = (f"--ignore=controller-image/tests/{name}.py" for name in left_out)
    source = pytest_suite("controller-image", *ignored, name="controller-compiled")
    modules = TOP / "out" / "compiled" / "site"
    environment = ("env", f"PYTHONPATH={modules}", f"SOS_COMPILED={modules}")

    def repeat(output: str) -> Suite | None:
        failed = source.repeat(output)
        return replace(failed, argv=(*environment, *failed.argv)) if failed else None

    return replace(source, argv=(*environment, *source.argv), repeat=repeat)


def cargo_suite(name: str, folder: str) -> Suite:
    """Suite of one Cargo workspace: unit, integration and documentation tests."""
    argv = ("cargo", "test", "--locked", "--no-fail-fast", "--workspace", "--manifest-path", f"{folder}/Cargo.toml")

    def repeat(output: str) -> Suite | None:
        failed = failed_cargo(output)
        return Suite(f"{name}-repeated", (*argv, "--", "--exact", *failed), count_cargo) if failed else None

    return Suite(name, argv, count_cargo, NICE, repeat)


def arm64_suite() -> Suite:
    """Suite of the agent's crates for arm64, run by qemu's emulation of a process: without the tests that build network namespaces or
    switches, because the emulation has neither eBPF nor all messages of netlink."""
    target, variables = "aarch64-unknown-linux-gnu", "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU"
    programs = (f"{variables}_LINKER=aarch64-linux-gnu-gcc", f"{variables}_RUNNER=qemu-aarch64 -L /usr/aarch64-linux-gnu")
    few = f"PROPTEST_CASES={ARM64_CASES}"
    tests = tuple(word for name in ARM64_TESTS for word in ("--test", name))
    cargo = ("cargo", "test", "--locked", "--no-fail-fast", "--workspace", "--manifest-path", "agent-image/Cargo.toml", "--target", target)
    skipped = tuple(word for name in ARM64_SKIPPED for word in ("--skip", name))
    return Suite("agent-image-arm64", ("env", few, *programs, *cargo, "--lib", "--bins", *tests, "--", *skipped), count_cargo, NICE)


def count_junit(report: Path) -> Count:
    """Count the tests of a JUnit file. An error in set-up counts as failed, a skipped test as neither passed nor failed."""
    try:
        cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314 - written by our own pytest
    except (OSError, ET.ParseError):
        return Count(0, 0)
    failed = sum(1 for case in cases if case.find("failure") is not None or case.find("error") is not None)
    skipped = sum(1 for case in cases if case.find("skipped") is not None)
    return Count(len(cases) - failed - skipped, failed)


def count_cargo(output: str) -> Count:
    """Sum cargo's `test result:` lines."""
    found = [(int(passed), int(failed)) for passed, failed in _CARGO_RESULT.findall(output)]
    return Count(sum(passed for passed, _ in found), sum(failed for _, failed in found))


def failed_pytest(output: str) -> tuple[str, ...]:
    """Node ids of failed tests, and of tests whose set-up or teardown failed, from pytest's summary."""
    return tuple(dict.fromkeys(_PYTEST_FAILED.findall(output)))


def failed_cargo(output: str) -> tuple[str, ...]:
    """Names of failed tests of `cargo test`."""
    return tuple(dict.fromkeys(_CARGO_FAILED.findall(output)))


class Processes:
    """Running suites. Each leads a process group, so that a late or interrupted suite ends together with all its processes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._ending = False

    def start(self, suite: Suite) -> subprocess.Popen[str]:
        """Start a suite. Raises OSError if its program does not exist, InterruptedError after a call of `end`."""
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
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # the pid stays reserved while `signal` may use it
        with self._lock:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self._running.discard(process)
        return Ended(process.returncode, used.ru_utime + used.ru_stime)

    def signal(self, process: subprocess.Popen[str], number: signal.Signals) -> None:
        """Send a signal to a process's group, if the process still runs."""
        with self._lock:
            if process in self._running:
                os.killpg(process.pid, number)

    def end(self) -> None:
        """Interrupt all running suites, so that they clean up; kill suites that have not ended after GRACE_S."""
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
    """Result of one suite."""

    suite: Suite
    count: Count
    output: str


def run(suite: Suite, *, live: bool) -> Result:
    """Run a suite; write its output to its log, and to the terminal immediately (`live`) or at the suite's end."""
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
    """Execute a suite and log its output; return output and exit status. At its time limit a suite is interrupted, then killed."""
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
    """Run suites in the given order, at most AT_ONCE in parallel."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            return list(pool.map(lambda suite: run(suite, live=False), suites))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            PROCESSES.end()
            raise


def sweep() -> None:
    """Remove labs of interrupted tests, and network namespaces with a test's name and without processes."""
    labs.sweep(lambda line: print(line, file=sys.stderr, flush=True))
    listed = subprocess.run(("ip", "netns", "list"), capture_output=True, text=True, check=False).stdout
    for name in [line.split()[0] for line in listed.splitlines() if _TESTS_NAMESPACE.match(line)]:
        if not subprocess.run(("ip", "netns", "pids", name), capture_output=True, text=True, check=False).stdout.strip():
            subprocess.run(("ip", "netns", "del", name), check=False)


def interrupt(_number: int, _frame: object) -> None:
    """Handle SIGTERM, and SIGINT even if it was ignored at the start, like Ctrl-C."""
    raise KeyboardInterrupt


def main() -> int:
    """Run the suites of `together`, or the suites named on the command line."""
    together = [
        # The longest suite starts first; suites that compute are niced beside suites that wait.
        pytest_suite("operator", "-m", "not slow and not long", files_at_once=2, nice=NICE),
        pytest_suite("testbed", "-m", "not slow and not measures and not long", files_at_once=AT_ONCE),
        pytest_suite("controller-image"),  # no parallel files: eventlet is incompatible with execnet (pytest-xdist)
        cargo_suite("agent-image", "agent-image"),
        pytest_suite("compile", nice=NICE),
        pytest_suite("e2e/tests/unit", name="e2e-unit", nice=NICE),
        cargo_suite("linkemu", "testbed/linkemu"),
        cargo_suite("ofbench", "bench/controller"),
        cargo_suite("agent-fuzz", "agent-image/fuzz"),  # replays the fuzzing corpus
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
        arm64_suite(),
    ]
    names = [suite.name for suite in together + slow + alone]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(names))
    wanted = set(parser.parse_args().suites) or {suite.name for suite in together}
    if unknown := sorted(wanted - set(names)):
        parser.error(f"no such suite: {', '.join(unknown)} (there are {', '.join(names)})")
    OUT.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # otherwise suites of a background job would inherit an ignored SIGINT
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
