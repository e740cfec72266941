"""Two replicas of a SosController: documents, endpoints, manifests, and the rules between objects."""

from __future__ import annotations

import re
from typing import Any

from sos_compile import Compiled, Observed, compile_world
from sos_compile.manifests import naming
from worlds import nodes, obj, site, world

BOTH = ("tcp:10.96.0.10:6653", "tcp:10.96.0.11:6653")
TERM = {
    "labelSelector": {
        "matchLabels": {
            "app.kubernetes.io/name": "sos",
            "app.kubernetes.io/instance": "sos",
            "app.kubernetes.io/component": "controller",
        },
        "matchExpressions": [{"key": "sos.network/controller", "operator": "In", "values": ["c", "c_2"]}],
    },
    "topologyKey": "kubernetes.io/hostname",
}


def manifests(found: Compiled, kind: str) -> dict[str, dict[str, Any]]:
    return {m["metadata"]["name"]: m for m in found.manifests if m["kind"] == kind and m["metadata"]["name"].endswith("-c")}


def compiled(spec: dict[str, Any], *others: Any) -> Compiled:
    observed = Observed(endpoints={"c": BOTH})
    west = site("a", "10.0.0.0/16", controllers=[{"name": "c"}])
    return compile_world(world(obj("SosController", "c", spec), west, *others, nodes=nodes(a=1), observed=observed))


def test_switches_connect_to_both_replicas_and_the_document_tells_them_to_elect() -> None:
    found = compiled({"replicas": 2})
    assert found.controllers["c"]["controller"]["replicas"] == 2
    (node,) = found.nodes.values()
    assert node["controllers"] == list(BOTH)
    assert "replicas" not in compiled({}).controllers["c"]["controller"]


def test_each_replica_has_a_deployment_and_a_service_that_select_only_its_own_pod() -> None:
    found = compiled({"replicas": 2, "service": {"type": "NodePort"}})
    deployments, services = manifests(found, "Deployment"), manifests(found, "Service")
    assert deployments.keys() == {"sos-controller-c", "sos-controller2-c"}
    assert services.keys() == {"sos-controller-c", "sos-controller2-c", "sos-openflow-c", "sos-openflow2-c"}
    pods = {name: each["spec"]["template"]["metadata"]["labels"] for name, each in deployments.items()}
    for made in (*deployments.values(), *services.values(), *manifests(found, "NetworkPolicy").values()):
        selector = made["spec"].get("podSelector", made["spec"].get("selector"))
        wanted = selector.get("matchLabels", selector)
        chosen = [name for name, labels in pods.items() if wanted.items() <= labels.items()]
        assert chosen == ["sos-controller2-c" if "2" in made["metadata"]["name"] else "sos-controller-c"]
    assert all(each["spec"]["replicas"] == 1 for each in deployments.values())


def test_replicas_share_configuration_and_secrets_and_never_a_node() -> None:
    first, second = (each["spec"]["template"]["spec"] for each in manifests(compiled({"replicas": 2}), "Deployment").values())
    assert first == second
    assert first["affinity"]["podAntiAffinity"] == {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}
    alone = manifests(compiled({}), "Deployment")["sos-controller-c"]["spec"]["template"]["spec"]
    assert "affinity" not in alone


def test_a_declared_affinity_is_kept_beside_that_of_the_replicas() -> None:
    other = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "zone"}
    declared = {"nodeAffinity": {}, "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [other]}}
    pod = manifests(compiled({"replicas": 2, "affinity": declared}), "Deployment")["sos-controller2-c"]["spec"]["template"]["spec"]
    assert pod["affinity"] == {"nodeAffinity": {}, "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [other, TERM]}}
    strange = {"podAntiAffinity": ["not", "a", "mapping"]}
    pod = manifests(compiled({"replicas": 2, "affinity": strange}), "Deployment")["sos-controller-c"]["spec"]["template"]["spec"]
    assert pod["affinity"] == strange, "the API server refuses it, and the condition shows its message"


def test_labels_of_second_replicas_are_valid_and_differ_for_long_names() -> None:
    names = ["a" * 62, "a" * 62 + "b", "a" * 63, "short"]
    labels = [naming.controller_label(name, replica) for name in names for replica in (0, 1)]
    assert len(set(labels)) == len(labels) and all(re.fullmatch("[a-z0-9]([-a-z0-9_]*[a-z0-9])?", label) for label in labels)
    assert max(map(len, labels)) <= 63


def test_a_site_keeps_the_first_of_two_controllers_with_replicas() -> None:
    two = [{"name": "c"}, {"name": "d"}, {"name": "default"}]
    west = site("a", "10.0.0.0/16", controllers=two)
    both = (obj("SosController", "c", {"replicas": 2}), obj("SosController", "d", {"replicas": 2}))
    endpoints = {"c": BOTH, "d": ("tcp:10.96.0.12:6653",), "default": ("tcp:10.96.0.13:6653",)}
    found = compile_world(world(*both, west, nodes=nodes(a=1), observed=Observed(endpoints=endpoints)))
    (problem,) = [each for each in found.problems if not each.warning]
    assert problem.path == "spec.controllers[1].name" and "one MASTER" in problem.message
    (node,) = found.nodes.values()
    assert node["controllers"] == [*BOTH, "tcp:10.96.0.13:6653"]


def test_a_second_process_of_an_external_controller_needs_an_endpoint_and_a_url() -> None:
    def problems(**external: Any) -> list[str]:
        spec = {"type": "External", "replicas": external.pop("replicas", 2), "external": external}
        found = compile_world(world(obj("SosController", "c", spec)))
        return [each.message for each in found.problems if not each.warning]

    two, api = ["tcp:192.0.2.1:6653", "tcp:192.0.2.2:6653"], {"apiURL": "http://192.0.2.1:8080", "tokenSecretName": "t"}
    assert problems(endpoints=two) == []
    assert problems(endpoints=two, **api, standbyURL="http://192.0.2.2:8080") == []
    assert "an endpoint for each" in str(problems(endpoints=two[:1]))
    assert "standbyURL" in str(problems(endpoints=two, **api))
    assert "standbyURL" in str(problems(endpoints=two, replicas=1, **api, standbyURL="http://192.0.2.2:8080"))
