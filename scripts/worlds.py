"""Compile generated worlds at their schemas' limits, and let every consumer read the compiled documents.

    .venv/bin/python scripts/worlds.py --count 10000 [--first SEED] [--jobs N]

Objects pass the admission of their CRDs and the compiler. No object, node or address may make the compiler raise, or cause an exception
that only sos_compile.admission.fault_isolation catches. The controller (its --check and its engine), the node process and the agent must
accept the documents. Documents for nodes and agents are read by the programs' own parsers: examples of their crates read one document
per line. A refused document is a finding, because the object that caused it should have been refused with a condition. Prints a summary
line; exit status 1 if there are findings. Each finding has the seed that regenerates its world.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "compile" / "tests"))

from limits import limits_world  # noqa: E402 - of the compiler's tests
from sos_compile import Compiled, compile_world  # noqa: E402
from sos_controller.core.engine import Engine  # noqa: E402
from sos_controller.core.events import ConfigChanged  # noqa: E402
from sos_controller.core.state import Identity  # noqa: E402
from sos_controller.files.config import ConfigError, parse  # noqa: E402

SHOWN = 20  # printed findings; more findings add no information
BATCH = 100  # worlds whose documents one Rust process reads
READERS = {"node": ("sos-node", "node-configs"), "agent": ("sos-agent", "agent-configs")}


@dataclass(frozen=True)
class Line:
    """A document for a node or agent, as one line of JSON, and the seed of its world."""

    seed: int
    text: str


def programs() -> dict[str, Path]:
    """Build the examples that read documents for nodes and agents: part -> program."""
    found = {}
    for part, (package, example) in READERS.items():
        command = ("cargo", "build", "-q", "--locked", "-p", package, "--example", example)
        subprocess.run(command, cwd=TOP / "agent-image", check=True)
        target = Path(os.environ.get("CARGO_TARGET_DIR", TOP / "agent-image" / "target"))
        found[part] = target / "debug" / "examples" / example
    return found


def documents(compiled: Compiled, part: str) -> Iterator[str]:
    """Compiled documents for nodes or agents."""
    found = compiled.nodes.values() if part == "node" else compiled.agents.values()
    found = [{**each, "include": [compiled.parts[name] for name in each["include"]]} if "include" in each else each for each in found]
    return (json.dumps(document, ensure_ascii=False, separators=(",", ":")) for document in found)


def examine(seed: int, lines: Mapping[str, list[Line]], written: Counter[str]) -> Iterator[str]:
    """Findings of one world; its documents for nodes and agents are added to `lines`, and all its documents are counted in `written`."""
    try:
        compiled = compile_world(limits_world(seed))
    except Exception:
        yield f"seed {seed}: the compilation raised\n{traceback.format_exc()}"
        return
    yield from (f"seed {seed}: {fault.key.kind} {fault.key.name[:40]}: {fault.message}\n{fault.trace}" for fault in compiled.faults)
    for name, document in compiled.controllers.items():
        yield from (f"seed {seed}: controller {name}: {said}" for said in _put_in_force(json.dumps(document).encode()))
    for part in READERS:
        lines[part] += [Line(seed, text) for text in documents(compiled, part)]
    written.update(controller=len(compiled.controllers), node=len(compiled.nodes), agent=len(compiled.agents))


def _put_in_force(document: bytes) -> Iterator[str]:
    try:
        Engine(Identity(1, 1, 1, b"key")).handle(ConfigChanged(parse(document)), 1.0)
    except ConfigError as error:
        yield f"refuses its configuration: {error}"
    except Exception:
        yield f"cannot put its configuration in force\n{traceback.format_exc()}"


def read_by(part: str, program: Path, lines: list[Line]) -> Iterator[str]:
    """Documents that a node or agent refuses."""
    package = READERS[part][0]
    given = "\n".join(line.text for line in lines)
    done = subprocess.run([program], input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"{package} ended with {done.returncode}: {done.stderr[-2000:]}"
    for said in done.stdout.splitlines():
        number, _, words = said.partition(": ")
        yield f"seed {lines[int(number)].seed}: {package} does not take its configuration: {words}"


def batch(readers: Mapping[str, Path], seeds: range) -> tuple[list[str], Counter[str]]:
    """Findings of several worlds, and the number of their documents."""
    lines: dict[str, list[Line]] = {part: [] for part in READERS}
    written: Counter[str] = Counter()
    found = [text for seed in seeds for text in examine(seed, lines, written)]
    found += [text for part, program in readers.items() if lines[part] for text in read_by(part, program, lines[part])]
    return found, written


def main(arguments: list[str] | None = None) -> int:
    """Compile the worlds, and print findings and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="worlds (default 300)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first world (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="parallel processes (default: one per core)")
    given = parser.parse_args(arguments)
    end, began = given.first + given.count, time.monotonic()
    batches = [range(seed, min(seed + BATCH, end)) for seed in range(given.first, end, BATCH)]
    written: Counter[str] = Counter()
    found: list[str] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for texts, counted in pool.map(partial(batch, programs()), batches):
            written.update(counted)
            found += texts
            for text in texts[: max(0, SHOWN - len(found) + len(texts))]:
                print(text, flush=True)
    read = ", ".join(f"{count} {part}-configs" for part, count in sorted(written.items()))
    print(f"{given.count} worlds, {read}: {len(found)} findings in {time.monotonic() - began:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
