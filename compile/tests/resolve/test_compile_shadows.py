"""Test precedence of services that cover the same connections, against a model that decides for each connection."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import Compiled, ObjectKey, Shadow, compile_world
from sos_compile.resolve.services import regions, shadows
from sos_compile.resolve.services.regions import Region
from worlds import nodes, obj, service, site, world

SMALL = 6
intervals = st.sets(st.integers(0, SMALL - 1), min_size=1).map(lambda points: regions.joined((p, p) for p in points))
some_regions = st.builds(Region, intervals, intervals, intervals)


def points(*parts: Region) -> set[tuple[int, ...]]:
    """Return every connection of some regions."""
    return {point for part in parts for point in product(*([p for first, last in each for p in range(first, last + 1)] for each in part))}


@given(some_regions, some_regions)
def test_regions_behave_as_sets_of_connections(one: Region, other: Region) -> None:
    common, left = regions.intersection(one, other), regions.difference(one, other)
    assert points(common) == points(one) & points(other)
    assert points(*left) == points(one) - points(other)
    assert sum(len(points(part)) for part in left) == len(points(*left)), "the parts must be disjoint"
    assert regions.overlap(one, other) == (not common.empty)


@given(st.lists(some_regions, max_size=8))
def test_meeting_finds_every_overlapping_pair_once(covered: list[Region]) -> None:
    found = shadows.meeting(covered)
    assert found is not None
    wanted = {(i, j) for i in range(len(covered)) for j in range(i) if points(covered[i]) & points(covered[j])}
    assert sorted((max(pair), min(pair)) for pair in found) == sorted(wanted)


SITES = (site("west", "10.0.0.0/24"), site("east", "10.1.0.0/24"))
MACHINES = nodes(west=1, east=1)


def compiled(*services: dict[str, Any]) -> Compiled:
    found = compile_world(world(*SITES, *services, nodes=MACHINES))
    assert all(problem.warning for problem in found.problems)
    return found


def shadow(found: Compiled, name: str) -> Shadow | None:
    return found.facts[ObjectKey("SosService", "sos-system", name)].shadow


def names(found: Shadow | None) -> tuple[list[str], list[str]]:
    assert found is not None
    return [o.other.name for o in found.hidden_by], [o.other.name for o in found.hides]


@given(st.data())
def test_service_is_hidden_where_an_earlier_service_covers_its_connections(data: st.DataObject) -> None:
    """Compare all connections of a small world, with arbitrary modes and priorities of the services."""
    made: list[tuple[tuple[Any, ...], dict[str, Any], set[tuple[int, ...]]]] = []
    for i in range(data.draw(st.integers(1, 5))):
        clients, servers = (data.draw(st.sets(st.integers(0, 3), min_size=1)) for _ in range(2))
        ports = data.draw(st.sets(st.integers(1, 4), min_size=1))
        priority = data.draw(st.integers(0, 3))
        spec = service(
            f"s{i}", "west", "east", *sorted(ports), priority=priority, mode=data.draw(st.sampled_from(["Accelerate", "Observe"]))
        )
        spec["spec"]["from"]["prefixes"] = [f"10.0.0.{n}/32" for n in clients]
        spec["spec"]["to"]["prefixes"] = [f"10.1.0.{n}/32" for n in servers]
        made.append(((-priority, f"s{i}"), spec, set(product(clients, servers, ports))))
    found = compiled(*(spec for _, spec, _ in made))
    ordered = sorted(made, key=lambda each: each[0])
    taken: dict[tuple[int, ...], str] = {}
    for (_, name), _, covered in ordered:
        winners = {taken[c] for c in covered if c in taken}
        mine = shadow(found, name)
        assert set(names(mine)[0] if mine else []) == winners
        assert (mine.wholly if mine else False) == all(c in taken for c in covered)
        for winner in winners:
            assert name in names(shadow(found, winner))[1]
        taken |= {c: name for c in covered if c not in taken}


def test_conditions_name_the_shadowing_service() -> None:
    wide = service("wide", "west", "east", priority=200, mode="Observe")
    narrow = service("narrow", "west", "east", 443, 80)
    found = compiled(wide, narrow)
    mine = shadow(found, "narrow")
    assert mine is not None and mine.wholly and mine.hidden_by[0].connections == "10.0.0.0/24 to 10.1.0.0/24, ports 80,443"
    assert names(shadow(found, "wide")) == ([], ["narrow"])
    assert shadow(compiled(narrow, service("other", "west", "east", 22)), "narrow") is None


@pytest.mark.parametrize("change", [{"percent": 0}, {"setup": "Proactive"}, {"transport": {"streams": 1}}, {"priority": 101}])
def test_service_hides_later_services_whatever_its_own_settings(change: dict[str, Any]) -> None:
    first = service("a-first", "west", "east", 80, **change)
    found = compiled(first, service("second", "west", "east", 80, 81))
    mine = shadow(found, "second")
    assert names(mine) == (["a-first"], []) and mine is not None and not mine.wholly


def balanced(name: str, **spec: Any) -> dict[str, Any]:
    full = {"from": {"site": "west", "prefixes": ["10.0.0.11/32"]}, "to": {"prefixes": ["10.1.0.0/16"]}, "balance": {}, **spec}
    return obj("SosService", name, full)


def test_balanced_service_is_hidden_by_any_other_service() -> None:
    uplinks = [{"name": "wan0", "base": True, "address": "192.0.2.2/30", "gateway": "192.0.2.1"}]
    west = site("west", "10.0.0.0/24", wan={"type": "Uplinks", "uplinks": uplinks})
    spread, low = balanced("spread", priority=900), service("low", "west", "east", 80, priority=1)
    found = compile_world(world(west, SITES[1], spread, low, nodes=MACHINES))
    mine = shadow(found, "spread")
    assert names(mine) == (["low"], []) and mine is not None and not mine.wholly
    assert mine.hidden_by[0].connections == "10.0.0.11/32 to 10.1.0.0/24, ports 80"


def test_disjoint_services_are_cheap_and_too_many_overlaps_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    everything, far = ((0, 2**32 - 1),), ((0, 255),)
    apart = [Region(everything, far, ((port, port),)) for port in range(1, 4001)]
    begun = time.process_time()
    assert shadows.meeting(apart) == []
    wide = [Region(everything, far, ((1, 65535),))] * 4000
    assert shadows.meeting(wide) is None
    assert time.process_time() - begun < 5
    monkeypatch.setattr(shadows, "MAX_PAIRS", 2)
    found = compiled(*(service(f"s{i}", "west", "east", 80) for i in range(4)))
    assert shadow(found, "s3") == Shadow(compared=False)
