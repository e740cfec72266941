"""./lab: help without set-up, and the lab that `--lab` names."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from sos_testbed.cli import app, split_command

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("exec", "--help")])
def test_help_sets_nothing_up(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """The copy has no scripts/setup.sh, so an attempt to set up would fail."""
    script = Path(shutil.copy(ROOT / "lab", tmp_path / "lab"))
    done = subprocess.run([str(script), *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (listed,) = re.findall(r"^Commands: (.*)\.$", done.stdout, re.MULTILINE)
    names = {
        command.name or (command.callback.__name__.replace("_", "-") if command.callback else "") for command in app.registered_commands
    }
    assert set(listed.split(", ")) == names


@pytest.mark.parametrize("arguments", [("status",), ("exec", "client", "--", "df", "-h")])
def test_other_commands_set_up_first(arguments: tuple[str, ...], tmp_path: Path) -> None:
    script = Path(shutil.copy(ROOT / "lab", tmp_path / "lab"))
    done = subprocess.run([str(script), *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "scripts/setup.sh" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--", "ls", "--lab", "x"], (None, ["ls", "--lab", "x"])),
        (["ls", "--lab", "x"], (None, ["ls", "--lab", "x"])),
        (["--lab", "two", "--", "ls"], ("two", ["ls"])),
        (["--lab=two", "ls"], ("two", ["ls"])),
        (["--lab"], (None, ["--lab"])),
        (["--labels", "a"], (None, ["--labels", "a"])),
        ([], (None, [])),
    ],
)
def test_the_lab_may_be_named_after_the_host(words: list[str], expected: tuple[str | None, list[str]]) -> None:
    assert split_command(words) == expected


def test_every_command_names_a_lab_by_the_same_option() -> None:
    """Only measurements, which build labs of their own, have no `--lab`."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    without = {name for name, command in commands.items() if not any("--lab" in each.opts for each in command.params)}
    assert without == {"demo", *(name for name in commands if name.startswith("bench"))}
