"""Nodes, ports and resources of the pods: spec.nodeSelector, tolerations and affinity, and the chart's ports and default resources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sos_compile import Compiled, DefaultResources, Node, Ports, Settings, compile_world, find_port_conflict
from worlds import nodes, obj, site, world

GATEWAYS = {"matchExpressions": [{"key": "gateway", "operator": "Exists"}]}


def pod_of(found: Compiled, kind: str, name: str) -> dict[str, Any]:
    (manifest,) = [m for m in found.manifests if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    pod: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return pod


def labelled(node: Node) -> Node:
    return replace(node, labels={**node.labels, "gateway": ""})


def test_agents_run_on_the_nodes_that_the_pool_selects() -> None:
    first, second = nodes(a=2)
    pool = obj("SosAgent", "default", {"nodeSelector": GATEWAYS})
    found = compile_world(world(site("a", "10.0.0.0/16"), pool, nodes=(first, labelled(second)), defaults=False))
    assert set(found.agents) == {("default", second.name)}
    assert set(found.nodes) == {first.name, second.name}, "each node has a bridge"
    (term,) = pod_of(found, "DaemonSet", "sos-agent-default-a")["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert {"key": "gateway", "operator": "Exists"} in term["matchExpressions"]
    (term,) = pod_of(found, "DaemonSet", "sos-node-a")["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert "gateway" not in str(term)


def test_agents_of_a_site_without_a_bridge_run_on_selected_nodes() -> None:
    first, second = nodes(a=2)
    routed = site("a", "10.0.0.0/16", wan={"type": "Routed"}, intake={"type": "Pods"})
    pool = obj("SosAgent", "default", {"nodeSelector": GATEWAYS})
    found = compile_world(world(routed, pool, nodes=(first, labelled(second)), defaults=False))
    assert set(found.agents) == {("default", second.name)}


def test_a_controllers_pod_has_the_declared_placement() -> None:
    placement = {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "control", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    }
    pod = pod_of(compile_world(world(obj("SosController", "c", placement))), "Deployment", "sos-controller-c")
    lost = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}
        for key in ("not-ready", "unreachable")
    ]
    assert {name: pod[name] for name in placement} == placement | {"tolerations": [*placement["tolerations"], *lost]}
    plain = pod_of(compile_world(world(obj("SosController", "c"))), "Deployment", "sos-controller-c")
    assert {name: plain[name] for name in placement if name in plain} == {"tolerations": lost}


@pytest.mark.parametrize(
    ("declared", "added"),
    [
        ({"operator": "Exists"}, []),
        ({"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}, ["not-ready"]),
    ],
)
def test_declared_tolerations_of_lost_nodes_take_precedence(declared: dict[str, Any], added: list[str]) -> None:
    found = compile_world(world(obj("SosController", "c", {"tolerations": [declared]})))
    first, *others = pod_of(found, "Deployment", "sos-controller-c")["tolerations"]
    assert first == declared and [each["key"].rpartition("/")[2] for each in others] == added


def test_default_resources_apply_where_an_object_sets_none() -> None:
    own = {"limits": {"memory": "1Gi"}}
    more = DefaultResources(agent={"requests": {"cpu": "1"}}, controller={"requests": {"cpu": "2"}})
    objects = (site("a", "10.0.0.0/16"), obj("SosAgent", "p", {"resources": own}), obj("SosController", "c", {"resources": own}))
    found = compile_world(world(*objects, nodes=nodes(a=1), settings=Settings(resources=more)))
    assert pod_of(found, "DaemonSet", "sos-agent-default-a")["containers"][0]["resources"] == {"requests": {"cpu": "1"}}
    assert pod_of(found, "Deployment", "sos-controller-default")["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
    assert pod_of(found, "DaemonSet", "sos-agent-p-a")["containers"][0]["resources"] == own
    assert pod_of(found, "Deployment", "sos-controller-c")["containers"][0]["resources"] == own
    asked = compile_world(world(site("a", "10.0.0.0/16"), nodes=nodes(a=1)))
    for pod in (pod_of(asked, "DaemonSet", "sos-agent-default-a"), pod_of(asked, "Deployment", "sos-controller-default")):
        assert pod["containers"][0]["resources"]["requests"].keys() == {"cpu", "memory"}


def test_ports_of_nodes_are_settings() -> None:
    settings = Settings(ports=Ports(node=29464, agents=29465, tunnels=24789))
    found = compile_world(world(site("a", "10.0.0.0/16"), obj("SosAgent", "p"), nodes=nodes(a=2), settings=settings))
    node = pod_of(found, "DaemonSet", "sos-node-a")["containers"][1]
    assert [port["hostPort"] for port in node["ports"]] == [29464] == [node[probe]["httpGet"]["port"] for probe in ("readinessProbe",)]
    assert "0.0.0.0:29464" in node["args"]
    for pool, port in (("default", 29465), ("p", 29466)):
        agent = pod_of(found, "DaemonSet", f"sos-agent-{pool}-a")["containers"][0]
        assert [each["hostPort"] for each in agent["ports"]] == [port]
        assert {agent[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} == {port}
        assert {found.agents[pool, name]["metricsAddress"] for name in found.nodes} == {f"0.0.0.0:{port}"}
    assert {tunnel["udpPort"] for config in found.nodes.values() for tunnel in config["tunnels"]} == {24789}


def test_changed_ports_change_documents_that_were_compiled_before() -> None:
    made = world(site("a", "10.0.0.0/16"), nodes=nodes(a=1))
    compile_world(made)
    moved = compile_world(replace(made, settings=Settings(ports=Ports(agents=29465))))
    assert {config["metricsAddress"] for config in moved.agents.values()} == {"0.0.0.0:29465"}


@pytest.mark.parametrize(
    ("ports", "field", "why"),
    [
        (Ports(node=0), "node", "0 is not 1 to 65535"),
        (Ports(agents=65_409), "agents", "65409 is not 1 to 65408"),
        (Ports(tunnels=65_536), "tunnels", "65536 is not 1 to 65535"),
        (Ports(node=10_000), "node", "10000: 10000 to 11023 is for streams"),
        (Ports(node=14_790), "node", "14790: 14790 is for site cards"),
        (Ports(node=9_592), "agents", "9465 to 9592: 9592 is for sos-node"),
        (Ports(agents=9_873), "agents", "9873 to 10000: 10000 to 11023 is for streams"),
    ],
)
def test_ports_that_collide_are_refused_with_the_field(ports: Ports, field: str, why: str) -> None:
    assert find_port_conflict(ports) == (field, why)


@pytest.mark.parametrize("ports", [Ports(), Ports(node=9_593), Ports(agents=9_872), Ports(agents=11_024), Ports(tunnels=9_464)])
def test_ports_beside_each_other_are_accepted(ports: Ports) -> None:
    assert find_port_conflict(ports) is None
