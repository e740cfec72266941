"""Blocks of the pages that need a lab: their commands are run as a reader would type them, in labs of their own."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import accepted, cli
from sos_testbed.lifecycle import lab as labs

ROOT = Path(__file__).resolve().parents[4]
COMMAND_TIMEOUT_S = 300


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of labs that no other test sees, so that the commands find the only lab. Its path is short, as it holds sockets."""
    folder = Path(tempfile.mkdtemp(prefix="sos-pages-", dir="/run"))
    monkeypatch.setenv("SOS_STATE", str(folder / "labs"))
    yield folder / "labs"
    done = cli("down", "--all")
    shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr


def commands(name: str) -> list[str]:
    """The commands of a runnable block, one per line."""
    argv = (sys.executable, str(ROOT / "scripts/blocks.py"), "--print", name)
    return [line for line in subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines() if line]


def shown(name: str) -> str:
    """The output that a runnable console block shows."""
    page = (ROOT / "docs/plugin.md").read_text()
    block = page.partition(f"<!-- run: {name} -->\n```console\n")[2].partition("```\n")[0]
    return block.partition("\n")[2]


def run(line: str) -> str:
    """Run one line of a block at the top of the repository, with the commands of .venv."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    argv = ("bash", "-euo", "pipefail", "-c", line)
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S)
    print(f"$ {line}\n{done.stdout}{done.stderr}")
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


def clients() -> int:
    """Clients that the ingress agent has accepted; 0 while it does not run."""
    lab = labs.find(None)
    return 0 if "agent1" in lab.dead() else accepted(lab)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lab-experiment", "lab-proactive", "lab-slices", "lab-routed", "lab-routed-wan"])
def test_commands_of_a_page_work_in_a_lab_as_they_say(state: Path, name: str) -> None:
    """A comment `# accelerated` or `# plain` behind a download must be true."""
    checked = 0
    for line in commands(name):
        says = re.search(r"# (?:still )?(accelerated|plain)\b", line)
        before = clients() if says else 0
        run(line)
        if says:
            assert clients() - before == (1 if says[1] == "accelerated" else 0), line
            checked += 1
    assert checked == {"lab-experiment": 2, "lab-proactive": 2}.get(name, 0)


def same_shape(text: str) -> list[list[str]]:
    """Words of each line, figures replaced."""
    return [re.sub(r"\d+(?:\.\d+)?(?= Mbit/s)", "N", line).split() for line in text.splitlines()]


@pytest.mark.slow
def test_plugin_prints_in_a_lab_what_its_page_shows(state: Path) -> None:
    assert cli("up", "routed-wan").returncode == 0
    for name in ("trace-routed", "diagnose-routed"):
        (command,) = commands(name)
        assert run(command) == shown(name)
    assert cli("down").returncode == 0
    assert cli("up", "figure8", "--rate", "100mbit", "--rtt", "20ms").returncode == 0
    (command,) = commands("diagnose-lab")
    assert same_shape(run(command)) == same_shape(shown("diagnose-lab"))
