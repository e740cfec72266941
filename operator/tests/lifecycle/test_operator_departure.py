"""Deletion of sites: nodes are cleaned first, no SOS object is left behind, users' objects stay."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from operator_fixtures import apply_example, becomes, children, condition, populated
from operator_kube import Kube
from operator_nodes import Nodes, start_pods
from operator_run import NAMESPACE, Operator, eventually, operator_running

PROMISED_S = 10.0
"""Maximum age of a status."""
OURS = "app.kubernetes.io/managed-by=sos-operator"


@pytest.fixture(scope="module")
def stage(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Operator, Nodes]]:
    """An operator and simulated nodes, for the tests of sites."""
    extra = {"SOS_CONTROLLER_API_OVERRIDE": "default=http://127.0.0.1:1", "SOS_SITE_CLEANUP_SECONDS": "8"}
    folder = tmp_path_factory.mktemp("departure")
    with populated(installed) as kube, Nodes(kube).serving() as nodes, operator_running(kube, folder, **extra) as operator:
        yield operator, nodes


@pytest.fixture
def running(stage: tuple[Operator, Nodes]) -> tuple[Operator, Nodes]:
    """All sites of the example, with running pods whose nodes apply their documents."""
    operator, nodes = stage
    nodes.slow.clear()
    nodes.words.clear()
    apply_example(operator.kube)
    start_pods(operator.kube, nodes)
    return operator, nodes


def test_a_site_stays_until_its_nodes_are_clean(running: tuple[Operator, Nodes]) -> None:
    operator, nodes = running
    kube = operator.kube
    nodes.slow.add("edge1")
    kube.kubectl("delete", "sossite", "west", "--wait=false")
    eventually("the node-config Absent", lambda: state_of(kube, "west", "edge1") == "Absent")
    row = becomes(kube, "sossite/west", "Ready", "False", "Terminating")
    assert row["message"] == "being deleted: 1 of 1 nodes have not yet removed everything that SOS created: edge1"
    eventually(
        "the DaemonSet of the site's agents gone",
        lambda: not [c for c in children(kube, "daemonsets") if c["metadata"]["name"] == "sos-agent-default-west"],
    )
    time.sleep(3)
    assert kube.get("sossite", "west")["metadata"]["deletionTimestamp"], "the site was deleted before its node was clean"
    assert [c for c in children(kube, "daemonsets") if c["metadata"]["name"] == "sos-node-west"]
    nodes.slow.clear()
    eventually("the site gone", lambda: "west" not in {s["metadata"]["name"] for s in kube.items("sossites")}, 15)
    eventually("its DaemonSet gone", lambda: not [c for c in children(kube, "daemonsets") if c["metadata"]["name"] == "sos-node-west"])


def test_a_silent_node_delays_site_deletion_only_to_its_limit(running: tuple[Operator, Nodes]) -> None:
    operator, nodes = running
    nodes.slow.add("core1")
    started = time.monotonic()
    operator.kube.kubectl("delete", "sossite", "core1", "--timeout=40s")
    assert time.monotonic() - started > 6


def test_an_invalid_site_is_cleaned_before_its_deletion(running: tuple[Operator, Nodes]) -> None:
    operator, nodes = running
    kube = operator.kube
    prefixes = kube.get("sossite", "east")["spec"]["prefixes"]
    kube.kubectl("patch", "sossite", "west", "--type=merge", "-p", json.dumps({"spec": {"prefixes": prefixes}}))
    becomes(kube, "sossite/west", "Accepted", "False", "OverlappingPrefixes")
    nodes.slow.add("edge1")
    kube.kubectl("delete", "sossite", "west", "--wait=false")
    eventually("the node-config Absent", lambda: state_of(kube, "west", "edge1") == "Absent")
    operator.settle(3)
    assert kube.get("sossite", "west")["metadata"]["deletionTimestamp"], "the site was deleted before its node was clean"
    assert [c for c in children(kube, "daemonsets") if c["metadata"]["name"] == "sos-node-west"]
    nodes.slow.clear()
    eventually("the site gone", lambda: "west" not in {s["metadata"]["name"] for s in kube.items("sossites")}, 15)


def test_a_departing_node_is_drained_and_cleaned_before_its_pod_goes(running: tuple[Operator, Nodes]) -> None:
    operator, nodes = running
    kube = operator.kube
    with left_behind(kube, nodes, "edge1", "west"):
        operator.settle(2)
        assert state_of(kube, "west", "edge1") == "Present", "the node's agent is still running"
        kube.kubectl("delete", "pod", "sos-agent-default-west-pod", "-n", NAMESPACE, "--force", "--grace-period=0")
        eventually("the node-config Absent", lambda: state_of(kube, "west", "edge1") == "Absent")
        operator.settle(2)
        assert names_node(kube, "sos-node-west", "edge1"), "the node has not reported that it is clean"
        nodes.slow.clear()
        eventually("its pod released", lambda: not names_node(kube, "sos-node-west", "edge1"))
        assert not kube.get("configmap", "sos-node-west", "-n", NAMESPACE).get("data")


def test_the_wait_for_a_departed_node_is_bounded(running: tuple[Operator, Nodes]) -> None:
    operator, nodes = running
    with left_behind(operator.kube, nodes, "core1", "core1"):
        eventually("its pod released", lambda: not names_node(operator.kube, "sos-node-core1", "core1"), 30)


@contextmanager
def left_behind(kube: Kube, nodes: Nodes, node: str, site: str) -> Iterator[None]:
    """Take a node out of its site inside the block, while the node reports that it is not clean yet."""
    nodes.slow.add(node)
    kube.kubectl("label", "node", node, "sos.network/site-")
    try:
        eventually("its pod kept", lambda: names_node(kube, f"sos-node-{site}", node))
        yield
    finally:
        kube.kubectl("label", "node", node, f"sos.network/site={site}", "--overwrite")


def names_node(kube: Kube, daemon_set: str, node: str) -> bool:
    """True if a DaemonSet selects a node by name, independent of the node's labels."""
    (found,) = [c for c in children(kube, "daemonsets") if c["metadata"]["name"] == daemon_set]
    terms = found["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return {"key": "metadata.name", "operator": "In", "values": [node]} in [
        f for t in terms["nodeSelectorTerms"] for f in t.get("matchFields", [])
    ]


def test_lost_bridges_and_agents_and_their_return_are_reported(running: tuple[Operator, Nodes]) -> None:
    """The node's pod stays ready; only the node's own report shows the failure."""
    operator, nodes = running
    kube = operator.kube
    becomes(kube, "sossite/east", "BridgesReady", "True", "Ready")
    nodes.words["edge2"] = ("Failed", "ovs-vswitchd does not answer")
    row = becomes(kube, "sossite/east", "BridgesReady", "False", "NodeFailed", PROMISED_S)
    assert "edge2: ovs-vswitchd does not answer" in row["message"]
    becomes(kube, "sossite/east", "Ready", "False", "NodeFailed", PROMISED_S)
    assert kube.get("sossite", "east")["status"]["nodes"][0]["state"] == "Failed"
    nodes.words.clear()
    becomes(kube, "sossite/east", "BridgesReady", "True", "Ready", PROMISED_S)
    becomes(kube, "sosagent/default", "Deployed", "True", "Deployed")
    kube.kubectl("delete", "pod", "sos-agent-default-east-pod", "-n", NAMESPACE, "--force", "--grace-period=0")
    row = becomes(kube, "sosagent/default", "Deployed", "False", "RollingOut", PROMISED_S)
    assert "edge2: no pod on the node yet" in row["message"]
    start_pods(kube, nodes)
    becomes(kube, "sosagent/default", "Deployed", "True", "Deployed", PROMISED_S)


def test_deletion_of_a_site_does_not_change_other_statuses(running: tuple[Operator, Nodes]) -> None:
    operator, nodes = running
    kube = operator.kube
    nodes.words["edge2"] = ("Failed", "ovs-vswitchd does not answer")
    before = becomes(kube, "sossite/east", "BridgesReady", "False", "NodeFailed", PROMISED_S)
    operator.settle()
    told = events_about_bridges(kube, "east")
    nodes.slow.add("edge1")
    kube.kubectl("delete", "sossite", "west", "--wait=false")
    becomes(kube, "sossite/west", "Ready", "False", "Terminating")
    operator.settle(3)
    assert condition(kube, "sossite", "east", "BridgesReady") == before
    assert events_about_bridges(kube, "east") == told


def events_about_bridges(kube: Kube, site: str) -> list[str]:
    events = kube.items("events", "-n", "default")
    about = [e["message"] for e in events if (e["involvedObject"]["kind"], e["involvedObject"]["name"]) == ("SosSite", site)]
    return sorted(message for message in about if message.startswith("BridgesReady"))


def state_of(kube: Kube, site: str, node: str) -> str:
    return str(json.loads(kube.get("configmap", f"sos-node-{site}", "-n", NAMESPACE)["data"][f"{node}.json"])["state"])
