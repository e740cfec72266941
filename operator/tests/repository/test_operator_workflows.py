"""GitHub workflows: third-party actions are pinned, and rights are declared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from operator_kube import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d[\w.]*")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_with_their_version(path: Path) -> None:
    """A tag can be moved; dependabot updates commit and version together."""
    used = re.findall(r"uses: (.+)$", path.read_text(), re.MULTILINE)
    assert used
    assert not [name for name in used if not name.startswith("./") and not PINNED.fullmatch(name.strip())]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_reads_only_unless_a_job_declares_more(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}


def test_a_release_is_published_only_after_checks_and_suites_of_its_commit() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())["jobs"]
    assert (jobs["release"]["needs"], jobs["build"]["needs"]) == ("build", "images")
    assert "permissions" not in jobs["build"], "dependencies run code during the build"
    assert set(jobs["images"]["needs"]) == {"check", "e2e"}
    for name in ("check", "e2e", "images"):
        called = yaml.safe_load((ROOT / jobs[name]["uses"]).read_text())
        assert "workflow_call" in called[True], "YAML reads the key `on` as true"
