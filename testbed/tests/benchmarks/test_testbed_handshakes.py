"""Targets of bench/measure/handshakes.py, without measurements."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).resolve().parents[3] / "bench" / "measure" / "handshakes.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("handshakes_bench", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("known", "unknown", "served", "missed"),
    [(0.051, 0.102, 4, []), (0.0511, 0.1, 4, ["known"]), (0.05, 0.1021, 4, ["unknown"]), (0.05, 0.1, 3, ["busy"])],
)
def test_each_missed_target_is_one_line(bench: ModuleType, known: float, unknown: float, served: int, missed: list[str]) -> None:
    medians = {"plain": 0.1, "known": known, "unknown": unknown}
    lines = bench.missed(medians, {"plain": {"served": 4}, "covered": {"served": served}})
    assert [line.split()[0] for line in lines] == missed
