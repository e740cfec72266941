"""Views of API objects: every field that decisions read, and defaults for content of any form."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_operator.core.model.cluster_objects import ConfigMap, Container, ContainerStatus, DaemonSet, Deployment, Node, Pod, Secret, Service
from sos_operator.core.model.custom_resources import (
    AgentRow,
    CustomResource,
    NodeRow,
    SosAgent,
    SosController,
    SosLink,
    SosPeer,
    SosService,
    SosSite,
)
from sos_operator.core.model.kinds import CHILD_KINDS, NAMESPACE, NODE, OWN_KINDS, POD
from sos_operator.core.model.objects import Condition, Meta, Owner, Ref, Resource
from sos_operator.core.model.parse import parse_object
from sos_operator.core.model.pod_state import daemon_set_settled, deployment_verdict, lost, pod_state
from sos_operator.core.model.remote.node_status import address_of
from sos_operator.core.model.world import parse_allocations

KINDS = [kind.kind for kind in (*OWN_KINDS, *CHILD_KINDS, NODE, NAMESPACE, POD)]
NAMES = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "managedFields",
    "kind",
    "type",
    "status",
    "reason",
    "message",
    "conditions",
    "spec",
    "metadata",
    "template",
    "nodeName",
    "containers",
    "ports",
    "containerPort",
    "args",
    "containerStatuses",
    "initContainerStatuses",
    "state",
    "lastState",
    "waiting",
    "terminated",
    "addresses",
    "podCIDRs",
    "updateStrategy",
    "data",
    "clusterIP",
    "clusterIPs",
    "external",
    "endpoints",
    "update",
    "maxUnavailable",
    "nodes",
    "agents",
    "slot",
    "pool",
    "address",
    "number",
    "claim",
    "scope",
    "siteID",
    "controllerID",
    "a",
    "b",
    "site",
    "uplink",
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["True", "Ready", "InternalIP"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    max_leaves=12,
)
parts = st.dictionaries(st.sampled_from(["metadata", "spec", "status", "data", "apiVersion"]), json_values)


@given(st.sampled_from(KINDS), parts)
def test_content_of_any_form_is_parsed(kind: str, content: dict[str, Any]) -> None:
    """A malformed object must not end a pass: its view has defaults, and functions that read the view raise no exception."""
    obj = parse_object({**content, "kind": kind})
    assert obj.kind == kind and obj.content == {**content, "kind": kind}
    assert isinstance(obj.name, str) and isinstance(obj.meta.generation, int) and isinstance(obj.leaving, bool)
    assert all(isinstance(text, str) for texts in (obj.meta.labels, obj.meta.annotations) for item in texts.items() for text in item)
    parse_allocations([obj])
    match obj:
        case Pod():
            assert pod_state(obj).state and isinstance(address_of(obj), str)
        case Node():
            lost(obj)
        case DaemonSet():
            daemon_set_settled(obj)
        case Deployment():
            deployment_verdict(obj)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_object_has_the_defaults_of_its_view(kind: str) -> None:
    content = {"kind": kind}
    view = type(parse_object({"kind": kind}))
    assert parse_object(content) == view("", kind, Meta(), content)
    assert issubclass(view, CustomResource) == kind.startswith("Sos")


def test_metadata_is_parsed() -> None:
    meta = {
        "name": "a",
        "namespace": "n",
        "uid": "u",
        "resourceVersion": "7",
        "generation": 3,
        "creationTimestamp": "c",
        "deletionTimestamp": "d",
        "labels": {"app.kubernetes.io/component": "agent", "odd": 1},
        "annotations": {"x": "y"},
        "finalizers": ["f", None],
        "ownerReferences": [{"kind": "DaemonSet", "name": "set", "uid": "o"}, "odd"],
        "managedFields": [{"manager": "helm"}, {}],
    }
    obj = Resource.parse({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
    assert obj.meta == Meta(
        name="a",
        namespace="n",
        uid="u",
        resource_version="7",
        generation=3,
        created="c",
        deletion="d",
        labels={"app.kubernetes.io/component": "agent"},
        annotations={"x": "y"},
        finalizers=("f",),
        owners=(Owner("DaemonSet", "set", "o"),),
        managers=frozenset({"helm", ""}),
    )
    assert (obj.ref, obj.key, obj.leaving, obj.component) == (Ref("ConfigMap", "n", "a"), ("ConfigMap", "n", "a"), True, "agent")


def test_views_are_frozen() -> None:
    obj = parse_object({"kind": "Pod"})
    with pytest.raises(AttributeError):
        obj.kind = "Node"  # type: ignore[misc]
    assert "content" not in repr(obj), "a log line must not contain a Secret"
    assert all(field.name in type(obj).__dataclass_fields__ for field in fields(Resource))


def test_a_pod_is_parsed() -> None:
    waiting = {"name": "agent", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "m"}}}
    waiting["lastState"] = {"terminated": {"message": "e"}}
    containers = [{"name": "agent", "args": ["--attach", "none"], "ports": [{"containerPort": 8080}, {}]}]
    status = {
        "podIP": "fd00::1",
        "phase": "Running",
        "reason": "R",
        "message": "M",
        "containerStatuses": [waiting],
        "initContainerStatuses": [{"name": "init", "ready": True}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    owners = [{"kind": "ReplicaSet", "name": "other"}, {"kind": "DaemonSet", "name": "set"}]
    spec = {"nodeName": "n1", "hostNetwork": True, "containers": containers}
    pod = Pod.parse({"metadata": {"ownerReferences": owners}, "spec": spec, "status": status})
    assert (pod.node, pod.address, pod.host_network, pod.daemon_set, pod.ready) == ("n1", "fd00::1", True, "set", True)
    assert (pod.phase, pod.reason, pod.message) == ("Running", "R", "M")
    assert pod.containers == (Container("agent", ("--attach", "none"), (8080,)),)
    assert pod.statuses == (ContainerStatus("init", ready=True), ContainerStatus("agent", False, "CrashLoopBackOff", "m", "e"))
    assert address_of(pod, "agent") == "[fd00::1]:8080" and address_of(pod, "node") == ""


def test_nodes_and_workloads_are_parsed() -> None:
    addresses = [{"type": "Hostname", "address": "h"}, {"type": "InternalIP", "address": "192.0.2.1"}]
    ready = {"type": "Ready", "status": "False", "reason": "R", "message": "M", "lastTransitionTime": "t"}
    node = Node.parse({"spec": {"podCIDRs": ["10.0.0.0/24"]}, "status": {"addresses": addresses, "conditions": [ready]}})
    assert (node.addresses, node.pod_prefixes) == (("192.0.2.1",), ("10.0.0.0/24",))
    assert node.ready == Condition("Ready", "False", "R", "M", "t")
    status = {"observedGeneration": 2, "desiredNumberScheduled": 3, "numberReady": 4, "updatedNumberScheduled": 5}
    spec = {"updateStrategy": {"type": "OnDelete"}, "template": {"metadata": {"annotations": {"a": "b"}}}}
    daemon_set = DaemonSet.parse({"spec": spec, "status": status})
    assert (daemon_set.observed_generation, daemon_set.desired, daemon_set.ready, daemon_set.updated) == (2, 3, 4, 5)
    assert (daemon_set.updates, daemon_set.template_annotations) == (False, {"a": "b"})
    deployment = Deployment.parse({"status": {"availableReplicas": 1, "conditions": [ready]}})
    assert (deployment.available, deployment.conditions) == (1, (node.ready,))
    assert ConfigMap.parse({"data": {"a": "b", "odd": None}}).data == {"a": "b"}
    secret = Secret.parse({"data": {"token": "c2VjcmV0"}})
    assert secret.data == {"token": "c2VjcmV0"} and "c2VjcmV0" not in repr(secret)
    service = Service.parse({"spec": {"clusterIP": "fd00::5", "clusterIPs": ["fd00::5", "None", "10.96.0.7"]}})
    assert service.addresses == ("fd00::5", "10.96.0.7")


def test_custom_resources_are_parsed() -> None:
    agents = [{"pool": "p", "address": "192.0.2.1", "slot": 0}, {"pool": "p", "slot": 1}, {"pool": "p", "address": "192.0.2.2"}]
    rows = [{"name": "n1", "number": 4, "agents": agents}, {"number": 5}, "odd"]
    spec = {"nodeSelector": {"matchLabels": {}}, "update": {"maxUnavailable": 2}}
    site = SosSite.parse({"spec": spec, "status": {"siteID": 7, "nodes": rows}})
    assert (site.has_node_selector, site.max_unavailable, site.number) == (True, "2", 7)
    assert site.nodes == (NodeRow("n1", 4, (AgentRow("p", "192.0.2.1", 0),)),)
    assert SosAgent.parse({"spec": {"attach": "Multus"}}).attach == "Multus"
    meta = {"name": "s", "namespace": "n"}
    service = SosService.parse({"metadata": meta, "status": {"claim": {"number": 3, "scope": "ab"}}})
    assert (service.id, service.claim_number, service.claim_scope) == ("n/s", 3, "ab")
    external = {"endpoints": ["tcp:e:1"], "apiURL": "https://e", "tokenSecretName": "t"}
    controller = SosController.parse({"spec": {"type": "External", "external": external}, "status": {"controllerID": 2}})
    assert (controller.external, controller.endpoints, controller.api_url) == (True, ("tcp:e:1",), "https://e")
    assert (controller.token_secret, controller.number) == ("t", 2)
    ends = {"a": {"site": "west", "uplink": "wan0"}, "b": {"site": "east", "uplink": "wan1"}}
    assert SosLink.parse({"spec": ends}).ends == (("west", "wan0"), ("east", "wan1"))
    assert SosPeer.parse({"spec": {"endpoints": ["h:1", "odd", "h:x", "fd00::1"]}}).endpoints == (("h", 1), ("fd00:", 1))
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "t"}
    peer = SosPeer.parse({"status": {"conditions": [ready]}})
    assert peer.conditions == (Condition("Ready", "True", changed="t"),) and peer.status == {"conditions": [ready]}
