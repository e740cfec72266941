"""Doing, undoing and the journal between them. Needs no root: the steps touch files and start `sleep`."""

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


def test_undone_backwards_and_completely(tmp_path: Path) -> None:
    runner, trace = Runner(tmp_path / "lab"), tmp_path / "trace"
    runner.perform(touch(tmp_path / name, trace) for name in "abc")
    assert all((tmp_path / name).exists() for name in "abc")
    assert runner.undo_all() == []
    assert trace.read_text().split() == ["c", "b", "a"]
    assert not (tmp_path / "lab").exists()


def test_the_undo_is_on_disk_before_its_do(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "lab")
    step = Step(
        title="look", do=Run(argv=("cp", str(tmp_path / "lab" / "journal.jsonl"), str(tmp_path / "seen"))), undo=RemoveTree(path="x")
    )
    runner.perform([step])
    assert [parse_undo(json.loads(line)) for line in (tmp_path / "seen").read_text().splitlines()] == [step.undo]


def test_a_failing_step_is_undone_and_reported(tmp_path: Path) -> None:
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


def test_a_line_cut_off_by_a_crash_does_not_hide_the_others(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "lab")
    runner.perform([sleeper(tmp_path)])
    with (tmp_path / "lab" / "journal.jsonl").open("a") as journal:
        journal.write('{"kind": "Sto')
    pid = process.find(runner.pid_file("sleeper"))
    assert pid is not None
    assert runner.undo_all() == []
    assert process.read_pid(pid.number) is None


def test_programs_are_stopped_also_by_another_process(tmp_path: Path) -> None:
    """A lab is usually taken down by a later command, which is not the parent of the processes it stops."""
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


def test_a_program_runs_until_its_last_thread_has_ended(tmp_path: Path) -> None:
    """When a switch is killed, its first thread ends before those that hold the pid file's lock, which would block the next switch."""
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
    assert " Z " in stat.read_text(), "its first thread has ended"
    assert process.find(pid_file) == pid
    process.kill(pid_file)
    assert process.read_pid(pid.number) is None


def test_a_recycled_pid_is_left_alone(tmp_path: Path) -> None:
    """The file has our own pid, but another start time, so it is another process."""
    pid_file = tmp_path / "pid"
    pid_file.write_text(json.dumps({"number": os.getpid(), "started": 1}))
    survived = []
    before = signal.signal(signal.SIGTERM, lambda *_: survived.append("asked"))
    try:
        process.stop(pid_file, grace_s=0.1)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert survived == []


def test_files_appear_whole(tmp_path: Path) -> None:
    Runner(tmp_path / "lab").perform(
        [Step(title="w", do=WriteFile(path=str(tmp_path / "a" / "b"), text="new", mode=0o600), undo=RemoveTree(path=str(tmp_path / "a")))]
    )
    assert (tmp_path / "a" / "b").read_text() == "new"
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o600
    write_file(tmp_path / "a" / "b", "newer")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_a_missing_program_is_named() -> None:
    with pytest.raises(LabError, match="no-such-program is not installed"):
        run(("no-such-program",), what="trying")


def test_a_command_without_an_end_is_ended() -> None:
    with pytest.raises(LabError, match="no end after"):
        run(("sleep", "30"), what="waiting", timeout_s=0.1)


def test_a_lock_is_held_by_one_and_falls_with_its_holder(tmp_path: Path) -> None:
    with lock(tmp_path / "lock"), pytest.raises(LabError, match="in use"), lock(tmp_path / "lock", timeout_s=0.1):
        pass
    with lock(tmp_path / "lock", timeout_s=0.1):
        pass
