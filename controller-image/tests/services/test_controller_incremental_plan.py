"""After any history of changes, the plan equals a plan of everything."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from scale_world import ScaleWorld, scale_document
from sos_controller.core.openflow.pipeline import Kind, cookie_kind
from sos_controller.core.types import DatapathId
from sos_controller.files.config import document_hash

SITES, NODES = 3, 2
NOWHERE = DatapathId(0)
CHANGES = ["cut_link", "cut_link", "turn_agent", "lose_switch", "restore", "configure"]
sizes = st.sampled_from([8, 20, 30, 40, 60, 80, 100, 150, 1_000])
changes = st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 5), sizes), max_size=12)
bounded_changes = st.lists(st.tuples(st.sampled_from([*CHANGES, *["limit"] * 4]), st.integers(0, 5), sizes), max_size=12)


def document(services: int = 7, generation: int = 1) -> dict[str, Any]:
    """Services between three sites; those with an odd number have two disjoint paths."""
    made = scale_document(SITES, NODES, 2, services, generation=generation)
    for service in made["services"][1::2]:
        service["paths"] = {"mode": "Disjoint", "max": 2}
    return {**made, "hash": document_hash(made)}


def converged(made: dict[str, Any]) -> ScaleWorld:
    world = ScaleWorld(made, slowness=0.0)
    world.connect()
    world.run(3.0)
    assert world.is_programmed()
    return world


def view(world: ScaleWorld) -> dict[str, Any]:
    """Return all results of planning."""
    plan, dpids = world.engine.plan, (*world.dpids, NOWHERE)
    places = [(service, dpid) for service in world.engine.state.services for dpid in plan.datapaths_of(service.from_.site)]
    return {
        "pairs": dict(plan.pairs),
        "wanted": plan.wanted,
        "ready": {(service.id, dpid) for service, dpid in places if plan.is_ready(service.id, dpid)},
        "candidates": [plan.candidates(service, dpid, server_at) for service, dpid in places for server_at in dpids],
        "entries": {dpid: world.engine.state.programmer.entries(dpid) for dpid in world.dpids},
        "no room": dict(world.engine.state.no_room),
        "status": [(found.service.id, found.reason, without_place(plan.table_capacity.message(found.service))) for found in plan.status()],
    }


def without_place(message: str) -> str:
    """Leave the datapath and its numbers out of a message about paths. If paths fit on several datapaths no longer, the message names one
    of these: the first to have become full, or, in a plan from scratch, the first to be tried."""
    return "a datapath is too small for paths" if "are left for paths" in message else message


def full_plan(world: ScaleWorld) -> dict[str, Any]:
    """Plan everything from scratch, without sending anything."""
    world.engine.state.out = []
    world.engine.plan.configure()
    world.engine.plan.replan()
    world.engine.state.programmer.settle(world.engine.state.out)
    assert not world.engine.state.out, "nothing has to be sent"
    return view(world)


@given(st.one_of(changes, bounded_changes))
@example([("cut_link", 0, 8), ("cut_link", 0, 8), ("cut_link", 1, 8), ("limit", 1, 8), ("limit", 0, 8)])
def test_incremental_plan_equals_a_plan_from_scratch(history: list[tuple[str, int, int]]) -> None:
    world, restores, generation = converged(document()), list[Any](), 1
    for what, number, size in history:
        if what == "restore":
            for restore in restores:
                restore()
            restores.clear()
        elif what == "configure":
            generation += 1
            world.configure(document(number + 1, generation))
        elif what == "limit":
            world.limit_table(world.dpids[number], size)
        elif what != "lose_switch" or len(world.connected) == len(world.dpids):
            restores.append(getattr(world, what)(number))
        world.run(0.4 + number)
        found = view(world)
        assert found == full_plan(world)


def test_paths_give_way_to_a_smaller_table_and_return() -> None:
    world = converged(document())
    pairs, first = dict(world.engine.plan.pairs), world.dpids[0]
    world.limit_table(first, 30)
    world.run(0.5)
    left = world.engine.plan.pairs
    assert 0 < len(left) < len(pairs)
    planned = sum(1 for pair in left.values() if first in pair.dpids)
    entries = [entry for entry in world.engine.state.programmer.entries(first) if cookie_kind(entry.cookie) == Kind.PATH]
    assert planned and {entry.cookie for entry in entries} == {
        world.engine.state.cookie(Kind.PATH, pair.number) for pair in left.values() if first in pair.dpids
    }, "a planned pair has its entries"
    world.limit_table(first, 1_000)
    world.run(0.5)
    assert world.engine.plan.pairs == pairs and world.is_programmed()
