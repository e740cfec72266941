"""Execution of steps; each undo is written to a journal on disk before its step is executed.

Every interrupted lab can therefore be taken down from its folder, even after SIGKILL: the journal is replayed backwards, and
undos of steps that were not executed change nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sos_testbed.core.model import LabError
from sos_testbed.core.steps import (
    DeleteNamespace,
    Do,
    MakeFolder,
    RemoveTree,
    Run,
    Spawn,
    Step,
    Stop,
    Undo,
    WriteFile,
    encode_undo,
    essential,
    parse_undo,
)
from sos_testbed.lifecycle import process
from sos_testbed.lifecycle.time_factor import limit_s

COMMAND_TIMEOUT_S = 60.0  # limit for one command; on an idle machine, every command of a lab takes less than a second
LOCK_TIMEOUT_S = 60.0

Report = Callable[[str], None]


def silent(_line: str) -> None:
    """Discard a progress report."""


class Runner:
    """Execution and undo of steps in one lab's state folder."""

    def __init__(self, root: Path, report: Report = silent) -> None:
        self.root = root
        self._report = report
        self._title = ""

    def perform(self, steps: Iterable[Step]) -> None:
        """Execute steps in order; raise LabError with the first failure. Executed steps stay in force until `undo_all`."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "journal.jsonl").open("ab", buffering=0) as journal:
            for step in steps:
                if step.title != self._title:
                    self._title = step.title
                    self._report(step.title)
                journal.write(json.dumps(encode_undo(step.undo)).encode() + b"\n")
                self._do(step)

    def undo_all(self) -> list[str]:
        """Replay the journal backwards and remove the folder; return one line for each failed undo."""
        problems = []
        for undo in reversed(essential(list(self._journal()))):
            try:
                self._undo(undo)
            except (LabError, OSError) as error:
                problems.append(str(error))
        if not problems:
            shutil.rmtree(self.root, ignore_errors=True)
        return problems

    def pid_file(self, name: str) -> Path:
        """Pid file of a spawned program."""
        return self.root / "pids" / name

    def _journal(self) -> Iterator[Undo]:
        try:
            lines = (self.root / "journal.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield parse_undo(json.loads(line))
            except (ValueError, TypeError):
                continue  # last line truncated by a power failure: its step was not executed

    def _do(self, step: Step) -> None:
        do: Do = step.do
        if isinstance(do, Run):
            run(do.argv, what=step.title)
        elif isinstance(do, MakeFolder):
            Path(do.path).mkdir(parents=True, exist_ok=True)
        elif isinstance(do, WriteFile):
            write_file(Path(do.path), do.text, do.mode)
        else:
            self._spawn(do)

    def _spawn(self, spawn: Spawn) -> None:
        process.start(spawn, self.pid_file(spawn.name))

    def _undo(self, undo: Undo) -> None:
        if isinstance(undo, Run):
            subprocess.run(undo.argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=limit_s(COMMAND_TIMEOUT_S))
        elif isinstance(undo, Stop):
            process.stop(self.pid_file(undo.name), limit_s(undo.grace_s))
        elif isinstance(undo, DeleteNamespace):
            self._delete_namespace(undo.name)
        elif isinstance(undo, RemoveTree):
            _remove(Path(undo.path))

    def _delete_namespace(self, name: str) -> None:
        if not Path("/run/netns", name).exists():
            return
        process.kill_in_namespace(name)
        run(("ip", "netns", "del", name), what=f"delete {name}")


def run(argv: tuple[str, ...], *, what: str, timeout_s: float = COMMAND_TIMEOUT_S, stdin: str = "") -> str:
    """Run a command and return its output; raise LabError with the last line of its error output."""
    limit = limit_s(timeout_s)
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False, timeout=limit)
    except FileNotFoundError:
        raise LabError(f"{what}: {argv[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"{what}: still running after {limit:.0f} s: {' '.join(argv)}") from None
    if done.returncode != 0:
        complaint = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()[-1]
        raise LabError(f"{what}: {complaint} ({' '.join(argv)})")
    return done.stdout


def write_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.new")
    half.write_text(text, encoding="utf-8")
    half.chmod(mode)
    half.replace(path)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore a second Ctrl-C or SIGTERM during a clean-up. No effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextmanager
def lock(path: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Lock a lab exclusively. The kernel releases the lock when the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + limit_s(timeout_s)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LabError(f"{path.parent.name} is in use by another command") from None
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
