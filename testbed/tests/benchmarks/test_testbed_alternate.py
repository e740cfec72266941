"""bench/alternate.py: commands in two trees run in turns, with all their processes."""

import subprocess
import sys
from itertools import groupby
from pathlib import Path

TOOL = Path(__file__).resolve().parents[3] / "bench" / "alternate.py"
# A child process writes, so that the test fails if only the command itself is stopped.
WRITER = """
import os, subprocess, sys, time
if len(sys.argv) == 1:
    sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode)
for _ in range(40):
    time.sleep(0.02)
    with open("../log", "a") as log:
        log.write(os.path.basename(os.getcwd()) + "\\n")
"""


def trees(folder: Path) -> list[Path]:
    found = [folder / name for name in "ab"]
    for tree in found:
        tree.mkdir()
        (tree / "writer.py").write_text(WRITER)
    return found


def alternate(folders: list[Path], *command: str) -> subprocess.CompletedProcess[str]:
    given = [word for folder in folders for word in ("--tree", str(folder))]
    line = [sys.executable, str(TOOL), *given, "--slice", "0.2", "--", *command]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def test_only_one_of_the_two_runs_at_a_time(tmp_path: Path) -> None:
    done = alternate(trees(tmp_path), sys.executable, "writer.py")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "log").read_text().split()
    assert sorted(lines) == ["a"] * 40 + ["b"] * 40
    turns = [len(list(group)) for _, group in groupby(lines)]
    assert 4 <= len(turns) <= 30, turns


def test_the_output_names_the_tree_and_a_failure_is_the_exit_status(tmp_path: Path) -> None:
    found = trees(tmp_path)
    (found[0] / "good").touch()
    done = alternate(found, "sh", "-c", "echo here; test -e good")
    assert sorted(done.stdout.splitlines()) == ["1: here", "2: here"]
    assert done.returncode == 1


def test_wrong_folders_are_refused(tmp_path: Path) -> None:
    done = alternate([tmp_path / "missing", tmp_path], "true")
    assert done.returncode == 2 and "--tree: give two folders" in done.stderr
