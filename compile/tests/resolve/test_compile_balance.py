"""Test services with spec.balance: acceptance, documents, and the problems of rejected services."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import ObjectKey, Reason, compile_world
from sos_compile.artifacts import BALANCE, example_world
from worlds import nodes, obj, site, world

HOST = "10.1.0.7/32"
PLAIN = {"name": "wan2"}


def uplink(i: int, **more: Any) -> dict[str, Any]:
    return {"name": f"wan{i}", "base": i == 0, "address": f"192.0.2.{4 * i + 2}/30", "gateway": f"192.0.2.{4 * i + 1}", **more}


def home(*uplinks: dict[str, Any], **spec: Any) -> dict[str, Any]:
    listed = list(uplinks) or [uplink(0), uplink(1), PLAIN]
    return site("home", "10.1.0.0/24", wan={"type": "Uplinks", "uplinks": listed}, **spec)


def balanced(name: str = "spread", host: str = HOST, balance: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    ends = {"from": {"site": "home", "prefixes": [host]}, "to": {"prefixes": ["0.0.0.0/0"]}, "ports": [{"port": 80}]}
    return obj("SosService", name, {**ends, "balance": balance or {}, **spec})


def test_all_uplinks_with_an_address_have_equal_weight_by_default() -> None:
    compiled = compile_world(world(home(), balanced(), nodes=nodes(home=1)))
    assert compiled.problems == ()
    (entry,) = compiled.controllers["default"]["balances"]
    assert [(up["name"], up["weight"], up["address"], up["gateway"]) for up in entry["uplinks"]] == [
        ("wan0", 1, "192.0.2.2", "192.0.2.1"),
        ("wan1", 1, "192.0.2.6", "192.0.2.5"),
    ]
    assert (entry["client"], entry["to"], entry["at"]) == ("10.1.0.7", ["0.0.0.0/0"], "Controller")
    assert entry["dpid"] == compiled.nodes["home-0"]["bridge"]["datapathId"]
    assert compiled.controllers["default"]["services"] == []


def test_weights_reach_the_controller_config() -> None:
    wish = {"at": "Switch", "uplinks": [{"name": "wan1", "weight": 2}, {"name": "wan0"}]}
    compiled = compile_world(world(home(), balanced(balance=wish), nodes=nodes(home=1)))
    (entry,) = compiled.controllers["default"]["balances"]
    assert (entry["at"], [(up["name"], up["weight"]) for up in entry["uplinks"]]) == ("Switch", [("wan1", 2), ("wan0", 1)])


def test_balanced_service_has_the_facts_of_any_service() -> None:
    compiled = compile_world(world(home(), balanced(), nodes=nodes(home=1)))
    facts = compiled.facts[ObjectKey("SosService", "sos-system", "spread")]
    assert facts.text == {"from": "home (10.1.0.7)", "to": "0.0.0.0/0", "ports": "80", "mode": "Accelerate"}
    assert (facts.sites, facts.controllers) == (("home",), ("default",))


def test_switches_that_rewrite_addresses_disable_segmentation_offload() -> None:
    rewriting = site("old", "10.3.0.0/16", datapath={"rewrite": "OpenFlow"})
    compiled = compile_world(world(home(), site("far", "10.2.0.0/16"), rewriting, nodes=nodes(home=1, far=1, old=1)))
    tso = {name: node["bridge"]["userspaceTso"] for name, node in compiled.nodes.items()}
    assert tso == {"home-0": False, "far-0": True, "old-0": False}
    told = {entry["name"]: entry["rewrite"] for entry in compiled.controllers["default"]["sites"]}
    assert told == {"home": "Transparent", "far": "Transparent", "old": "OpenFlow"}
    assert {doc["site"]["name"]: doc["site"]["rewrite"] for doc in compiled.agents.values()}["old"] == "OpenFlow"
    off = {"name": "OVS_USERSPACE_TSO", "value": "false"}
    pods = {m["metadata"]["name"]: m["spec"]["template"]["spec"] for m in compiled.manifests if m["kind"] == "DaemonSet"}
    environments = {name: container["env"] for name, pod in pods.items() for container in pod["containers"] if container["name"] == "ovs"}
    assert {name: off in env for name, env in environments.items()} == {"sos-node-home": True, "sos-node-far": False, "sos-node-old": True}


@pytest.mark.parametrize(
    ("where", "how", "count", "reason", "path", "words"),
    [
        ({}, {"host": "10.1.0.0/28"}, 1, Reason.INVALID, "spec.from.prefixes", "one host"),
        ({}, {"host": "10.9.0.7/32"}, 1, Reason.PREFIX_OUTSIDE_SITE, "spec.from.prefixes", "not inside"),
        ({}, {}, 2, Reason.INVALID, "spec.from.site", "2 switches"),
        ({}, {}, 0, Reason.INVALID, "spec.from.site", "0 switches"),
        (
            {},
            {"balance": {"uplinks": [{"name": "wan0"}, {"name": "wan9", "weight": 3}]}},
            1,
            Reason.UPLINK_NOT_FOUND,
            "spec.balance.uplinks[1].name",
            "has no uplink wan9",
        ),
        ({}, {"balance": {"uplinks": [{"name": "wan2"}]}}, 1, Reason.UPLINK_NOT_FOUND, "spec.balance.uplinks[0].name", "has no address"),
        ({"uplinks": [{"name": "wan0", "base": True}]}, {}, 1, Reason.UPLINK_NOT_FOUND, "spec.balance", "no uplink of SosSite home has"),
        ({}, {"from": {"site": "atlantis", "prefixes": [HOST]}}, 1, Reason.SITE_NOT_FOUND, "spec.from.site", "atlantis"),
        ({"services": {"namespaces": "Selector", "selector": {}}}, {}, 1, None, "", ""),
        (
            {"services": {"namespaces": "Selector", "selector": {"matchLabels": {"a": "b"}}}},
            {},
            1,
            Reason.NOT_PERMITTED,
            "spec.from.site",
            "does not allow",
        ),
    ],
)
def test_impossible_balances_are_rejected_with_a_remedy(
    where: dict[str, Any], how: dict[str, Any], count: int, reason: Reason | None, path: str, words: str
) -> None:
    uplinks, spec = where.get("uplinks", []), {key: value for key, value in where.items() if key != "uplinks"}
    compiled = compile_world(world(home(*uplinks, **spec), balanced(**how), nodes=nodes(home=count)))
    assert [(p.reason, p.path) for p in compiled.problems] == ([(reason, path)] if reason else [])
    assert all(words in p.message and p.remedy for p in compiled.problems)
    assert len(compiled.controllers["default"]["balances"]) == (0 if reason else 1)


def test_uplink_address_represents_only_the_first_of_two_hosts() -> None:
    young = balanced("young", "10.1.0.8/32", priority=7)
    compiled = compile_world(world(home(), balanced(), young, balanced("same", ports=[{"port": 443}]), nodes=nodes(home=1)))
    (problem,) = compiled.problems
    assert (problem.name, problem.reason, problem.path) == ("young", Reason.DUPLICATE, "spec.balance.uplinks")
    assert "is already used for 10.1.0.7" in problem.message
    assert [entry["id"] for entry in compiled.controllers["default"]["balances"]] == ["sos-system/same", "sos-system/spread"]


@pytest.mark.parametrize(
    ("wrong", "reason", "path"),
    [
        (uplink(0, gateway="192.0.3.1"), Reason.INVALID, "spec.wan.uplinks[0].gateway"),
        (uplink(0, gateway="192.0.2.2"), Reason.INVALID, "spec.wan.uplinks[0].gateway"),
        (uplink(0, address="192.0.2.6/30", gateway="192.0.2.5"), Reason.DUPLICATE, "spec.wan.uplinks[1].address"),
    ],
)
def test_inconsistent_uplink_addresses_are_rejected(wrong: dict[str, Any], reason: Reason, path: str) -> None:
    (problem,) = compile_world(world(home(wrong, uplink(1)), nodes=nodes(home=1))).problems
    assert (problem.kind, problem.reason, problem.path) == ("SosSite", reason, path)


@given(st.permutations([balanced(f"s{i}", "10.1.0.7/32" if i % 2 else "10.1.0.8/32", priority=i // 2) for i in range(5)]))
def test_the_order_of_objects_does_not_matter(services: list[dict[str, Any]]) -> None:
    compiled = compile_world(world(home(), *services, nodes=nodes(home=1)))
    in_order = compile_world(world(home(), *sorted(services, key=lambda s: s["metadata"]["name"]), nodes=nodes(home=1)))
    assert (compiled.controllers, compiled.problems) == (in_order.controllers, in_order.problems)


def test_balance_example_has_no_agents() -> None:
    compiled = compile_world(example_world("04-balance", BALANCE))
    assert compiled.agents == {}
    assert {entry["at"] for entry in compiled.controllers["default"]["balances"]} == {"Controller", "Switch"}
