"""Compare two working trees on a noisy machine: run a command in each at once, and let only one of the two use the processors at a time.

`python bench/alternate.py --tree DIR --tree DIR [--slice S] -- COMMAND...` starts COMMAND in both folders. Every S seconds it stops all
processes of one command (SIGSTOP) and continues those of the other (SIGCONT), until both commands have ended. Both therefore measure
under the same conditions, whatever else the machine does, as long as COMMAND reports CPU time per unit of work (SYN, byte), not work per
second. A slice must be shorter than the timeouts of the measured programs. The commands' output has the number of the tree in front.

Exit status: 0 if both commands succeeded, 1 otherwise, 2 bad usage.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

SLICE_S = 0.4
"""Shorter than the second after which agents and the controller miss a peer's probes, long enough for warm caches."""


def parents() -> dict[int, int]:
    """Parent of each process of this machine, by process id."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                # The name of a process may contain spaces and parentheses; the state and the parent follow its last parenthesis.
                found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def family(ancestor: int, parent_of: dict[int, int]) -> list[int]:
    """A process and all its descendants, ancestors first."""
    found = [ancestor]
    for member in found:
        found += [pid for pid, parent in parent_of.items() if parent == member]
    return found


def send(number: signal.Signals, ancestor: int) -> None:
    """Send a signal to a process and all its descendants; processes that have ended meanwhile are skipped."""
    for pid in family(ancestor, parents()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def copy_lines(tree: int, output: IO[str]) -> None:
    """Print each line with the number of its tree."""
    for line in output:
        print(f"{tree}: {line}", end="", flush=True)


@contextmanager
def started(trees: Sequence[Path], command: Sequence[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Run the command in each tree during the block; end commands that are still running after the block."""
    ran, readers = [], []
    try:
        for number, tree in enumerate(trees, 1):
            one = subprocess.Popen(command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            ran.append(one)
            readers.append(threading.Thread(target=copy_lines, args=(number, one.stdout), daemon=True))
            readers[-1].start()
        yield ran
    finally:
        for one in ran:
            if one.poll() is None:
                send(signal.SIGCONT, one.pid)
                one.terminate()
            one.wait()
        for reader in readers:
            reader.join(timeout=5)


def alternate(ran: Sequence[subprocess.Popen[str]], slice_s: float) -> None:
    """Let one command run for a slice, then the next, until all have ended."""
    while left := [one for one in ran if one.poll() is None]:
        for one in left:
            for other in left:
                if other is not one:
                    send(signal.SIGSTOP, other.pid)
            send(signal.SIGCONT, one.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(slice_s)


def main() -> int:
    """Run the command in both trees in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", action="append", required=True, type=Path, metavar="DIR", help="working tree; give two")
    parser.add_argument("--slice", type=float, default=SLICE_S, metavar="S", help=f"seconds of a slice ({SLICE_S})")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="command with its arguments, after --")
    found = parser.parse_args()
    if len(found.tree) != 2 or not all(tree.is_dir() for tree in found.tree):
        parser.error("--tree: give two folders that exist")
    if not 0.05 <= found.slice <= 10:
        parser.error("--slice: give 0.05 to 10 seconds")
    with started(found.tree, found.command) as ran:
        alternate(ran, found.slice)
    return int(any(one.returncode != 0 for one in ran))


if __name__ == "__main__":
    sys.exit(main())
