"""Extent of a replan: unrelated pairs of sites are not visited, and after a failure everything is planned.

The tests replace methods of classes, which compiled modules do not permit. `make test-compiled` therefore omits this file.
"""

from __future__ import annotations

from typing import Any

import pytest
from scale_world import ScaleWorld, scale_document
from sos_controller.core.pairs.candidates import Candidates
from sos_controller.core.pairs.pair_planner import PairPlanner
from sos_controller.core.pairs.table_capacity import TableCapacity
from sos_controller.core.services.arming import Arming
from sos_controller.core.services.cache_guard import CacheGuard
from sos_controller.core.types import DatapathId


def converged(made: dict[str, Any]) -> ScaleWorld:
    world = ScaleWorld(made, slowness=0.0)
    world.connect()
    world.run(3.0)
    assert world.is_programmed()
    return world


@pytest.mark.parametrize("change", ["cut_link", "turn_agent"])
def test_change_visits_only_the_pairs_of_its_sites(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    world = converged(scale_document(6, 1, 1, 60))
    visited, planned = set[tuple[str, str]](), list[object]()
    look, plan = Candidates._look, PairPlanner._plan
    monkeypatch.setattr(Candidates, "_look", lambda self, sites: visited.add(sites) or look(self, sites))
    monkeypatch.setattr(PairPlanner, "_plan", lambda self, key, demand: planned.append(key) or plan(self, key, demand))
    monkeypatch.setattr("sos_controller.core.services.arming.punt_matches", lambda policy: pytest.fail(f"visited {policy}"))
    getattr(world, change)(0)
    world.settle()
    near = {"s0", "s1"} if change == "cut_link" else {"s0"}
    assert visited and all(near & set(sites) for sites in visited)
    assert len(planned) <= 10, "the other sites' pairs stay as they are"


def test_change_of_free_space_visits_only_services_that_share_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    world = converged(scale_document(6, 1, 1, 60))
    visited, configured, armed = list[str](), list[object](), set[DatapathId]()
    admit, configure, punt = TableCapacity._admit, CacheGuard.configure, Arming._punt_at
    monkeypatch.setattr(
        TableCapacity, "_admit", lambda self, policy, rooms: visited.append(policy.service.id) or admit(self, policy, rooms)
    )
    monkeypatch.setattr(CacheGuard, "configure", lambda self: configured.append(self) or configure(self))
    monkeypatch.setattr(Arming, "_punt_at", lambda self, dpid, *rest: armed.add(dpid) or punt(self, dpid, *rest))
    at = {s.id for s in world.engine.state.services if "s0" in (s.from_.site, s.to.site)}
    world.limit_table(world.dpids[0], 10_000)
    world.run(0.5)
    assert not visited and not configured and not armed, "there is space for all services"
    world.limit_table(world.dpids[0], 100)
    world.run(0.5)
    refused = set(world.engine.state.no_room)
    assert refused and refused < at and set(visited) == at and len(visited) == len(at) and len(configured) == 1
    assert armed == {world.dpids[int(s.from_.site[1:])] for s in world.engine.state.services if s.id in refused}
    visited.clear()
    restore = world.turn_agent(2)
    world.run(0.5)
    assert not visited, "the space is the same"
    restore()
    world.limit_table(world.dpids[0], 10_000)
    world.run(0.5)
    assert not world.engine.state.no_room and world.is_programmed()


def test_planning_that_fails_is_followed_by_a_plan_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    world = converged(scale_document(3, 2, 2, 7))
    with monkeypatch.context() as broken:
        broken.setattr(PairPlanner, "_wanted", lambda _self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            world.engine.plan.replan()
    world.engine.plan.replan()
    world.engine.state.out = []
    world.engine.plan.configure()
    world.engine.plan.replan()
    assert not world.engine.state.out
