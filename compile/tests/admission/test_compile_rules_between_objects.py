"""Test rules between objects that no schema covers. The younger of two conflicting objects gets a problem with a remedy."""

from __future__ import annotations

from typing import Any

import pytest
from sos_compile import Namespace, Node, ObjectKey, Problem, Reason, Settings, compile_world
from worlds import nodes, obj, service, site, world

OLD = {"creationTimestamp": "2026-01-01T00:00:00Z"}
YOUNG = {"creationTimestamp": "2026-02-01T00:00:00Z"}
A, B = site("a", "10.0.0.0/16", metadata=OLD), site("b", "10.1.0.0/16", metadata=OLD)


def only(*objects: Any, **fields: Any) -> Problem:
    problems = compile_world(world(*objects, **fields)).problems
    assert len(problems) == 1, problems
    assert problems[0].remedy
    return problems[0]


@pytest.mark.parametrize(
    ("young", "reason", "path"),
    [
        (site("y", "10.0.128.0/17", metadata=YOUNG), Reason.OVERLAPPING_PREFIXES, "spec.prefixes"),
        (
            site("y", "10.2.0.0/16", metadata=YOUNG, network={"subnet": "10.0.0.0/8", "agentAddresses": "10.0.5.0/24"}),
            Reason.OVERLAPPING_PREFIXES,
            "spec.prefixes",
        ),
        (site("y", "10.2.0.0/16", metadata=YOUNG, network={"agentAddresses": "10.3.0.0/24"}), Reason.INVALID, "spec.network"),
        (site("y", "10.2.0.0/16", metadata=YOUNG, gateway="10.2.0.1/24"), Reason.INVALID, "spec.gateway"),
        (site("y", metadata=YOUNG, controllers=[{"name": "nobody"}]), Reason.CONTROLLER_NOT_FOUND, "spec.controllers[0].name"),
        (
            obj("SosLink", "y", {"a": {"site": "a", "uplink": "wan0"}, "b": {"site": "b", "uplink": "wan0"}}),
            Reason.UPLINK_NOT_FOUND,
            "spec.a.uplink",
        ),
        (
            obj("SosLink", "y", {"a": {"site": "c", "uplink": "wan0"}, "b": {"site": "b", "uplink": "wan0"}}),
            Reason.SITE_NOT_FOUND,
            "spec.a.site",
        ),
        (service("y", "a", "nowhere", 80), Reason.SITE_NOT_FOUND, "spec.to.site"),
        (service("y", "nowhere", "b", 80), Reason.SITE_NOT_FOUND, "spec.from.site"),
        (service("y", "a", "b", 80, to={"site": "b", "prefixes": ["10.9.0.0/16"]}), Reason.PREFIX_OUTSIDE_SITE, "spec.to.prefixes"),
        (service("y", "a", "b", 80, to={"prefixes": ["10.9.0.0/16"]}), Reason.SITE_NOT_FOUND, "spec.to.prefixes"),
        (service("y", "a", "b", 80, to={"prefixes": ["10.0.1.0/24"]}), Reason.INVALID, "spec.to"),
    ],
)
def test_problem_belongs_to_the_object_that_causes_it(young: dict[str, Any], reason: Reason, path: str) -> None:
    problem = only(A, B, young)
    assert (problem.kind, problem.name, problem.reason, problem.path) == (young["kind"], "y", reason, path)


def test_older_of_two_sites_keeps_a_shared_id() -> None:
    problem = only({**A, "spec": {**A["spec"], "siteID": 7}}, site("y", "10.2.0.0/16", metadata=YOUNG, siteID=7))
    assert (problem.name, problem.reason) == ("y", Reason.DUPLICATE_SITE_ID)


def test_allocated_id_does_not_collide_with_a_declared_id() -> None:
    compiled = compile_world(world(A, site("y", "10.2.0.0/16", metadata=YOUNG, siteID=1)))
    assert compiled.problems == ()
    assert compiled.allocations.sites == {"a": 2, "y": 1}


def test_service_of_a_rejected_site_reports_the_rejection() -> None:
    bad = site("y", "10.0.0.0/24", metadata=YOUNG)
    compiled = compile_world(world(A, bad, service("s", "a", "y", 80)))
    messages = {problem.name: problem.message for problem in compiled.problems}
    assert "not accepted" in messages["s"]
    assert compiled.facts[ObjectKey("SosService", "sos-system", "s")].accepted
    assert not compiled.facts[ObjectKey("SosService", "sos-system", "s")].resolved


def test_service_at_a_transit_site_is_invalid() -> None:
    assert only(A, site("t"), service("s", "a", "t", 80)).reason == Reason.INVALID


def test_sites_of_different_controllers_cannot_share_a_service() -> None:
    other = obj("SosController", "other")
    far = site("b", "10.1.0.0/16", metadata=OLD, controllers=[{"name": "other"}])
    assert only(A, far, other, service("s", "a", "b", 80)).reason == Reason.CONTROLLER_NOT_FOUND


def test_slices_have_their_own_configuration() -> None:
    both = site("b", "10.1.0.0/16", metadata=OLD, controllers=[{"name": "other"}, {"name": "default"}])
    compiled = compile_world(world(A, both, obj("SosController", "other"), service("s", "a", "b", 80), nodes=nodes(a=1, b=1)))
    assert compiled.problems == ()
    assert [entry["name"] for entry in compiled.controllers["other"]["sites"]] == ["b"]
    assert compiled.controllers["other"]["services"] == []
    assert [entry["id"] for entry in compiled.controllers["default"]["services"]] == ["sos-system/s"]
    assert compiled.controllers["other"]["controller"] == {"name": "other", "id": 2}


def test_service_belongs_to_its_declared_slice() -> None:
    slices = [{"name": "default"}, {"name": "other"}]
    near, far = (site(name, prefix, controllers=slices) for name, prefix in (("a", "10.0.0.0/16"), ("b", "10.1.0.0/16")))
    here, there = service("s", "a", "b", 80), service("t", "a", "b", 443, controller={"name": "other"})
    compiled = compile_world(world(near, far, obj("SosController", "other"), here, there, nodes=nodes(a=1, b=1)))
    assert compiled.problems == ()
    assert {name: [entry["id"] for entry in made["services"]] for name, made in compiled.controllers.items()} == {
        "default": ["sos-system/s"],
        "other": ["sos-system/t"],
    }


def test_service_of_a_slice_without_one_of_its_sites_is_a_problem() -> None:
    far = site("b", "10.1.0.0/16", metadata=OLD, controllers=[{"name": "default"}, {"name": "other"}])
    problem = only(A, far, obj("SosController", "other"), service("s", "a", "b", 80, controller={"name": "other"}))
    assert (problem.reason, problem.path) == (Reason.CONTROLLER_NOT_FOUND, "spec.controller.name")
    assert "SosSite a" in problem.message and "other" in problem.message


def test_site_without_its_controller_keeps_forwarding() -> None:
    lonely = site("a", "10.0.0.0/16", controllers=[{"name": "gone"}])
    compiled = compile_world(world(lonely, nodes=nodes(a=1)))
    assert [problem.reason for problem in compiled.problems] == [Reason.CONTROLLER_NOT_FOUND]
    assert compiled.nodes["a-0"]["controllers"] == []
    assert compiled.nodes["a-0"]["baseFlows"]
    assert compiled.facts[ObjectKey("SosSite", "", "a")].accepted


@pytest.mark.parametrize(
    ("services", "namespaces", "allowed"),
    [
        ({}, (), False),
        ({"namespaces": "All"}, (), True),
        ({"namespaces": "Selector", "selector": {"matchLabels": {"sos": "yes"}}}, (Namespace("team", {"sos": "yes"}),), True),
        ({"namespaces": "Selector", "selector": {"matchLabels": {"sos": "yes"}}}, (Namespace("team"),), False),
        ({"namespaces": "Selector", "selector": {"matchExpressions": [{"key": "sos", "operator": "DoesNotExist"}]}}, (), True),
        ({"namespaces": "Selector", "selector": {"matchLabels": {"kubernetes.io/metadata.name": "team"}}}, (), True),
    ],
)
def test_site_admits_only_permitted_namespaces(services: dict[str, Any], namespaces: tuple[Namespace, ...], allowed: bool) -> None:
    guarded = site("b", "10.1.0.0/16", services=services)
    foreign = obj("SosService", "s", {"from": {"site": "a"}, "to": {"site": "b"}}, namespace="team")
    opened = site("a", "10.0.0.0/16", services={"namespaces": "All"})
    compiled = compile_world(world(opened, guarded, foreign, namespaces=namespaces))
    assert [problem.reason for problem in compiled.problems] == ([] if allowed else [Reason.NOT_PERMITTED])
    assert len(compiled.controllers["default"]["services"]) == allowed


def test_release_namespace_comes_from_the_settings() -> None:
    made = world(A, B, service("s", "a", "b", 80), settings=Settings(namespace="elsewhere"))
    assert {problem.reason for problem in compile_world(made).problems} == {Reason.NOT_PERMITTED}


def test_node_belongs_to_the_older_of_two_sites() -> None:
    machines = (Node("n1", {"sos.network/site": "a"}, "192.0.2.1"), Node("n2", {"sos.network/site": "y"}, "192.0.2.2"))
    greedy = obj("SosSite", "y", {"nodeSelector": {"matchExpressions": [{"key": "sos.network/site", "operator": "Exists"}]}}, **YOUNG)
    compiled = compile_world(world(A, greedy, nodes=machines))
    assert [(problem.name, problem.reason, problem.warning) for problem in compiled.problems] == [("y", Reason.OVERLAPPING_NODES, True)]
    assert compiled.nodes["n1"]["site"] == "a"
    assert compiled.nodes["n2"]["site"] == "y"
    daemon_set = next(m for m in compiled.manifests if m["kind"] == "DaemonSet" and m["metadata"]["name"] == "sos-node-y")
    term = daemon_set["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ][0]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]


def test_node_with_a_too_long_name_is_omitted() -> None:
    compiled = compile_world(world(A, nodes=(Node("n" * 64, {"sos.network/site": "a"}, "192.0.2.1"),)))
    assert [(problem.reason, problem.warning) for problem in compiled.problems] == [(Reason.LIMIT_EXCEEDED, True)]
    assert compiled.nodes == {}


def test_a_node_without_an_address_has_no_tunnels() -> None:
    machines = (*nodes(a=2), Node("a-9", {"sos.network/site": "a"}))
    compiled = compile_world(world(A, nodes=machines))
    assert [problem.reason for problem in compiled.problems] == [Reason.NO_NODE_ADDRESS]
    assert {name: len(doc["tunnels"]) for name, doc in compiled.nodes.items()} == {"a-0": 1, "a-1": 1, "a-9": 0}


def test_prefix_that_is_too_small_for_the_agents_is_reported() -> None:
    compiled = compile_world(world(site("a", "10.0.0.0/30", gateway="10.0.0.1/30"), nodes=nodes(a=2)))
    assert [problem.reason for problem in compiled.problems] == [Reason.NO_ADDRESSES]
    assert [doc["interface"]["address"] for doc in compiled.agents.values()] == ["10.0.0.2/30"]
    assert set(compiled.nodes) == {"a-0", "a-1"}


def test_host_local_addresses_are_refused_for_several_nodes() -> None:
    spec = {"network": {"ipam": {"type": "host-local", "subnet": "10.0.0.0/16"}}}
    networks = []
    for count in (1, 2):
        compiled = compile_world(world(site("a", "10.0.0.0/16", **spec), nodes=nodes(a=count)))
        networks.append(
            (len(compiled.problems), sum(m["kind"] == "NetworkAttachmentDefinition" for m in compiled.manifests), len(compiled.nodes))
        )
    assert networks == [(0, 1, 1), (1, 0, 2)]


def test_duplicate_object_is_a_problem_and_the_first_counts() -> None:
    compiled = compile_world(world(A, site("a", "10.5.0.0/16", metadata=YOUNG)))
    assert [(problem.name, problem.reason) for problem in compiled.problems] == [("a", Reason.DUPLICATE)]
    assert compiled.controllers["default"]["sites"][0]["prefixes"] == ["10.0.0.0/16"]


def test_a_datapath_belongs_to_one_site() -> None:
    def switch(name: str, age: dict[str, str]) -> dict[str, Any]:
        return obj("SosSite", name, {"datapaths": [{"dpid": "00000000000000ff"}]}, **age)

    problem = only(switch("z", OLD), switch("y", YOUNG))
    assert (problem.name, problem.reason) == ("y", Reason.DUPLICATE)


def test_uplink_belongs_to_one_link() -> None:
    made = [site("a", base=1, metadata=OLD), site("b", base=1, metadata=OLD), site("c", base=1, metadata=OLD)]
    links = [
        obj("SosLink", f"l{i}", {"a": {"site": "a", "uplink": "wan0"}, "b": {"site": far, "uplink": "wan0"}}) for i, far in enumerate("bc")
    ]
    problem = only(*made, *links)
    assert (problem.name, problem.reason) == ("l1", Reason.DUPLICATE)


def test_two_hubs_without_declared_links_are_a_base_loop() -> None:
    problem = only(site("a", base=2, metadata=OLD), site("y", base=2, metadata=YOUNG), nodes=nodes(a=1, y=1))
    assert (problem.name, problem.reason) == ("y", Reason.BASE_LOOP)


def test_hub_with_two_nodes_is_a_base_loop() -> None:
    assert only(site("a", base=2), nodes=nodes(a=2)).reason == Reason.BASE_LOOP


def test_services_are_ordered_by_priority_then_age() -> None:
    made = [
        service("late", "a", "b", 80, priority=100),
        {**service("early", "a", "b", 80, priority=100), "metadata": {"name": "early", "namespace": "sos-system", **OLD}},
        service("first", "a", "b", 80, priority=200),
        service("last", "a", "b", 80, priority=1),
    ]
    made[0]["metadata"].update(YOUNG)
    ids = [entry["id"] for entry in compile_world(world(A, B, *made)).controllers["default"]["services"]]
    assert ids == ["sos-system/first", "sos-system/early", "sos-system/late", "sos-system/last"]


def test_ports_are_merged_and_an_absent_list_means_all_ports() -> None:
    spec = {"from": {"site": "a"}, "to": {"site": "b"}}
    ranges = [{"port": 81, "endPort": 90}, {"port": 80}, {"port": 85, "endPort": 100}, {"port": 22}]
    compiled = compile_world(world(A, B, obj("SosService", "some", {**spec, "ports": ranges}), obj("SosService", "all", spec)))
    found = {entry["id"]: entry["ports"] for entry in compiled.controllers["default"]["services"]}
    assert found["sos-system/some"] == [{"first": 22, "last": 22}, {"first": 80, "last": 100}]
    assert found["sos-system/all"] == [{"first": 1, "last": 65535}]
    assert compiled.facts[ObjectKey("SosService", "sos-system", "all")].text["ports"] == "*"
    assert compiled.facts[ObjectKey("SosService", "sos-system", "some")].text["ports"] == "22,80-100"


def test_observing_services_are_absent_from_agent_configs() -> None:
    compiled = compile_world(world(A, B, service("s", "a", "b", 80, mode="Observe"), nodes=nodes(a=1, b=1)))
    assert compiled.controllers["default"]["services"][0]["mode"] == "Observe"
    assert [doc["services"] + doc["peers"] for doc in compiled.agents.values()] == [[], []]


def test_agents_at_both_sites_have_their_role_and_peer() -> None:
    compiled = compile_world(world(A, B, service("s", "a", "b", 80), nodes=nodes(a=1, b=1)))
    roles = {node: (doc["services"][0]["role"], doc["peers"][0]["site"]) for (_, node), doc in compiled.agents.items()}
    assert roles == {"a-0": ("Ingress", "b"), "b-0": ("Egress", "a")}


def test_agents_of_two_pools_on_a_node_have_separate_interfaces() -> None:
    compiled = compile_world(world(A, obj("SosAgent", "second"), nodes=nodes(a=1)))
    first, second = compiled.agents["default", "a-0"], compiled.agents["second", "a-0"]
    for field in ("name", "address", "mac", "hostName", "hostPort"):
        assert (first["interface"][field] == second["interface"][field]) == (field == "name")
    assert first["metricsAddress"] != second["metricsAddress"]
    assert [port["name"] for port in compiled.nodes["a-0"]["agentPorts"]] == ["sosag0", "sosag1"]


def test_site_facts_contain_the_mtu_in_force() -> None:
    uplinks = site("b", "10.2.0.0/16", wan={"type": "Uplinks", "uplinks": [{"name": "wan0", "base": True}]})
    facts = compile_world(world(A, uplinks, site("c", "10.3.0.0/16", network={"mtu": 9000}))).facts
    assert [facts[ObjectKey("SosSite", "", name)].mtu for name in "abc"] == [1450, 1500, 9000]
