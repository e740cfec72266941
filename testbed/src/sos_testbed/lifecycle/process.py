"""Processes of a lab: started in their own session, identified by pid and start time, ended within a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from sos_testbed.core.model import LabError
from sos_testbed.core.steps import Spawn
from sos_testbed.lifecycle.time_factor import limit_s

_POLL_S = 0.02
_KILL_WAIT_S = 5.0  # limit for a killed process to end: it ends immediately unless it is blocked in the kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Pid:
    """A process by pid and start time, so that a reused pid does not match."""

    number: int
    started: int  # clock ticks since boot, proc(5) field 22

    def runs(self) -> bool:
        """True while the process exists."""
        return read_pid(self.number) == self


def read_pid(number: int) -> Pid | None:
    """Running process with this pid. A zombie counts as running while it has other threads, which still hold files and locks."""
    try:
        stat = Path(f"/proc/{number}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    state, threads, started = fields[0], int(fields[17]), int(fields[19])
    return None if state == "Z" and threads <= 1 else Pid(number=number, started=started)


def this() -> Pid:
    """The current process."""
    pid = read_pid(os.getpid())
    assert pid is not None
    return pid


def start(spawn: Spawn, pid_file: Path) -> Pid:
    """Start a program and record it. Its standard input is empty, its output is appended to its log."""
    Path(spawn.log).parent.mkdir(parents=True, exist_ok=True)
    with Path(spawn.log).open("ab") as log:
        child = subprocess.Popen(
            spawn.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "NO_COLOR": "1"},  # log files must not contain color codes
            start_new_session=True,  # Ctrl-C at the terminal must not reach the lab's programs
        )
    pid = read_pid(child.pid)
    if pid is None:
        raise LabError(f"{spawn.name} ended immediately; see {spawn.log}")
    pid_file.parent.mkdir(parents=True, exist_ok=True)
    pid_file.write_text(json.dumps({"number": pid.number, "started": pid.started}), encoding="ascii")
    return pid


def find(pid_file: Path) -> Pid | None:
    """The process of a pid file, unless the pid has been reused."""
    try:
        raw = json.loads(pid_file.read_text(encoding="ascii"))
        remembered = Pid(number=int(raw["number"]), started=int(raw["started"]))
    except (OSError, ValueError, KeyError):
        return None
    return remembered if remembered.runs() else None


def stop(pid_file: Path, grace_s: float) -> None:
    """End the process of a pid file: SIGTERM, then SIGKILL after `grace_s`. No effect if it has ended."""
    pid = find(pid_file)
    if pid is not None:
        _signal(pid.number, signal.SIGTERM)
        if not _gone(pid, grace_s):
            _signal(pid.number, signal.SIGKILL)
            _gone(pid, limit_s(_KILL_WAIT_S))
    pid_file.unlink(missing_ok=True)


def ask(pid_file: Path) -> None:
    """Send SIGTERM without waiting for the process to end."""
    pid = find(pid_file)
    if pid is not None:
        _signal(pid.number, signal.SIGTERM)


def kill(pid_file: Path) -> None:
    """Send SIGKILL, as a fault injection does."""
    pid = find(pid_file)
    if pid is not None:
        _signal(pid.number, signal.SIGKILL)
        _gone(pid, limit_s(_KILL_WAIT_S))
    pid_file.unlink(missing_ok=True)


def kill_in_namespace(netns: str) -> None:
    """SIGKILL all processes of a namespace; raise LabError if a process survives."""
    deadline = time.monotonic() + limit_s(_KILL_WAIT_S)
    while pids := _pids_in(netns):
        if time.monotonic() > deadline:
            raise LabError(f"processes {pids} in {netns} still run after SIGKILL")
        for number in pids:
            _signal(number, signal.SIGKILL)
            _reap(number)
        time.sleep(_POLL_S)


def _pids_in(netns: str) -> list[int]:
    found = subprocess.run(("ip", "netns", "pids", netns), capture_output=True, text=True, check=False)
    return [number for number in map(int, found.stdout.split()) if read_pid(number) is not None]


def _signal(number: int, what: signal.Signals) -> None:
    try:
        os.kill(number, what)
    except ProcessLookupError:
        return


def _gone(pid: Pid, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while True:
        _reap(pid.number)
        if not pid.runs():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)


def _reap(number: int) -> None:
    """Reap a child of this process; init reaps other processes."""
    try:
        os.waitpid(number, os.WNOHANG)
    except ChildProcessError:
        return
