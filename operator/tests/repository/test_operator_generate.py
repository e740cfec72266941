"""scripts/generate.py: refused input, and detection of stale files."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from operator_kube import ROOT


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "scripts" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_values_become_table_rows(generate: ModuleType) -> None:
    text = "# Group.\na:\n  # One\n  # thing.\n  b: 1\n  # Whole.\n  c:\n    d: [x]\n"
    assert generate.value_tables(text) == (
        "\n**a**: Group.\n\n| key | default | meaning |\n| --- | --- | --- |\n"
        '| `a.b` | `1` | One thing. |\n| `a.c` | `{"d": ["x"]}` | Whole. |\n'
    )


def test_a_value_without_description_is_refused_by_name(generate: ModuleType) -> None:
    with pytest.raises(generate.Undocumented, match=r"a\.c has no comment"):
        generate.value_tables("# Group.\na:\n  # One.\n  b: 1\n  c: 2\n")


def test_required_fields_rules_and_limits_are_shown(generate: ModuleType) -> None:
    port = {
        "type": "integer",
        "minimum": 1,
        "description": "A port.",
        "x-kubernetes-validations": [{"rule": "r", "message": "odd ones only"}],
    }
    schema = {"type": "object", "required": ["port"], "properties": {"port": port, "names": {"type": "array", "items": {"type": "string"}}}}
    assert list(generate.fields(schema, "", False)) == [
        ("`port`", "integer", "**required**", "A port. (at least 1) *odd ones only.*"),
        ("`names`", "list of string", "", ""),
    ]


def test_stale_files_are_named_and_rewritten(tmp_path: Path) -> None:
    for part in (
        "scripts/generate.py",
        "scripts/figures.py",
        "scripts/support.py",
        "CHANGELOG.md",
        "crds",
        "charts",
        "docs",
        "spec/metrics",
    ):
        source, target = ROOT / part, tmp_path / part
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)

    def run(*args: str) -> tuple[int, str]:
        command = [sys.executable, str(tmp_path / "scripts" / "generate.py"), *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    assert run("--check") == (0, "")
    crd = tmp_path / "crds" / "soslinks.sos.network.yaml"
    crd.write_text(crd.read_text().replace("description: ", "description: Changed. ", 1))
    (tmp_path / "charts" / "sos" / "files" / "crds" / "old.yaml").write_text("")
    metrics = tmp_path / "spec" / "metrics" / "node.tsv"
    metrics.write_text(metrics.read_text() + "sos_node_new\tgauge\t\tNew\n")
    code, said = run("--check")
    assert code == 1
    for stale in ("files/crds/soslinks.sos.network.yaml", "files/crds/old.yaml", "docs/operations.md"):
        assert f"{stale} is stale" in said
    assert run()[0] == 0
    assert run("--check") == (0, "")


def test_upgrade_notes_are_the_entries_that_need_an_action(generate: ModuleType) -> None:
    changelog = (
        "# Changelog\n\n## Unreleased\n\n### Added\n\n- A field ([page](docs/page.md)).\n  Upgrade agents first.\n- Another field.\n\n"
        "### Fixed\n\n- **Breaking**: a name.\n\n## 0.1.0\n\n- The first release.\n"
    )
    assert generate.upgrade_notes(changelog) == (
        "\n### Unreleased\n\n- A field ([page](page.md)).\n  Upgrade agents first.\n- **Breaking**: a name.\n\n### 0.1.0\n\nNothing.\n"
    )
