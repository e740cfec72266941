"""Fuzzes every parser of network input: `python scripts/fuzz.py [--runs N] [--seed N] [--cpu-seconds S] [TARGET ...]`.

A million cases each unless told; with `--cpu-seconds` that again with the next seed, and what was learned, until so much CPU time is used.

Controller targets are in controller-image/fuzz, those of agents and nodes in agent-image/fuzz; both are driven by libFuzzer, so a run
is repeated by its seed, and what was found is a file that reproduces it. Ends with one line and status 1 if anything was found.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
OUT = TOP / "out" / "fuzz"
CONTROLLER = TOP / "controller-image" / "fuzz"
AGENT = TOP / "agent-image" / "fuzz"
HOST = "x86_64-unknown-linux-gnu"
BUILT = TOP / "agent-image" / "target" / "fuzz"
CONTROLLER_TARGETS = ("document", "stream", "engine", "switch", "frame", "lldp", "order", "beacon")
SLOWEST = ("controller-stream", "agent-records", "controller-document", "agent-session")
"""Minutes each, where the others take seconds. They begin first, so that the last to end is a short one."""
COVERAGE = (
    *("-Cpasses=sancov-module", "-Cllvm-args=-sanitizer-coverage-level=4", "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters"),
    *(
        "-Cllvm-args=-sanitizer-coverage-pc-table",
        "-Cllvm-args=-sanitizer-coverage-trace-compares",
        "-Cdebug-assertions",
        "--cfg",
        "fuzzing",
    ),
)
"""What cargo-fuzz passes to the compiler, without a sanitizer: those need nightly, and our parsers have no unsafe code."""
LIMITS = ("-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0")
"""A case that takes a minute or 2 GiB is a find, on a busy machine too."""


@dataclass(frozen=True)
class Target:
    """One function that is fed with bytes."""

    name: str
    argv: tuple[str, ...]
    seeds: Path
    max_bytes: int


def targets(build: bool) -> Iterator[Target]:
    """All targets, programs built and seeds written."""
    seeds = OUT / "seeds"
    subprocess.run([sys.executable, str(CONTROLLER / "seeds.py"), str(seeds)], check=True)
    for name in CONTROLLER_TARGETS:
        yield Target(f"controller-{name}", (sys.executable, str(CONTROLLER / "run.py"), name), seeds / name, 2_048)
    if build:
        environment = {**os.environ, "RUSTFLAGS": " ".join(COVERAGE)}
        command = ["cargo", "build", "-q", "--release", "--locked", "--features", "fuzzing", "--target", HOST, "--target-dir", str(BUILT)]
        subprocess.run(command, cwd=AGENT, env=environment, check=True)
    for source in sorted((AGENT / "fuzz_targets").glob("*.rs")):
        program = BUILT / HOST / "release" / source.stem
        yield Target(f"agent-{source.stem}", (str(program),), AGENT / "corpus" / source.stem, 4_096)


@dataclass(frozen=True)
class Round:
    """What one run of libFuzzer did."""

    well: bool
    cases: int
    cpu_s: float


def run(target: Target, runs: int, seed: int, cpu_s: float) -> bool:
    """Fuzz one target, a round at least and until so much CPU time is used; whether nothing was found."""
    began, cases, used = time.monotonic(), 0, 0.0
    for number in itertools.count(seed):
        done = fuzz(target, runs, number)
        cases, used = cases + done.cases, used + done.cpu_s
        if not done.well or used >= cpu_s:
            break
    took = time.monotonic() - began
    print(f"{'ok' if done.well else 'FOUND'} {target.name}: {cases:,} cases in {took:.0f} s, {used:.0f} s of CPU time", flush=True)
    return done.well


def fuzz(target: Target, runs: int, seed: int) -> Round:
    """One round. What it finds is printed, with the command that finds it again."""
    folder, found = OUT / "corpus" / target.name, OUT / "found"
    for made in (folder, found):
        made.mkdir(parents=True, exist_ok=True)
    arguments = (f"-runs={runs}", f"-seed={seed}", f"-max_len={target.max_bytes}", f"-artifact_prefix={found}/{target.name}-", *LIMITS)
    command = [*target.argv, *arguments, str(folder), str(target.seeds)]
    with (OUT / f"{target.name}.log").open("wb") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONSAFEPATH": "1"})
        _, status, usage = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    text = (OUT / f"{target.name}.log").read_text(errors="replace")
    done = int(next((line.split()[-1] for line in text.splitlines() if "number_of_executed_units" in line), "0"))
    well = started.returncode == 0 and done >= runs
    if not well:
        print(text[-3_000:], f"again: {' '.join(command)}", sep="\n", flush=True)
    return Round(well, done, usage.ru_utime + usage.ru_stime)


def main() -> int:
    """All targets, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cpu-seconds", type=float, default=0.0)
    parser.add_argument("targets", nargs="*")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    wanted = arguments.targets
    build = not wanted or any(name.startswith("agent") for name in wanted)
    chosen = [t for t in targets(build) if not wanted or any(t.name.startswith(name) for name in wanted)]
    chosen.sort(key=lambda target: SLOWEST.index(target.name) if target.name in SLOWEST else len(SLOWEST))
    if not chosen:
        parser.error(f"no target begins with {' or '.join(wanted)}: they are called {', '.join(t.name for t in targets(build=False))}")
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        well = list(pool.map(lambda target: run(target, arguments.runs, arguments.seed, arguments.cpu_seconds), chosen))
    least = f"{arguments.cpu_seconds:.0f} s of CPU time" if arguments.cpu_seconds else f"{arguments.runs:,} cases"
    print(f"fuzz: {sum(well)} of {len(well)} targets met nothing in {least}, seed {arguments.seed}", flush=True)
    return 0 if well and all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
