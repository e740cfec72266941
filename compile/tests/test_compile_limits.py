"""Worlds at their schemas' limits: nothing raises, not even inside the fence, and the controller takes what is compiled of them."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from pathlib import Path
from types import ModuleType

from limits import limits_world
from sos_compile import compile_world

ROOT = Path(__file__).resolve().parents[2]
COUNT = 3 * int(os.environ.get("SOS_EXAMPLES", "50"))  # `make worlds` takes as many as it is told


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("worlds_script", ROOT / "scripts" / "worlds.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_world_at_its_limits_raises_and_the_controller_takes_what_it_gives() -> None:
    script = load_script()
    written: Counter[str] = Counter()
    found = [text for seed in range(COUNT) for text in script.examine(seed, written)]
    assert found == []
    assert all(written[part] >= COUNT / 4 for part in ("controller", "node", "agent")), "these worlds are about nothing"


def test_worlds_are_at_limits() -> None:
    """Some objects are taken and some are refused, of every kind that there may be many of."""
    names, taken = set[int](), {kind: set[bool]() for kind in ("SosSite", "SosService", "SosAgent")}
    for seed in range(100):
        compiled = compile_world(limits_world(seed))
        for key, facts in compiled.facts.items():
            taken.get(key.kind, set()).add(facts.accepted and facts.resolved)
            names.add(len(key.name))
    assert {1, 63, 189, 190, 253} <= names
    assert all(each == {True, False} for each in taken.values()), taken
