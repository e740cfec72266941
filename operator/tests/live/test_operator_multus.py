"""Agents attached by Multus, in a cluster with and without NetworkAttachmentDefinitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from operator_fixtures import becomes, populated
from operator_kube import Kube
from operator_run import NAMESPACE, Operator, eventually, operator_running

NETWORKS = "network-attachment-definitions"
CRD_NAME = f"{NETWORKS}.k8s.cni.cncf.io"
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": CRD_NAME},
    "spec": {
        "group": "k8s.cni.cncf.io",
        "scope": "Namespaced",
        "names": {
            "plural": NETWORKS,
            "singular": "network-attachment-definition",
            "kind": "NetworkAttachmentDefinition",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "properties": {"config": {"type": "string"}}}},
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def operator(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """An operator that checks every second whether the cluster has Multus."""
    extra = {"SOS_RESYNC_SECONDS": "1", "SOS_CONTROLLER_API_OVERRIDE": "default=http://127.0.0.1:1"}
    with populated(installed) as kube, operator_running(kube, tmp_path_factory.mktemp("operator"), **extra) as running:
        yield running
    installed.kubectl("delete", "crd", CRD_NAME, "--ignore-not-found", "--timeout=30s")


def attach(kube: Kube, how: str) -> None:
    kube.kubectl("patch", "sosagent", "default", "--type=merge", "-p", json.dumps({"spec": {"attach": how}}))


def daemon_set(kube: Kube) -> dict[str, Any]:
    return kube.get("daemonset", "sos-agent-default-west", "-n", NAMESPACE)


def arguments(kube: Kube) -> list[str]:
    return list(daemon_set(kube)["spec"]["template"]["spec"]["containers"][0]["args"])


def agent_ports(kube: Kube) -> list[str]:
    data = kube.get("configmap", "sos-node-west", "-n", NAMESPACE)["data"]
    return [port["name"] for text in data.values() for port in json.loads(text)["agentPorts"]]


def test_agents_move_to_multus_and_back_only_if_it_is_installed(example: Operator) -> None:
    kube = example.kube
    before, ports = daemon_set(kube)["metadata"]["uid"], agent_ports(kube)
    assert ports
    assert "host" in arguments(kube)
    attach(kube, "Multus")
    said = becomes(kube, "sosagent/default", "ResolvedRefs", "False", "MultusMissing")
    assert "install Multus and ovs-cni, or use Host" in said["message"]
    example.settle(2)
    assert daemon_set(kube)["metadata"]["uid"] == before
    assert "host" in arguments(kube), "running agents stay unchanged"
    assert agent_ports(kube) == ports, "nodes keep the ports of running agents"

    kube.apply(CRD)
    kube.kubectl("wait", "--for=condition=Established", "crd", CRD_NAME, "--timeout=30s")
    eventually("agents without the host's network", lambda: "none" in arguments(kube))
    eventually("nodes without agent ports", lambda: not agent_ports(kube))
    network = kube.get(NETWORKS, "sos.agent-default-west", "-n", NAMESPACE)
    config = json.loads(network["spec"]["config"])
    assert (config["type"], config["ofport_request"]) == ("ovs", 34001)
    assert "ipam" not in config
    template = daemon_set(kube)["spec"]["template"]
    asked = json.loads(template["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
    assert asked == [{"name": "sos.agent-default-west", "namespace": NAMESPACE, "interface": "net0"}]
    assert not template["spec"].get("hostNetwork")

    attach(kube, "Host")
    eventually("agents on the host's network", lambda: "host" in arguments(kube))
    names = [item["metadata"]["name"] for item in kube.items(NETWORKS, "-n", NAMESPACE)]
    eventually("no network of agents", lambda: not [n for n in names_of(kube) if n.startswith("sos.agent")])
    assert "sos-west" in names, "the network of the site's pods stays"


def names_of(kube: Kube) -> list[str]:
    return [item["metadata"]["name"] for item in kube.items(NETWORKS, "-n", NAMESPACE)]
