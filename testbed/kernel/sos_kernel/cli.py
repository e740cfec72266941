"""Arguments and course of `make test-kernel`."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sos_kernel import boot, debian, initramfs, report, scenarios
from sos_kernel.debian import Kernel, KernelError
from sos_kernel.machine import Accelerator, Machine, settings
from sos_kernel.scenarios import Group

TOP = Path(__file__).resolve().parents[3]
HERE = TOP / "testbed" / "kernel"
TESTS = "testbed/tests/scenarios"
RESULTS = "/run/sos-kernel"  # folder of the results in the guest (init.sh)
COLLECT_TIMEOUT_S = 300
MACHINES = 2
"""Virtual machines at once, if this machine has as many processors: an emulated one has one processor."""
CONTROLLER = """
from sos_controller.openflow import accept, framework
from sos_controller import app, reload
from sos_controller.api import northbound
"""
"""Import of the modules that a controller imports after its start."""
RECORDS = "test_testbed_datapath.py"
"""Module with the test that records the datapath."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Arguments of a run."""

    kernels: tuple[str, ...]
    groups: tuple[Group, ...]
    accelerator: str
    limit_s: float
    out: Path


class Ended(NamedTuple):
    """End of a virtual machine: the accelerator with which it ran to its end, or the reason why it did not."""

    accelerator: Accelerator | None
    why: str


def say(line: str) -> None:
    """Print progress."""
    print(line, flush=True)


def parse(arguments: Sequence[str]) -> Choice:
    """Read the command line and the list of scenarios."""
    parser = argparse.ArgumentParser(prog="make test-kernel ARGS=...", description=__doc__)
    parser.add_argument("--kernel", action="append", choices=sorted(debian.SUITES), help="kernel to test; default: 6.1")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="tests and groups whose name contains this word")
    parser.add_argument("--seeded-fault", action="store_true", help="only the test with a wrong flow entry, which must fail")
    parser.add_argument("--accelerator", choices=("auto", "kvm", "tcg"), default="auto", help="KVM where it boots, else TCG (default)")
    parser.add_argument("--minutes", type=float, default=15, help="time limit of each virtual machine (15)")
    parser.add_argument("--out", type=Path, default=TOP / "out" / "kernel", help="folder of the results (out/kernel)")
    given = parser.parse_args(arguments)
    if given.seeded_fault:
        groups: tuple[Group, ...] = (Group(name="seeded fault", tests=(scenarios.SEEDED,)),)
    else:
        groups = scenarios.select(scenarios.parse((HERE / "scenarios.txt").read_text(encoding="utf-8")), given.only)
    kernels = tuple(dict.fromkeys(given.kernel or ("6.1",)))
    return Choice(kernels=kernels, groups=groups, accelerator=given.accelerator, limit_s=given.minutes * 60, out=given.out.resolve())


def main(arguments: Sequence[str]) -> int:
    """Test the chosen kernels one after the other; 0 if all scenarios passed on all of them."""
    choice = parse(arguments)
    failed = 0
    for name in choice.kernels:
        try:
            failed += test(name, choice)
        except KernelError as error:
            say(f"kernel {name}: {error}")
            failed += 1
    return 1 if failed else 0


def test(name: str, choice: Choice) -> int:
    """Run the scenarios on one kernel, and print the results; return the number of failures."""
    if platform.machine() != "x86_64":
        raise KernelError(f"this machine is {platform.machine()}; the virtual machine is x86_64")
    if os.geteuid() != 0:
        raise KernelError("root is needed, because the virtual machine reads all files of this machine")
    began = time.monotonic()
    collect(choice.groups)
    kernel = debian.fetch(name, Path.home() / ".cache" / "sos" / "kernels")
    folder = choice.out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    initial = initramfs.pack(kernel, folder, HERE / "guest.sh")
    lanes = scenarios.lanes(choice.groups, min(MACHINES, os.cpu_count() or 1))
    say(f"kernel: {kernel.package} {kernel.version}, {sum(len(group.tests) for group in choice.groups)} entries of scenarios.txt")
    with ThreadPoolExecutor(len(lanes)) as pool:
        ended = list(pool.map(lambda number: drive(kernel, initial, lanes[number], folder_of(folder, number), choice), range(len(lanes))))
    return conclude(kernel, folder, lanes, ended, time.monotonic() - began)


def folder_of(folder: Path, number: int) -> Path:
    """Folder that a virtual machine writes."""
    return folder / f"machine-{number}"


def drive(kernel: Kernel, initial: Path, groups: Sequence[Group], folder: Path, choice: Choice) -> Ended:
    """Run groups in one virtual machine."""
    folder.mkdir()
    machine = Machine(image=kernel.image, initial=initial, results=folder, processors=max(1, (os.cpu_count() or 1) // MACHINES))
    try:
        tried = boot.accelerators(choice.accelerator)
        return Ended(boot.run(machine, tried, choice.limit_s, lambda chosen: prepare(folder, groups, chosen), say), "")
    except KernelError as error:
        return Ended(None, str(error))


def collect(groups: Sequence[Group]) -> None:
    """Collect the tests on this machine: KernelError for a test that does not exist.

    This also writes the byte code of the modules of tests and controller, whose compilation takes minutes on an emulated processor.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    tests = [f"{TESTS}/{test}" for group in groups for test in group.tests]
    for argv in ([sys.executable, "-m", "pytest", "-q", "--collect-only", *tests], [sys.executable, "-c", CONTROLLER]):
        done = subprocess.run(argv, cwd=TOP, env=environment, capture_output=True, text=True, check=False, timeout=COLLECT_TIMEOUT_S)
        if done.returncode != 0:
            raise KernelError(f"python {argv[1]} {argv[2]}: {(done.stdout + done.stderr).strip()}")


def prepare(folder: Path, groups: Sequence[Group], accelerator: Accelerator) -> None:
    """Write the files that guest.sh reads."""
    (folder / "settings").write_text(settings(environment(accelerator)), encoding="utf-8")
    for number, group in enumerate(groups):
        words = scenarios.arguments(group, TESTS, f"{RESULTS}/{report_of(number)}")
        (folder / f"group-{number}.arguments").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")


def report_of(number: int) -> str:
    """File name of the report of a machine's group."""
    return f"group-{number}.xml"


def environment(accelerator: Accelerator) -> dict[str, str]:
    """Environment of the scenarios: that of this process as far as labs and tests read it, the datapath and the time factor."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("SOS_BIN_") or name == "CARGO_TARGET_DIR"}
    fixed = {"TOP": str(TOP), "PYTHON": sys.executable, "SOS_DATAPATH": "System", "SOS_TIME_FACTOR": str(accelerator.time_factor)}
    return {**kept, **fixed, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # hypothesis alone is a third of pytest's start


def conclude(kernel: Kernel, folder: Path, lanes: Sequence[Sequence[Group]], ended: Sequence[Ended], seconds: float) -> int:
    """Print the results and write them to `result.txt`; return the number of failures."""
    places = [
        (group, folder_of(folder, number) / report_of(index)) for number, lane in enumerate(lanes) for index, group in enumerate(lane)
    ]
    recorded = any(RECORDS in test for group, _ in places for test in group.tests)
    reports = {group.name: _read(place) for group, place in places}
    verdict = report.judge(reports, recorded=recorded, ended="; ".join(each.why for each in ended if each.why))
    versions = {"kernel": kernel.release, "open vswitch": switch_version()}
    kinds = sorted({f"{each.accelerator.name}, time factor {each.accelerator.time_factor}" for each in ended if each.accelerator})
    machine = f"{len(lanes)} of qemu, {' and '.join(kinds) or 'none of which booted and ended in time'}"
    used = os.times()  # unlike the duration, CPU time does not depend on other work of the machine
    duration = f"{seconds:.0f} s, with {used.children_user + used.children_system:.0f} s of CPU time"
    facts = {**versions, "package": f"{kernel.package} {kernel.version}", "machine": machine, "duration": duration}
    text = report.lines(verdict, facts, versions)
    for line in text:
        say(line)
    (folder / "result.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    return verdict.failed


def switch_version() -> str:
    """Version of ovs-vswitchd, which is the same in the virtual machine."""
    told = subprocess.run(("ovs-vswitchd", "--version"), capture_output=True, text=True, check=True).stdout
    return told.splitlines()[0].rpartition(" ")[2]


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
