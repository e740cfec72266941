from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sos_compile.__main__ import main
from sos_compile.artifacts import ROOT

EXAMPLE = str(ROOT / "examples" / "01-two-sites")
NODES = ["--node", "edge1=west", "--node", "core1=core1", "--node", "core2=core2", "--node", "edge2=east@192.0.2.9"]


def test_example_is_compiled_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([EXAMPLE, *NODES, "--endpoint", "default=tcp:192.0.2.1:6653", "--generation", "3", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "7 objects, 0 problems; 1 controller-configs, 4 node-configs, 2 agent-configs, 18 manifests" in captured.out
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json"))
    assert files[:3] == ["agent/default/edge1.json", "agent/default/edge2.json", "controller/default.json"]
    node = json.loads((tmp_path / "node" / "edge1.json").read_text())
    assert (node["generation"], node["controllers"]) == (3, ["tcp:192.0.2.1:6653"])
    assert json.loads((tmp_path / "manifests.json").read_text())["kind"] == "List"


def test_problems_are_printed_and_cause_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    bad = str(ROOT / "examples" / "bad" / "host-bits.yaml")
    assert main([EXAMPLE, bad, *NODES]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{bad}: SosSite crooked: spec.prefixes[0]: must be a network address: set the host bits to zero"]


def test_file_without_valid_yaml_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("a: [1\n")
    assert main([str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"{path}:2: not YAML")


@pytest.mark.parametrize("wrong", [[], [EXAMPLE, "--node", "edge1"], [EXAMPLE, "--node", "Edge=west"], [EXAMPLE, "--endpoint", "x="]])
def test_bad_usage_exits_with_two(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(wrong)
    assert stopped.value.code == 2


def test_compiler_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "sos_compile", EXAMPLE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
