"""Services that do not fit into the nftables sets of agents are rejected before anything is sent (docs/adr/0050)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import Compiled, Namespace, Node, ObjectKey, Pod, Reason, compile_world
from sos_compile.documents.parts import standalone
from sos_compile.model import classifier
from sos_compile.model.classifier import MAX_REGIONS, Rule, TooLargeError, count, fitting
from test_compile_routed import EAST, NODES, POOL, WEST
from test_compile_routed import compiled as routed
from test_compile_routed import obj as routed_obj
from worlds import nodes, obj, site, world

ROOT = Path(__file__).resolve().parents[3]
VECTORS = json.loads((ROOT / "spec/vectors/arming/v1.json").read_text())
SITES = (site("west", "10.0.0.0/8", services={"namespaces": "All"}), site("east", "172.16.0.0/12", services={"namespaces": "All"}))
FULL = (MAX_REGIONS - 1) // 65
"""Number of services of 65 regions that fit into an agent with one region for ports."""


@pytest.mark.parametrize("row", [pytest.param(row, id=row["name"]) for row in VECTORS])
def test_regions_equal_the_golden_vectors(row: dict[str, Any]) -> None:
    rules = [Rule(*(tuple(map(tuple, each[field])) for field in ("clients", "servers", "ports")), each["held"]) for each in row["rules"]]
    assert fitting(rules, row["limit"]) == (row["regions"], row["leftOut"])
    if not row["leftOut"]:
        assert count(rules, row["regions"]) == row["regions"]
        with pytest.raises(TooLargeError):
            count(rules, row["regions"] - 1)


def test_the_limit_is_the_agents() -> None:
    text = (ROOT / "agent-image/crates/sos-agent/src/policy/arming.rs").read_text()
    assert f"pub const MAX_ARMED: usize = {MAX_REGIONS:_};" in text
    text = (ROOT / "agent-image/crates/sos-agent/src/policy/classifier.rs").read_text()
    assert f"const MAX_BUILDS: usize = {classifier.MAX_BUILDS};" in text


ranges = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)).map(lambda r: (r[0], sum(r))), min_size=1, max_size=3).map(tuple)
rules = st.lists(st.builds(Rule, ranges, ranges, ranges, st.booleans()), max_size=6)


@given(rules, st.integers(0, 60))
def test_the_services_that_fit_keep_the_limit(given_rules: list[Rule], limit: int) -> None:
    total, left_out = fitting(given_rules, limit)
    kept = [rule for index, rule in enumerate(given_rules) if index not in left_out]
    assert total <= limit and (count(kept, limit) == total)
    if left_out:
        with pytest.raises(TooLargeError):
            count(given_rules, limit)


@given(rules)
def test_a_service_twice_takes_as_much_as_once(given_rules: list[Rule]) -> None:
    assert count(given_rules * 2) == count(given_rules)


def wide(number: int, **changes: Any) -> dict[str, Any]:
    """Return a service with clients and servers of its own."""
    ends = {
        "from": {"site": "west", "prefixes": [f"10.{number}.0.0/16"]},
        "to": {"site": "east", "prefixes": [f"172.16.{host}.{number}/32" for host in range(64)]},
    }
    created = f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"
    return obj("SosService", f"s{number}", {**ends, "ports": [{"port": 80}], **changes}, namespace="a", creationTimestamp=created)


def compiled(*objects: dict[str, Any]) -> Compiled:
    return compile_world(world(*SITES, *objects, nodes=nodes(west=2, east=1), namespaces=(Namespace("a"),)))


def test_a_service_that_does_not_fit_is_rejected_with_the_numbers() -> None:
    services = [wide(number) for number in range(FULL + 1)]
    found = compiled(*services)
    (problem,) = found.problems
    assert (problem.name, problem.path, problem.reason) == (f"s{FULL}", "spec", Reason.LIMIT_EXCEEDED)
    taken = 65 * FULL + 1
    assert f"takes 66 of {MAX_REGIONS} nftables elements of an agent of SosSite west, where other services take {taken}" in problem.message
    assert problem.remedy.startswith("name fewer or wider prefixes")
    facts = found.facts[ObjectKey("SosService", "a", f"s{FULL}")]
    assert (facts.accepted, facts.resolved) == (False, False)
    documents = [standalone(document, found.parts) for document in found.agents.values()]
    sent = {service["id"] for document in documents for service in document["services"]}
    assert sent == {f"a/s{number}" for number in range(FULL)}
    assert {service["id"] for service in found.controllers["default"]["services"]} == sent
    assert compiled(*services[1:]).problems == (), "it fits after another service is deleted"


def test_observed_services_and_services_of_other_clients_take_no_regions() -> None:
    services = [wide(number) for number in range(FULL)]
    observed = wide(FULL, mode="Observe")
    back = obj("SosService", "back", {"from": {"site": "east"}, "to": {"site": "west"}, "ports": [{"port": 81}]}, namespace="a")
    assert compiled(*services, observed, back).problems == ()


def test_a_service_that_only_some_nodes_cannot_arm_has_a_warning() -> None:
    """Each pod of node a1 has servers of its own, which take 65 regions at this node, and none at node a2."""
    pods = tuple(Pod("default", f"p{n}", "a1", f"10.1.0.{n}", {"n": str(n)}) for n in range(1, FULL + 1))
    pods += (Pod("default", "q", "a2", "10.1.1.1", {"n": "q"}), Pod("default", "r", "a1", "10.1.0.253", {"n": "q"}))

    def selecting(name: str, label: str, prefixes: list[str]) -> dict[str, Any]:
        clients = {"site": "west", "pods": {"selector": {"matchLabels": {"n": label}}}}
        return routed_obj("SosService", name, "default", **{"from": clients, "to": {"site": "east", "prefixes": prefixes}})

    own = [selecting(f"a{n:03}", str(n), [f"10.2.{host}.{n}/32" for host in range(64)]) for n in range(1, FULL + 1)]
    last = selecting("last", "q", [f"10.2.{host}.254/32" for host in range(64)])
    more = (*NODES, Node("a2", {"site": "west"}, "172.18.0.5", pod_prefixes=("10.1.1.0/24",)))
    found = routed(WEST, EAST, POOL, *own, last, pods=pods, nodes=more)
    (problem,) = found.problems
    assert (problem.name, problem.reason, problem.warning) == ("last", Reason.LIMIT_EXCEEDED, True)
    assert problem.message.endswith("on 1 nodes (a1)")
    assert "default/last" in {service["id"] for service in found.agents["default", "a2"]["services"]}
    assert found.facts[ObjectKey("SosService", "default", "last")].resolved
