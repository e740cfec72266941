"""bench/operator/scale.py: verdicts on its aims, without a measurement."""

from __future__ import annotations

import copy
import importlib.util
import re
import sys
from types import ModuleType
from typing import Any

import pytest
from operator_kube import ROOT

GOOD: dict[str, Any] = {
    **{"sites": 50, "pools": 50, "services": 1000, "createSeconds": 20.0, "coldSeconds": 21.0, "changes": 100, "load": [0.1, 0.2, 0.3]},
    "applyToAcknowledged": {"p50Ms": 400, "p90Ms": 600, "p99Ms": 1000, "maxMs": 1500},
    "resync": {"seconds": 42.0, "writes": 0, "changedObjects": 0, "objects": 1361, "cpuPercent": 7.0},
    "operator": {"rssMiB": 177.0, "peakRssMiB": 187.0, "cpuSeconds": 12.0},
    "status": {"textMs": 700, "jsonMs": 650},
}


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_operator_scale", ROOT / "bench" / "operator" / "scale.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses resolve string annotations through sys.modules
    spec.loader.exec_module(module)
    return module


def test_a_result_at_its_aims_is_reported_as_met(bench: ModuleType) -> None:
    assert bench.missed(GOOD) == []
    lines = bench.table(GOOD).splitlines()
    assert len([line for line in lines if line.endswith(": met")]) == len(bench.AIMS) == 5
    assert {aim.row for aim in bench.AIMS} <= {re.split(r"  +", line)[0] for line in lines}


@pytest.mark.parametrize(
    ("part", "figure", "value", "row"),
    [
        ("applyToAcknowledged", "p99Ms", 1001, "a change until the controller has it"),
        ("resync", "writes", 1, "two full resyncs"),
        ("resync", "changedObjects", 1, "two full resyncs"),
        ("operator", "peakRssMiB", 256.1, "operator, memory"),
        ("status", "textMs", 1001, "kubectl sos status"),
        ("status", "jsonMs", 1001, "kubectl sos status -o json"),
    ],
)
def test_a_missed_aim_is_named(bench: ModuleType, part: str, figure: str, value: float, row: str) -> None:
    bad = copy.deepcopy(GOOD)
    bad[part][figure] = value
    assert bench.missed(bad) == [row]
    (line,) = [line for line in bench.table(bad).splitlines() if line.endswith("MISSED")]
    assert line.startswith(f"{row}  ")
