"""Compile worlds at the limits of their schemas.

No exception may occur, not even one that fault isolation catches. Each consumer must accept its documents.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from limits import limits_world
from sos_compile import compile_world

ROOT = Path(__file__).resolve().parents[3]
COUNT = 3 * int(os.environ.get("SOS_EXAMPLES", "50"))  # `make worlds` has its own setting


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("worlds_script", ROOT / "scripts" / "worlds.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def test_worlds_at_limits_compile_and_consumers_accept_their_documents() -> None:
    script = load_script()
    found, written = script.batch(script.programs(), range(COUNT))
    assert found == []
    assert all(written[part] >= COUNT / 4 for part in ("controller", "node", "agent")), "too few worlds yield documents"


def test_document_that_a_consumer_refuses_is_reported() -> None:
    script = load_script()
    programs = script.programs()
    for part, known in (("node", '"siteID'), ("agent", '"agentId')):
        lines: dict[str, list[Any]] = {"node": [], "agent": []}
        seed = next(seed for seed in range(100) if list(script.examine(seed, lines, Counter())) or lines[part])
        good = lines[part][0]
        spoilt = replace(good, text=good.text.replace(known, known + "x", 1))
        unread = replace(good, text="{}")
        told = list(script.read_by(part, programs[part], [good, unread, good, spoilt]))
        assert len(told) == 2 and all(f"seed {seed}: sos-{part} does not take" in line for line in told), told


def test_worlds_reach_their_limits() -> None:
    """Some objects are accepted and some refused, for every kind that may have many objects."""
    names, taken = set[int](), {kind: set[bool]() for kind in ("SosSite", "SosService", "SosAgent")}
    for seed in range(100):
        compiled = compile_world(limits_world(seed))
        for key, facts in compiled.facts.items():
            taken.get(key.kind, set()).add(facts.accepted and facts.resolved)
            names.add(len(key.name))
    assert {1, 63, 189, 190, 253} <= names
    assert all(each == {True, False} for each in taken.values()), taken
