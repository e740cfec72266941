"""Sites without bridges: agents at their nodes' addresses, services without a controller (docs/adr/0056, docs/adr/0057)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sos_compile import Compiled, Namespace, Node, ObjectKey, Problem, Reason, World, compile_world

NODES = (
    Node("a1", {"site": "west"}, "172.18.0.2", pod_prefixes=("10.1.0.0/24",)),
    Node("b1", {"site": "east"}, "172.18.0.3", pod_prefixes=("10.2.0.0/24",)),
    Node("b2", {"site": "east"}, "172.18.0.4", pod_prefixes=("10.2.1.0/24",)),
)


def obj(kind: str, name: str, namespace: str | None = None, **spec: Any) -> dict[str, Any]:
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "sos.network/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


def site(name: str, prefix: str, **changes: Any) -> dict[str, Any]:
    routed = {"wan": {"type": "Routed"}, "intake": {"type": "Pods"}}
    return obj("SosSite", name, nodeSelector={"matchLabels": {"site": name}}, prefixes=[prefix], **(routed | changes))


WEST, EAST = site("west", "10.1.0.0/16"), site("east", "10.2.0.0/16")
POOL = obj("SosAgent", "default")
SERVICE = obj("SosService", "bulk", "default", **{"from": {"site": "west"}, "to": {"site": "east"}})


def world(*objects: dict[str, Any], **changes: Any) -> World:
    given = World(objects=objects, nodes=NODES, namespaces=(Namespace("default"),))
    given = replace(given, settings=replace(given.settings, namespace="default"))
    return replace(given, **changes)


def compiled(*objects: dict[str, Any], **changes: Any) -> Compiled:
    return compile_world(world(*objects, **changes))


def with_spec(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**base, "spec": base["spec"] | changes}


def problem(found: Compiled) -> Problem:
    (only,) = found.problems
    return only


def test_agents_have_their_nodes_addresses_and_there_is_nothing_else() -> None:
    found = compiled(WEST, EAST, POOL, SERVICE)
    assert found.problems == ()
    assert (found.controllers, found.nodes) == ({}, {})
    kinds = sorted({manifest["kind"] for manifest in found.manifests})
    assert kinds == ["ConfigMap", "DaemonSet", "PodDisruptionBudget"]
    near = found.agents["default", "a1"]
    assert (near["wan"], near["streamPorts"]) == (["172.18.0.2"], {"first": 10000, "count": 1})
    assert not {"interface", "discovery", "pods"} & set(near)
    (peer,) = near["peers"]
    assert [(agent["node"], agent["address"], agent["prefixes"]) for agent in peer["agents"]] == [
        ("b1", "172.18.0.3", ["10.2.0.0/24"]),
        ("b2", "172.18.0.4", ["10.2.1.0/24"]),
    ]


def test_services_are_proactive_and_hold_syns_at_the_ingress() -> None:
    found = compiled(WEST, EAST, POOL, SERVICE)
    near, far = (found.agents["default", node]["services"][0] for node in ("a1", "b1"))
    assert (near["role"], near["setup"], near["accept"]) == ("Ingress", "Proactive", "Learned")
    assert (far["role"], far["setup"]) == ("Egress", "Proactive")


def test_agents_run_in_the_nodes_network_and_see_pods_namespaces() -> None:
    found = compiled(WEST, EAST, POOL, SERVICE)
    pod = next(m for m in found.manifests if m["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["hostNetwork"] is True
    assert container["args"][container["args"].index("--attach") + 1] == "none"
    assert {"name": "netns", "mountPath": "/run/netns", "mountPropagation": "HostToContainer"} in container["volumeMounts"]


def test_a_router_enters_no_pods() -> None:
    routed = site("west", "10.1.0.0/16", intake={"type": "Routed", "interface": "eth1"})
    found = compiled(routed, EAST, POOL, SERVICE)
    assert found.agents["default", "a1"]["intake"] == {"type": "Routed", "interface": "eth1"}
    (daemon_set,) = (m for m in found.manifests if m["kind"] == "DaemonSet" and m["metadata"]["name"].endswith("west"))
    assert "netns" not in {volume["name"] for volume in daemon_set["spec"]["template"]["spec"]["volumes"]}


def test_all_agents_of_a_site_follow_its_virtual_address() -> None:
    routed = site("east", "10.2.0.0/16", intake={"type": "Routed", "interface": "eth1", "virtualAddress": "10.2.0.1"})
    found = compiled(WEST, routed, POOL, SERVICE)
    expected = {"type": "Routed", "interface": "eth1", "virtualAddress": "10.2.0.1"}
    assert [found.agents["default", node]["intake"] for node in ("b1", "b2")] == [expected, expected]
    assert [agent["node"] for agent in found.agents["default", "a1"]["peers"][0]["agents"]] == ["b1", "b2"]


def test_a_change_of_a_nodes_pod_prefixes_reaches_its_peers() -> None:
    memo_free = compiled(WEST, EAST, POOL, SERVICE, nodes=(*NODES[:2], replace(NODES[2], pod_prefixes=("10.2.9.0/24",))))
    (peer,) = memo_free.agents["default", "a1"]["peers"]
    assert peer["agents"][1]["prefixes"] == ["10.2.9.0/24"]


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"setup": "Reactive"}, "spec.setup"),
        ({"mode": "Observe"}, "spec.mode"),
        ({"percent": 50}, "spec.percent"),
        ({"paths": {"mode": "Measured", "max": 2}}, "spec.paths.mode"),
        ({"require": ["Accelerated"]}, "spec.require"),
        ({"controller": {"name": "default"}}, "spec.controller.name"),
    ],
)
def test_settings_that_need_a_controller_are_refused(changes: dict[str, Any], path: str) -> None:
    refused = problem(compiled(WEST, EAST, POOL, with_spec(SERVICE, **changes)))
    assert (refused.path, refused.reason) == (path, Reason.INVALID)
    assert "needs a controller" in refused.message


def test_agents_without_a_controller_apply_the_shares_of_namespaces_themselves() -> None:
    rules = {"namespaces": "All", "rules": [{"namespaces": ["default"], "sessionsPercent": 10}]}
    other = {**SERVICE, "metadata": {"name": "other", "namespace": "shop"}}
    ruled = (site("west", "10.1.0.0/16", services=rules), with_spec(EAST, services={"namespaces": "All"}))
    found = compiled(*ruled, POOL, SERVICE, other, namespaces=(Namespace("default"), Namespace("shop")))
    assert [problem for problem in found.problems if not problem.warning] == []
    assert found.agents["default", "a1"]["shares"] == [{"namespace": "default", "percent": 10}, {"namespace": "shop", "percent": 75}]
    assert found.agents["default", "b1"]["shares"] == [{"namespace": "default", "percent": 75}, {"namespace": "shop", "percent": 75}]


def test_a_single_namespace_has_all_sessions() -> None:
    assert "shares" not in compiled(WEST, EAST, POOL, SERVICE).agents["default", "a1"]


def test_a_routed_site_and_a_site_with_a_bridge_are_not_connected() -> None:
    bridged = obj("SosSite", "east", nodeSelector={"matchLabels": {"site": "east"}}, prefixes=["10.2.0.0/16"])
    refused = problem(compiled(WEST, bridged, POOL, SERVICE, obj("SosController", "default")))
    assert (refused.kind, refused.path) == ("SosService", "spec")
    assert "SosSite west has no bridge" in refused.message


def test_a_routed_site_has_no_switch_that_balances() -> None:
    balanced = obj(
        "SosService",
        "spread",
        "default",
        balance={},
        to={"prefixes": ["0.0.0.0/0"]},
        **{"from": {"site": "west", "prefixes": ["10.1.0.7/32"]}},
    )
    refused = problem(compiled(WEST, POOL, balanced))
    assert refused.path == "spec.from.site" and "no bridge" in refused.message


def test_a_second_pool_does_not_intercept_the_same_pods() -> None:
    found = compiled(WEST, EAST, POOL, obj("SosAgent", "second"), SERVICE)
    assert {pool for pool, _ in found.agents} == {"default"}
    assert {(p.kind, p.name, p.warning) for p in found.problems} == {("SosAgent", "second", True)}


def test_a_node_without_an_address_has_no_agent() -> None:
    found = compiled(WEST, EAST, POOL, SERVICE, nodes=(NODES[0], replace(NODES[1], address=""), NODES[2]))
    assert set(found.agents) == {("default", "a1"), ("default", "b2")}
    assert "no agent on it" in problem(found).message


def test_network_policies_are_respected_unless_ignored() -> None:
    found = compiled(WEST, EAST, POOL, SERVICE)
    assert found.agents["default", "a1"]["intake"] == {"type": "Pods", "networkPolicies": "Respect"}
    ignoring = {"type": "Pods", "networkPolicies": "Ignore"}
    found = compiled(site("west", "10.1.0.0/16", intake=ignoring), EAST, POOL, SERVICE)
    assert found.agents["default", "a1"]["intake"] == {"type": "Pods"}


def with_addresses(**nodes: list[str]) -> dict[str, Any]:
    return {"type": "Routed", "addresses": [{"node": node, "addresses": own} for node, own in nodes.items()]}


TWO_PATHS = (
    site("west", "10.1.0.0/16", wan=with_addresses(a1=["192.0.2.1", "198.51.100.1"])),
    site("east", "10.2.0.0/16", wan=with_addresses(b1=["192.0.2.2", "198.51.100.2"])),
)


@pytest.mark.parametrize(
    ("paths", "labels"), [({}, 2), ({"mode": "Shortest"}, 1), ({"mode": "Disjoint", "max": 2}, 2), ({"mode": "Disjoint", "max": 1}, 1)]
)
def test_several_addresses_of_nodes_are_several_paths(paths: dict[str, Any], labels: int) -> None:
    found = compiled(*TWO_PATHS, POOL, with_spec(SERVICE, paths=paths))
    assert found.problems == ()
    near = found.agents["default", "a1"]
    assert (near["wan"], near["streamPorts"]) == (["192.0.2.1", "198.51.100.1"], {"first": 10000, "count": 2})
    (peer,) = near["peers"]
    # b2 is not in wan.addresses, so it has only its InternalIP. The list of one address shows the agent that there is no second path to b2.
    assert [(a["address"], a["addresses"]) for a in peer["agents"]] == [
        ("192.0.2.2", ["192.0.2.2", "198.51.100.2"]),
        ("172.18.0.4", ["172.18.0.4"]),
    ]
    assert near["services"][0]["labels"] == labels


def test_paths_of_an_agent_with_one_address() -> None:
    found = compiled(*TWO_PATHS, POOL, SERVICE)
    assert found.agents["default", "b2"]["services"][0]["labels"] == 1
    assert found.agents["default", "b2"]["wan"] == ["172.18.0.4"]


def test_a_declared_address_replaces_a_missing_internal_ip() -> None:
    found = compiled(*TWO_PATHS, POOL, SERVICE, nodes=(replace(NODES[0], address=""), replace(NODES[1], address="fd00::1"), NODES[2]))
    assert found.problems == ()
    assert set(found.agents) == {("default", "a1"), ("default", "b1"), ("default", "b2")}


@pytest.mark.parametrize("taken", ["172.18.0.4", "192.0.2.2"])
def test_an_address_belongs_to_one_node(taken: str) -> None:
    east = site("east", "10.2.0.0/16", wan=with_addresses(b1=["192.0.2.2", "198.51.100.2"]))
    west = site("west", "10.1.0.0/16", wan=with_addresses(a1=["192.0.2.1", taken]))
    # The older site comes first.
    named = [
        {**each, "metadata": each["metadata"] | {"creationTimestamp": f"2026-01-0{i}T00:00:00Z"}} for i, each in enumerate((east, west), 1)
    ]
    found = compiled(*named, POOL, SERVICE)
    assert set(found.agents) == {("default", "b1"), ("default", "b2")}
    assert (problem(found).name, problem(found).path, problem(found).warning) == ("west", "spec.wan.addresses", True)
    assert taken in problem(found).message


def test_addresses_of_an_unknown_node_are_a_warning() -> None:
    west = site("west", "10.1.0.0/16", wan=with_addresses(a7=["192.0.2.1"]))
    assert "no node a7" in problem(compiled(west, EAST, POOL, SERVICE)).message


def test_nodes_without_a_usable_address_have_no_agent() -> None:
    """A node with addresses of its own in spec.wan.addresses does not need its InternalIP."""
    broken = (replace(NODES[0], address="2001:db8::1"), *NODES[1:])
    found = compiled(WEST, EAST, POOL, SERVICE, nodes=broken)
    problems = found.facts[ObjectKey("SosSite", "", "west")].node_problems
    assert set(problems) == {"a1"} and problems["a1"].startswith("no agent: its only InternalIP 2001:db8::1 is not IPv4")
    declared = with_spec(WEST, wan={"type": "Routed", "addresses": [{"node": "a1", "addresses": ["192.0.2.1"]}]})
    found = compiled(declared, EAST, POOL, SERVICE, nodes=broken)
    assert found.facts[ObjectKey("SosSite", "", "west")].node_problems == {}
    assert ("default", "a1") in found.agents
