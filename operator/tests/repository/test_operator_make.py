"""Commands of the docs exist and work."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from operator_kube import ROOT

PAGES = {target: (ROOT / "docs" / f"{target}.md").read_text() for target in ("quick-start", "quick-start-bridge")}
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def make(*args: str) -> str:
    return subprocess.run(["make", "-C", str(ROOT), *args], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("target", PAGES)
def test_a_quick_start_is_five_commands_at_most(target: str) -> None:
    start, *_ = BLOCK.findall(PAGES[target])
    assert len(start.splitlines()) <= 5
    assert start.startswith(f"make {target}\n")


def test_every_make_target_in_the_docs_is_in_the_help() -> None:
    listed = {line.split()[0] for line in make("-s", "help").splitlines()}
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = {target for page in pages for target in re.findall(r"(?:`|# )make ([a-z][a-z0-9-]*)", page.read_text())}
    assert {"demo", "quick-start", "crds"} <= named <= listed


@pytest.mark.parametrize(
    ("target", "tests"),
    [
        ("quick-start", {"test_first_accelerated_byte_comes_within_three_minutes"}),
        (
            "quick-start-bridge",
            {"test_sites_become_ready_with_their_agents", "test_a_transfer_between_pods_is_fast_with_the_service"},
        ),
    ],
)
def test_a_quick_start_sets_up_fast_services(target: str, tests: set[str]) -> None:
    """Collect the tests of the target's command: a renamed test would silently be left out."""
    (command,) = [line for line in make("-n", target).splitlines() if "pytest" in line]
    words = shlex.split(command)
    assert words[1:4] == ["-m", "pytest", "e2e"] and "--keep-cluster" in words
    asked = [sys.executable, *words[1:], "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    chosen = re.findall(r"<Function (\w+)>|::(\w+)", done.stdout)
    assert {name for pair in chosen for name in pair if name} == tests
    cluster = words[words.index("--cluster") + 1]
    *_, end = BLOCK.findall(PAGES[target])
    assert re.fullmatch(rf"kind delete cluster(s {cluster}-a {cluster}-b| --name {cluster})\n", end)
