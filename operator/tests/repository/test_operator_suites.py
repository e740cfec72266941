"""scripts/test.py: detection of failed tests in a suite's output, and their repetition."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from operator_kube import ROOT

PYTEST = """\
FAILED compile/tests/test_a.py::test_one[a - b-v6] - AssertionError: 1 - 2
FAILED compile/tests/test_a.py::test_two
ERROR compile/tests/test_b.py::test_three - OSError: FAILED x::y
2 failed, 7 passed, 1 error in 3.1s
"""
CARGO = """\
test plan::tests::splits ... ok
test net::moves ... FAILED
test src/lib.rs - frame (line 12) ... FAILED
test plan::tests::panics - should panic ... FAILED
test result: FAILED. 1 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s
"""
FLAKY = """
import pathlib

def test_unstable(): marker = pathlib.Path(__file__).with_suffix(".ran"); ran = marker.exists(); marker.touch(); assert ran
def test_good(): pass
"""
BROKEN = "def test_broken(): assert False\ndef test_good(): pass\n"


@pytest.fixture
def suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("suites", ROOT / "scripts" / "test.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "suites", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "OUT", tmp_path)
    return module


def test_failed_tests_are_found_in_the_output(suites: ModuleType) -> None:
    assert suites.failed_pytest(PYTEST)[1:] == ("compile/tests/test_a.py::test_two", "compile/tests/test_b.py::test_three")
    assert suites.failed_cargo(CARGO) == ("net::moves", "plan::tests::panics")


@pytest.mark.parametrize(
    ("text", "limit", "second"),
    [(FLAKY, 3, (2, 0)), (FLAKY, 0, (1, 1)), (BROKEN, 3, (1, 1)), (BROKEN + "def test_too(): assert 0\n", 1, (1, 2))],
)
def test_only_tests_that_pass_alone_stop_counting_as_failed(
    suites: ModuleType, tmp_path: Path, text: str, limit: int, second: tuple[int, int]
) -> None:
    program = tmp_path / "test_sample.py"
    program.write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    result = suites.run(suites.pytest_suite(str(tmp_path), name="sample"), live=False)
    count, unstable = suites.repeat_failed(result, limit)
    assert (count.passed, count.failed) == second
    assert [name.rpartition("::")[2] for name in unstable] == (["test_unstable"] if second == (2, 0) else [])


@pytest.mark.parametrize(
    ("name", "ours"),
    [("sosn-restart-0a1b2c3d", True), ("c0a1b2c-edge1", True), ("sa5cfb77-server", True), ("sandbox-1", False), ("cni-1234", False)],
)
def test_only_namespaces_of_tests_are_removed_after_an_interruption(suites: ModuleType, name: str, ours: bool) -> None:
    assert bool(suites._TESTS_NAMESPACE.match(name)) == ours
