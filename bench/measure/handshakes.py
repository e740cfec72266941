"""Handshakes through switches and controller, compared with plain TCP: first byte of 1 kB at 100 ms, and a full accept queue.

    bench/measure/handshakes.py [--rounds 25] [--examples DIR] [--out out/bench] [--check]
                                              (root; from the top of the repository, with .venv/bin/python)

Each round measures a plain, a known and an unknown server. A known server has accepted on its port before (`accept: Learned`); each
connection to an unknown server uses a new port. The busy server has a backlog of 0 and accepts nothing for 6 s after its first connection.
With --check the exit status is 1 if a target is missed: a first byte later than its share of plain TCP's (TARGETS), or a busy server that
does not serve all clients of the covered port.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sos_testbed.core.topology import PathOptions
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab, Options
from sos_testbed.measurements import measure

TOP = Path(__file__).resolve().parents[2]
PROGRAM = TOP / "testbed" / "tests" / "scenarios" / "programs" / "handshakes.py"
PATH = PathOptions(rate_bps=1_000_000_000, rtt_us=100_000)
PLAIN, KNOWN, UNKNOWN = 6301, 5301, 5302
"""Uncovered port, covered port, and first of the covered ports that are used once."""
MOST_ROUNDS = 90
"""Number of covered ports of the example from UNKNOWN on."""
BUSY = {"plain": 6400, "covered": 5399}
BUSY_S, AT_ONCE, END_S = 6.0, 4, 120.0
TARGETS = {"known": 0.51, "unknown": 1.02}
"""Latest first byte, relative to plain TCP: one round trip of two, and both, each with 2 % for processing."""


def argv(lab: Lab, host: str, *words: object) -> tuple[str, ...]:
    """Command line of the scenario tests' program at a host."""
    return lab.exec_argv(host, (sys.executable, str(PROGRAM), *map(str, words)))


def ask(lab: Lab, *words: object) -> list[dict[str, Any]]:
    """Run the program at the client; return its report of each connection."""
    done = subprocess.run(argv(lab, "client", *words), capture_output=True, text=True, check=True, timeout=END_S)
    seen: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return seen


@contextmanager
def serving(lab: Lab, port: int, backlog: int = 100, busy_s: float = 0) -> Iterator[None]:
    """Run a server that answers with 1 kB, during the block."""
    program = subprocess.Popen(argv(lab, "server", "serve", port, backlog, busy_s))
    try:
        measure.wait_listening(lab, "server", port)
        yield
    finally:
        program.kill()
        program.wait()


def settle(lab: Lab) -> None:
    """Wait until connections to a known server are accepted immediately. For ten seconds after arming, each session waits until the
    switches' caches have expired (docs/adr/0020)."""
    deadline = time.monotonic() + END_S
    while ask(lab, "each", measure.address(lab, "server"), KNOWN, 1)[0]["connect_s"] > PATH.rtt_us / 2e6:
        if time.monotonic() > deadline:
            raise SystemExit(f"no connection to a known server was answered within half a round trip for {END_S:g} s")


def first_bytes(lab: Lab, rounds: int) -> dict[str, list[float]]:
    """Seconds from before the connect to the first byte of the answer, by kind of server."""
    server, found = measure.address(lab, "server"), dict[str, list[float]](plain=[], known=[], unknown=[])
    with serving(lab, PLAIN), serving(lab, KNOWN):
        settle(lab)
        for number in range(rounds):
            with serving(lab, UNKNOWN + number):
                for kind, port in (("plain", PLAIN), ("known", KNOWN), ("unknown", UNKNOWN + number)):
                    (seen,) = ask(lab, "each", server, port, 1)
                    if seen["error"]:
                        raise SystemExit(f"{kind} server, port {port}: {seen['error']}")
                    found[kind].append(seen["first_byte_s"])
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return found


def busy(lab: Lab, port: int) -> dict[str, Any]:
    """Run concurrent clients of a server with an accept queue of one; return the number of served clients and the longest wait."""
    with serving(lab, port, 0, BUSY_S):
        seen = ask(lab, "connect", measure.address(lab, "server"), port, AT_ONCE)
    return {
        "served": sum(not one["error"] for one in seen),
        "of": AT_ONCE,
        "errors": sorted(one["error"] for one in seen if one["error"]),
        "longestS": max(one["first_byte_s"] for one in seen),
    }


def missed(medians: dict[str, float], queues: dict[str, dict[str, Any]]) -> list[str]:
    """Targets that the results miss, one line each."""
    ratios = {kind: medians[kind] / medians["plain"] for kind in TARGETS}
    late = {kind: ratio for kind, ratio in ratios.items() if ratio > TARGETS[kind]}
    found = [f"{kind} server: first byte {ratio:.3f} of plain, target {TARGETS[kind]}" for kind, ratio in late.items()]
    served = queues["covered"]["served"]
    return found + ([f"busy server, covered: {served} of {AT_ONCE} served"] if served < AT_ONCE else [])


def main() -> None:
    """Measure, print the results, write handshakes.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25, help=f"connections of each kind, at most {MOST_ROUNDS} (default 25)")
    parser.add_argument("--examples", type=Path, help="folder of custom resources for the topology (default: the topology's own)")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    parser.add_argument("--check", action="store_true", help="end with status 1 if a target is missed")
    arguments = parser.parse_args()
    if not 1 <= arguments.rounds <= MOST_ROUNDS:
        parser.error(f"--rounds: 1 to {MOST_ROUNDS}")
    examples = (arguments.examples.resolve(),) if arguments.examples else ()
    lab = labs.up(Options(path1=PATH, path2=PATH, name="handshakes", examples=examples), print)
    try:
        labs.wait_ready(lab, lab.documents)
        found = first_bytes(lab, arguments.rounds)
        queues = {kind: busy(lab, port) for kind, port in BUSY.items()}
    finally:
        lab.down()
    medians = {kind: statistics.median(seen) for kind, seen in found.items()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = {"firstByteMs": {kind: [1e3 * s for s in seen] for kind, seen in found.items()}, "busyServer": queues}
    (arguments.out / "handshakes.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for kind, median in medians.items():
        print(f"{kind}: first byte of 1 kB {1e3 * median:.1f} ms (median of {arguments.rounds}), {median / medians['plain']:.3f} of plain")
    for kind, queue in queues.items():
        print(f"busy server, {kind}: {queue['served']} of {queue['of']} served, the last after {queue['longestS']:.1f} s {queue['errors']}")
    targets = missed(medians, queues)
    for line in targets:
        print(f"missed: {line}")
    if arguments.check and targets:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
