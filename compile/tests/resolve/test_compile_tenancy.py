"""Test services of several namespaces at one site: permissions by the site's rules, and precedence of overlapping services."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import Allocations, Compiled, Namespace, ObjectKey, Observed, Problem, Reason, compile_world
from worlds import nodes, obj, site, world

MACHINES = nodes(west=1, east=1)
Connection = tuple[int, int, int]


def sites(rules: list[dict[str, Any]] | None = None, **west: Any) -> tuple[dict[str, Any], ...]:
    services = {"namespaces": "All", **({"rules": rules} if rules else {})}
    return (site("west", "10.0.0.0/24", services=services, **west), site("east", "10.1.0.0/24", services=services))


def made(namespace: str, name: str, *ports: int, created: int = 1, **spec: Any) -> dict[str, Any]:
    full = {"from": {"site": "west"}, "to": {"site": "east"}, **({"ports": [{"port": p} for p in ports]} if ports else {}), **spec}
    return obj("SosService", name, full, namespace=namespace, creationTimestamp=f"2026-01-01T00:00:{created:02}Z")


def compiled(*objects: dict[str, Any], before: Compiled | None = None, rules: list[dict[str, Any]] | None = None) -> Compiled:
    allocations = before.allocations if before else Allocations()
    given_world = world(*sites(rules), *objects, nodes=MACHINES, namespaces=(Namespace("a"), Namespace("b", {"tier": "gold"})))
    return compile_world(replace(given_world, observed=Observed(allocations=allocations)))


def owner(found: Compiled, client: int, server: int, port: int) -> str | None:
    """Return the first service in the controller's order that covers a connection."""

    def holds(prefixes: list[str], address: str) -> bool:
        return any(each in (f"{address}/32", f"{address.rsplit('.', 1)[0]}.0/24") for each in prefixes)

    for service in found.controllers["default"]["services"]:
        mine = holds(service["from"]["prefixes"], f"10.0.0.{client}") and holds(service["to"]["prefixes"], f"10.1.0.{server}")
        if mine and any(r["first"] <= port <= r["last"] for r in service["ports"]):
            return str(service["id"])
    return None


SMALL: list[Connection] = list(product(range(2), range(2), range(1, 4)))

points = st.sets(st.integers(0, 1), min_size=1)


@st.composite
def anything(draw: st.DrawFn, namespace: str) -> dict[str, Any]:
    """Draw a service of a namespace with arbitrary fields."""
    spec: dict[str, Any] = {"priority": draw(st.sampled_from([0, 100, 65535])), "mode": draw(st.sampled_from(["Accelerate", "Observe"]))}
    spec |= {"percent": draw(st.sampled_from([0, 50, 100])), "setup": draw(st.sampled_from(["Reactive", "Proactive"]))}
    spec["from"] = {"site": "west", "prefixes": [f"10.0.0.{n}/32" for n in draw(points)]}
    spec["to"] = {"site": "east", "prefixes": [f"10.1.0.{n}/32" for n in draw(points)]}
    ports = draw(st.sets(st.integers(1, 3), min_size=1))
    return made(namespace, draw(st.sampled_from(["x", "y", "z"])), *sorted(ports), created=draw(st.integers(1, 9)), **spec)


def those(namespace: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(anything(namespace), max_size=3, unique_by=lambda each: each["metadata"]["name"])


def owners(found: Compiled, namespace: str) -> dict[Connection, str]:
    """Return the connections that services of a namespace own, with the owning service."""
    owned = {connection: owner(found, *connection) for connection in SMALL}
    return {connection: name for connection, name in owned.items() if name and name.startswith(f"{namespace}/")}


@given(those("a"), st.lists(those("b"), min_size=1, max_size=4))
def test_namespace_cannot_take_connections_of_another_namespace(mine: list[dict[str, Any]], theirs: list[list[dict[str, Any]]]) -> None:
    """Namespace B changes its services repeatedly and arbitrarily. Namespace A keeps each of its connections with the same service."""
    found = compiled(*mine)
    for step in theirs:
        after = compiled(*mine, *step, before=found)
        had, has = owners(found, "a"), owners(after, "a")
        assert had.items() <= has.items()
        found = after


@given(those("a"), those("b"))
def test_disjoint_rules_make_namespaces_independent(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    rules = [{"namespaces": ["a"], "ports": [{"port": 1}]}, {"namespaces": ["b"], "ports": [{"port": 2, "endPort": 9}]}]
    assert owners(compiled(*mine, *theirs, rules=rules), "a") == owners(compiled(*mine, rules=rules), "a")
    assert owners(compiled(*theirs, *mine, rules=rules), "b") == owners(compiled(*theirs, rules=rules), "b")


@given(those("a"), those("b"))
def test_namespace_in_a_higher_band_has_precedence(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    rules = [{"selector": {"matchLabels": {"tier": "gold"}}, "band": 500}]
    assert owners(compiled(*mine, *theirs, rules=rules), "b") == owners(compiled(*theirs, rules=rules), "b")


@given(those("a"), those("b"))
def test_second_compilation_with_the_same_claims_changes_nothing(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    found = compiled(*mine, *theirs)
    assert compiled(*mine, *theirs, before=found) == found


@given(those("a"))
def test_services_of_a_namespace_are_ordered_by_priority_then_age(mine: list[dict[str, Any]]) -> None:
    found = [service["id"] for service in compiled(*mine).controllers["default"]["services"]]
    rank = {f"a/{s['metadata']['name']}": (-s["spec"]["priority"], s["metadata"]["creationTimestamp"], s["metadata"]["name"]) for s in mine}
    assert found == sorted(rank, key=lambda name: rank[name])


def test_tenant_that_observes_everything_takes_no_connections() -> None:
    """A new service of another namespace hides no existing service, even with the highest priority, all ports and mode Observe."""
    web = made("a", "web", 80)
    before = compiled(web)
    evil = made("b", "evil", created=2, mode="Observe", priority=65535)
    found = compiled(web, evil, before=before)
    assert owner(found, 1, 1, 80) == "a/web" and owner(found, 1, 1, 81) == "b/evil"
    shadow = found.facts[ObjectKey("SosService", "b", "evil")].shadow
    assert shadow is not None and [o.other.name for o in shadow.hidden_by] == ["web"] and not shadow.wholly


def test_service_loses_its_rank_only_for_newly_covered_connections() -> None:
    narrow, web = made("b", "old", 443), made("a", "web", 80, created=2)
    before = compiled(narrow, web)
    grown = compiled(made("b", "old", 443, 80), web, before=before)
    assert owner(grown, 1, 1, 80) == "a/web" and owner(grown, 1, 1, 443) == "b/old"
    changed = compiled(narrow, made("a", "web", 80, created=2, percent=30, priority=1, mode="Observe"), before=before)
    assert changed.allocations.claims["a/web"] == before.allocations.claims["a/web"]


def test_temporarily_rejected_service_keeps_its_rank() -> None:
    web, evil = made("a", "web", 80, created=9), made("b", "evil", 80)
    before = compiled(evil, web, before=compiled(web))
    assert owner(before, 1, 1, 80) == "a/web"
    closed = [{"namespaces": ["a"], "ports": [{"port": 1}]}]
    meanwhile = compiled(evil, web, before=before, rules=closed)
    assert owner(meanwhile, 1, 1, 80) == "b/evil"
    assert owner(compiled(evil, web, before=meanwhile), 1, 1, 80) == "a/web"


@pytest.mark.parametrize(
    ("rule", "spec", "path"),
    [
        ({"prefixes": ["10.0.0.0/25"]}, {"from": {"site": "west", "prefixes": ["10.0.0.192/26"]}}, "spec.from.prefixes"),
        ({"ports": [{"port": 80}]}, {"ports": [{"port": 80, "endPort": 81}]}, "spec.ports"),
        ({"modes": ["Accelerate"]}, {"mode": "Observe"}, "spec.mode"),
        ({"transport": ["streams"]}, {"transport": {"streams": 4, "encryption": "TLS"}}, "spec.transport.encryption"),
        ({"transport": []}, {"transport": {"blockKiB": 8}}, "spec.transport.blockKiB"),
    ],
)
def test_field_not_granted_by_a_rule_is_rejected(rule: dict[str, Any], spec: dict[str, Any], path: str) -> None:
    found = compiled(made("a", "web", **spec), rules=[{"namespaces": ["a"], **rule}])
    (problem,) = (each for each in found.problems if not each.warning)
    assert (problem.reason, problem.path) == (Reason.NOT_PERMITTED, path)
    assert not found.controllers["default"]["services"]
    another = compiled(made("b", "web", **spec), rules=[{"namespaces": ["a"], **rule}])
    assert all(each.warning for each in another.problems), "a rule does not affect other namespaces"


def test_service_without_hosts_and_ports_covers_those_of_its_rule() -> None:
    rule = {"namespaces": ["a"], "prefixes": ["10.0.0.0/25", "10.1.0.0/25"], "ports": [{"port": 80}]}
    found = compiled(made("a", "web"), rules=[rule])
    (service,) = found.controllers["default"]["services"]
    assert (service["from"]["prefixes"], service["ports"]) == (["10.0.0.0/25"], [{"first": 80, "last": 80}])
    assert [(p.warning, p.kind, p.path) for p in found.problems] == [(True, "SosSite", "spec.services.rules[0].prefixes")] * 2
    nowhere = compiled(made("a", "web"), rules=[{"namespaces": ["a"], "prefixes": ["10.9.0.0/24"]}])
    assert [(p.reason, p.path) for p in nowhere.problems if not p.warning] == [(Reason.NOT_PERMITTED, "spec.from.prefixes")]


def refusals(found: Compiled) -> list[Problem]:
    return [problem for problem in found.problems if not problem.warning]


SETTINGS = [{"streams": 16}, {"congestionControl": "Reno"}, {"encryption": "TLS"}, {"protocol": "QUIC"}]


@pytest.mark.parametrize("setting", SETTINGS)
def test_first_namespace_determines_settings_of_shared_streams(setting: dict[str, Any]) -> None:
    """The test covers both orders and both directions between the two sites."""
    field = next(iter(setting))
    plain, sets = made("a", "web", 80), made("b", "fast", 443, created=2, transport=setting)
    alone = compiled(plain)
    found = compiled(plain, sets, before=alone)
    assert [(p.namespace, p.reason, p.path) for p in found.problems] == [("b", Reason.NOT_PERMITTED, f"spec.transport.{field}")]
    back = made("b", "back", 443, created=2, transport=setting)
    back["spec"] |= {"from": {"site": "east"}, "to": {"site": "west"}}
    assert [p.namespace for p in compiled(plain, back, before=alone).problems] == ["b"]
    alone = compiled(sets)
    found = compiled(plain, sets, before=alone)
    assert not refusals(found)
    assert not refusals(compiled(plain, sets, made("a", "same", 81, created=3, transport=setting), before=found)), "equal settings"
    changed = made("b", "fast", 443, created=2, transport={**setting, "streams": 32})
    assert [p.namespace for p in refusals(compiled(plain, changed, before=found))] == ["b"], "later changes need a rule"
    rule = {"namespaces": ["b"], "transport": sorted({field, "streams"})}
    assert not refusals(compiled(plain, changed, before=found, rules=[rule]))


def test_service_of_another_controller_does_not_overtake_a_namespace() -> None:
    """In the switch, entries of the controller with the larger number win, regardless of the claims. A later service of that controller is
    therefore rejected if it covers another namespace's connections."""
    two = [{"name": "default"}, {"name": "second"}]
    west, east = sites()
    for each in (west, east):
        each["spec"]["controllers"] = two
    web, evil = made("a", "web", 80), made("b", "evil", 80, created=2, controller={"name": "second"})
    found = compile_world(world(west, east, obj("SosController", "second"), web, evil, nodes=MACHINES))
    assert [(p.name, p.reason) for p in found.problems] == [("evil", Reason.SHADOWED)]
    apart = made("b", "evil", 81, created=2, controller={"name": "second"})
    assert not compile_world(world(west, east, obj("SosController", "second"), web, apart, nodes=MACHINES)).problems


def balanced(namespace: str, created: int = 1, **spec: Any) -> dict[str, Any]:
    full = {"from": {"site": "west", "prefixes": ["10.0.0.11/32"]}, "to": {"prefixes": ["10.1.0.0/16"]}, "balance": {}, **spec}
    return obj("SosService", "spread", full, namespace=namespace, creationTimestamp=f"2026-01-01T00:00:{created:02}Z")


def test_balanced_services_keep_their_connections_and_uplinks() -> None:
    uplinks = [{"name": "wan0", "base": True, "address": "192.0.2.2/30", "gateway": "192.0.2.1"}]
    west, east = sites(wan={"type": "Uplinks", "uplinks": uplinks})
    spread, web = balanced("a"), made("b", "web", 80, created=2, priority=65535)
    found = compile_world(world(west, east, spread, web, nodes=MACHINES))
    assert [(p.namespace, p.reason) for p in found.problems] == [("b", Reason.SHADOWED)]
    rival = balanced("b", created=2, priority=65535)
    rival["spec"]["from"]["prefixes"] = ["10.0.0.12/32"]
    found = compile_world(world(west, east, spread, rival, nodes=MACHINES))
    (problem,) = found.problems
    assert (problem.namespace, problem.reason) == ("b", Reason.DUPLICATE) and "10.0.0.11" not in problem.message


def shares(found: Compiled) -> dict[str, tuple[int, bool]]:
    """Return each namespace's percentage of the sessions at west, and whether its services may be proactive."""
    (entry,) = (each for each in found.controllers["default"]["sites"] if each["name"] == "west")
    return {share["namespace"]: (share["percent"], share["standing"]) for share in entry.get("shares", [])}


def test_several_namespaces_have_bounded_shares_of_sessions() -> None:
    mine, theirs = made("a", "web", 80), made("b", "web", 81, created=2)
    assert shares(compiled(mine)) == {}
    assert shares(compiled(mine, theirs)) == {"a": (75, True), "b": (75, False)}
    assert shares(compiled(mine, theirs, rules=[{"namespaces": ["a"], "sessionsPercent": 20}])) == {"a": (20, False), "b": (75, False)}
    assert shares(compiled(mine, rules=[{"namespaces": ["a"], "sessionsPercent": 20}])) == {"a": (20, False)}
    assert shares(compiled(mine, made("b", "watch", 81, mode="Observe"))) == {}


@given(st.sets(st.sampled_from([f"n{i}" for i in range(60)]), min_size=2))
def test_shares_leave_sessions_for_every_other_namespace(namespaces: set[str]) -> None:
    found = shares(compiled(*(made(name, "web", 80 + i) for i, name in enumerate(sorted(namespaces)))))
    if len(namespaces) <= 50:  # more namespaces cannot have one percent each
        assert all(100 - found[name][0] >= len(namespaces) - 1 for name in namespaces)
    assert all(50 <= percent <= 99 or len(namespaces) > 50 for percent, _ in found.values())
