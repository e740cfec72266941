"""scripts/support.py: runs become rows of the support matrix."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from testbed_scripts import ROOT, load_script


@pytest.fixture(scope="module")
def support() -> ModuleType:
    return load_script("support")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one commit."""
    (tmp_path / "source.py").write_text("")
    for command in (
        ("init", "-q"),
        ("add", "source.py"),
        ("-c", "user.name=test", "-c", "user.email=test@example.org", "commit", "-q", "-m", "source"),
    ):
        subprocess.run(("git", "-C", str(tmp_path), *command), check=True)
    return tmp_path


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def row(support: ModuleType, what: str = "suite", result: str = "passed", **versions: str) -> Any:
    return support.Row("kubernetes", what, "make e2e", "2026-11-30", "0123456789ab", result, versions)


def test_a_row_has_result_count_commit_and_versions_of_the_run(support: ModuleType, tree: Path) -> None:
    run = program("print('support: kubernetes=v1.33.4'); print('===== 3 passed in 12.30s (0:00:12) =====')")
    found = support.record("kubernetes", "suite", run, {"network plugin": "kindnet", "kernel": "6.1"}, tree)
    head = subprocess.run(("git", "-C", str(tree), "rev-parse", "--short=12", "HEAD"), capture_output=True, text=True, check=True)
    assert (found.result, found.detail, found.commit) == ("passed", "3 passed", head.stdout.strip())
    assert found.versions == {
        "architecture": support.platform.machine(),
        "kernel": "6.1",
        "kubernetes": "v1.33.4",
        "network plugin": "kindnet",
    }


@pytest.mark.parametrize("run", ["raise SystemExit(3)", "print('5 passed, 1 failed'); raise SystemExit(1)"])
def test_a_failed_run_is_recorded_as_failed(support: ModuleType, tree: Path, run: str) -> None:
    assert support.record("kernel", "suite", program(run), {}, tree).result == "failed"


def test_sources_must_be_committed_except_the_records(support: ModuleType, tree: Path) -> None:
    (tree / "source.py").write_text("changed")
    with pytest.raises(support.NotRecorded, match=r"source\.py"):
        support.record("kernel", "suite", program(""), {}, tree)
    (tree / "source.py").write_text("")
    (tree / "new.py").write_text("not tracked")
    assert support.record("kernel", "suite", program(""), {}, tree).result == "passed"


def test_a_later_run_replaces_the_row_with_the_same_versions(support: ModuleType) -> None:
    old, other = row(support, kubernetes="1.33"), row(support, kubernetes="1.34")
    new = row(support, result="failed", kubernetes="1.33")
    assert support.merged([old, other], new) == [new, other]


def test_tables_have_the_columns_that_rows_use(support: ModuleType) -> None:
    rows = [row(support, kubernetes="1.33", cores="2"), row(support, "other | suite", kubernetes="1.34")]
    lines = support.tables(rows)["support_kubernetes"].splitlines()
    assert lines[1] == "|  | kubernetes | others | result | command | date | commit |"
    assert lines[3:] == [
        "| other \\| suite | 1.34 |  | passed | `make e2e` | 2026-11-30 | 0123456789ab |",
        "| suite | 1.33 | cores 2 | passed | `make e2e` | 2026-11-30 | 0123456789ab |",
    ]
    assert support.tables(rows)["support_kernel"] == "\nNothing has been recorded.\n"


def test_unknown_areas_are_refused(support: ModuleType, tree: Path) -> None:
    with pytest.raises(support.NotRecorded, match="unknown area cloud"):
        support.record("cloud", "suite", program(""), {}, tree)
    support.write(tree / "support.json", [support.Row("cloud", "suite", "true", "2026-11-30", "0", "passed")])
    with pytest.raises(support.NotRecorded, match="unknown area cloud"):
        support.read(tree / "support.json")


def test_the_page_has_a_table_for_every_area(support: ModuleType) -> None:
    page = (ROOT / "docs/support.md").read_text()
    assert [area for area in support.AREAS if f"<!-- generated: support_{area} -->\n" not in page] == []


def test_every_record_is_complete(support: ModuleType) -> None:
    rows = support.read(support.FILE)
    assert len({each.key for each in rows}) == len(rows) > 5
    for each in rows:
        assert support.re.fullmatch(r"\d{4}-\d\d-\d\d", each.date) and support.re.fullmatch(r"[0-9a-f]{12}", each.commit)
        assert each.versions and each.result in {"passed", "failed"} and each.command


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--record", "--area", "kernel", "--what", "x", "--version", "kernel", "--", "true"), "write NAME=VALUE"),
        (("--area", "kernel", "--what", "x", "--", "true"), "--record"),
        (("--record", "--area", "cloud", "--what", "x", "--", "true"), "invalid choice: 'cloud'"),
    ],
)
def test_wrong_arguments_name_the_option(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    argv = (sys.executable, str(ROOT / "scripts/support.py"), "--file", str(tmp_path / "support.json"), *arguments)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and says in done.stderr and not (tmp_path / "support.json").exists()


def test_records_are_written_and_read_unchanged(support: ModuleType, tmp_path: Path) -> None:
    rows = [row(support, kubernetes="1.33")]
    support.write(tmp_path / "support.json", rows)
    assert support.read(tmp_path / "support.json") == rows
    assert list(json.loads((tmp_path / "support.json").read_text())) == ["rows"]
