"""Execution, undo and journal of steps. These tests need no root: their steps touch files and start `sleep`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sos_testbed.core.model import LabError
from sos_testbed.core.steps import MakeFolder, RemoveTree, Run, Spawn, Step, Stop, WriteFile, parse_undo
from sos_testbed.lifecycle import process
from sos_testbed.lifecycle.runner import Runner, lock, run, write_file


def touch(path: Path, trace: Path) -> Step:
    return Step(title="touch", do=Run(argv=("touch", str(path))), undo=Run(argv=("sh", "-c", f"rm {path}; echo {path.name} >>{trace}")))


def sleeper(root: Path, name: str = "sleeper") -> Step:
    return Step(title=name, do=Spawn(name=name, argv=("sleep", "300"), log=str(root / f"{name}.log")), undo=Stop(name=name))


def test_steps_are_undone_completely_in_reverse_order(tmp_path: Path) -> None:
    runner, trace = Runner(tmp_path / "lab"), tmp_path / "trace"
    runner.perform(touch(tmp_path / name, trace) for name in "abc")
    assert all((tmp_path / name).exists() for name in "abc")
    assert runner.undo_all() == []
    assert trace.read_text().split() == ["c", "b", "a"]
    assert not (tmp_path / "lab").exists()


def test_journal_has_the_undo_before_the_step_runs(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "lab")
    step = Step(
        title="look", do=Run(argv=("cp", str(tmp_path / "lab" / "journal.jsonl"), str(tmp_path / "seen"))), undo=RemoveTree(path="x")
    )
    runner.perform([step])
    assert [parse_undo(json.loads(line)) for line in (tmp_path / "seen").read_text().splitlines()] == [step.undo]


def test_failed_step_is_reported_and_undone(tmp_path: Path) -> None:
    runner, trace = Runner(tmp_path / "lab"), tmp_path / "trace"
    bad = Step(
        title="the bad one", do=Run(argv=("sh", "-c", "echo reason >&2; exit 3")), undo=Run(argv=("touch", str(tmp_path / "undone")))
    )
    with pytest.raises(LabError, match="the bad one: reason"):
        runner.perform([touch(tmp_path / "a", trace), bad])
    assert runner.undo_all() == []
    assert (tmp_path / "undone").exists()
    assert not (tmp_path / "a").exists()


def test_undoing_twice_changes_nothing(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "lab")
    runner.perform([Step(title="f", do=MakeFolder(path=str(tmp_path / "f")), undo=RemoveTree(path=str(tmp_path / "f"))), sleeper(tmp_path)])
    assert runner.undo_all() == []
    assert runner.undo_all() == []


def test_truncated_journal_line_does_not_prevent_other_undos(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "lab")
    runner.perform([sleeper(tmp_path)])
    with (tmp_path / "lab" / "journal.jsonl").open("a") as journal:
        journal.write('{"kind": "Sto')
    pid = process.find(runner.pid_file("sleeper"))
    assert pid is not None
    assert runner.undo_all() == []
    assert process.read_pid(pid.number) is None


def test_programs_can_be_stopped_by_a_process_that_is_not_their_parent(tmp_path: Path) -> None:
    """Start a program in one process and stop it in another, as `lab down` does."""
    code = (
        "import sys; from pathlib import Path; from sos_testbed.lifecycle.runner import Runner; from sos_testbed.core.steps import *\n"
        f"root = Path({str(tmp_path)!r})\n"
        "do = Spawn(name='s', argv=('sleep', '300'), log=str(root / 'log'))\n"
        "Runner(root / 'lab').perform([Step(title='s', do=do, undo=Stop(name='s'))])\n"
    )
    subprocess.run((sys.executable, "-c", code), check=True)
    runner = Runner(tmp_path / "lab")
    pid = process.find(runner.pid_file("s"))
    assert pid is not None
    assert runner.undo_all() == []
    assert process.read_pid(pid.number) is None


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    argv = (
        sys.executable,
        "-c",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(300)",
    )
    log, pid_file = tmp_path / "log", tmp_path / "pid"
    pid = process.start(Spawn(name="deaf", argv=argv, log=str(log)), pid_file)
    deadline = time.monotonic() + 10
    while "up" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.stop(pid_file, grace_s=0.1)
    assert process.read_pid(pid.number) is None


def test_program_counts_as_running_until_its_last_thread_ends(tmp_path: Path) -> None:
    """End the main thread only. In a killed switch, other threads still hold the lock of the pid file, which blocks the next switch."""
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(300,)).start()\n"
        "print('up', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    log, pid_file = tmp_path / "log", tmp_path / "pid"
    pid = process.start(Spawn(name="threads", argv=(sys.executable, "-c", code), log=str(log)), pid_file)
    stat = Path(f"/proc/{pid.number}/stat")
    deadline = time.monotonic() + 10
    while " Z " not in stat.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert " Z " in stat.read_text(), "the main thread has ended"
    assert process.find(pid_file) == pid
    process.kill(pid_file)
    assert process.read_pid(pid.number) is None


def test_process_with_a_reused_pid_receives_no_signal(tmp_path: Path) -> None:
    """Write the test's own pid with a different start time, which identifies a different process."""
    pid_file = tmp_path / "pid"
    pid_file.write_text(json.dumps({"number": os.getpid(), "started": 1}))
    survived = []
    before = signal.signal(signal.SIGTERM, lambda *_: survived.append("asked"))
    try:
        process.stop(pid_file, grace_s=0.1)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert survived == []


def test_files_are_written_atomically_with_their_mode(tmp_path: Path) -> None:
    Runner(tmp_path / "lab").perform(
        [Step(title="w", do=WriteFile(path=str(tmp_path / "a" / "b"), text="new", mode=0o600), undo=RemoveTree(path=str(tmp_path / "a")))]
    )
    assert (tmp_path / "a" / "b").read_text() == "new"
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o600
    write_file(tmp_path / "a" / "b", "newer")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_error_names_a_missing_program() -> None:
    with pytest.raises(LabError, match="no-such-program is not installed"):
        run(("no-such-program",), what="trying")


def test_command_that_does_not_end_times_out() -> None:
    with pytest.raises(LabError, match="still running after"):
        run(("sleep", "30"), what="waiting", timeout_s=0.1)


def test_lock_has_one_holder_and_is_released_at_the_end_of_the_block(tmp_path: Path) -> None:
    with lock(tmp_path / "lock"), pytest.raises(LabError, match="in use"), lock(tmp_path / "lock", timeout_s=0.1):
        pass
    with lock(tmp_path / "lock", timeout_s=0.1):
        pass
