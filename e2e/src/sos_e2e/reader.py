"""A reader's shell: runs blocks of pages with bash, byte for byte, and stops at the first command that fails."""

import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sos_e2e.pages import Block
from sos_e2e.run import CommandError, say

NOT_A_READERS = ("MAKE", "MFLAGS", "PYTEST_", "PYTHONSAFEPATH", "KUBECONFIG", "HELM_")
"""Beginnings of variables that make, pytest and the suite's caller set."""


def script(blocks: Iterable[Block], values: Mapping[str, str]) -> str:
    """Return the blocks as one script. A failed command is reported with its line in the page."""
    lines = ["set -Eeuo pipefail", *(f"export {name}={shlex.quote(value)}" for name, value in values.items())]
    for block in blocks:
        offset = block.line - len(lines) - 2  # the first line of the text follows the trap
        lines.append(f"trap 'echo \"{block.page}:$((LINENO + {offset})): exit status $?\" >&2' ERR")
        lines += block.commands.splitlines()
    return "\n".join(lines) + "\n"


def environment(folder: Path, programs: Sequence[Path] = (), base: Mapping[str, str] = os.environ, **more: str) -> dict[str, str]:
    """Return the environment of a reader's shell. `programs`: folders in front of PATH; `folder`: place of helm's own files."""
    kept = {name: value for name, value in base.items() if not name.startswith(NOT_A_READERS)}
    helm = {f"HELM_{part}_HOME": str(folder / "helm" / part.lower()) for part in ("CACHE", "CONFIG", "DATA")}
    path = os.pathsep.join([*map(str, programs), kept["PATH"]])
    return kept | helm | {"PATH": path} | more


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A reader with a working directory, an environment, and values of the reader's own."""

    folder: Path
    environment: Mapping[str, str]
    values: Mapping[str, str] = field(default_factory=dict)

    def run(self, *blocks: Block, timeout: float) -> str:
        """Run blocks in one shell, print their errors, and return their standard output. Raises CommandError with the line that failed."""
        names = ", ".join(f"{block.page}: {block.name}" for block in blocks)
        say(f"runs the lines of {names}")
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "script").write_text(script(blocks, self.values))
            ended = self._bash(place, timeout)
            out, err = ((place / name).read_text(errors="replace") for name in ("out", "err"))
        if ended:
            raise CommandError(f"{names}: {ended}\n{''.join(block.commands for block in blocks)}\n{out[-6000:]}\n{err[-6000:]}")
        print(err, end="", file=sys.stderr, flush=True)
        return out

    def _bash(self, place: Path, timeout: float) -> str:
        """Run the script in `place`, with its output in files there: a process that outlives the shell may keep a pipe open.

        Returns "" for success, else a reason. Kills all processes of the shell's session that are left.
        """
        with (place / "out").open("wb") as out, (place / "err").open("wb") as err:
            process = subprocess.Popen(
                ["bash", place / "script"], cwd=self.folder, env=dict(self.environment), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        with os.fdopen(os.pidfd_open(process.pid)) as shell:
            in_time = bool(select.select([shell], [], [], timeout)[0])
        os.killpg(process.pid, signal.SIGKILL)  # before the shell's id may belong to another process
        status = process.wait()
        if not in_time:
            return f"not done after {timeout:.0f} s"
        return f"exit status {status}" if status else ""
