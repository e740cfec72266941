"""Nodes that leave a site while other nodes stay: documents of the departed nodes, and the lifetime of their pods."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from operator_listing import listing
from sos_operator.core.desired.departed_nodes import with_left
from sos_operator.core.desired.generation import Issued
from sos_operator.core.desired.output import Output, build_output
from sos_operator.core.model.objects import Object
from sos_operator.core.model.options import Images, Settings
from sos_operator.core.model.remote.node_status import NodeAnswer
from sos_operator.core.model.world import Seen
from test_operator_status import loaded

SETTINGS = Settings(namespace="n", images=Images(controller="c", agent="a", node="n", ovs="o"))
CHILD = "sos-node-west"


def node(name: str, site: str | None = "west") -> Object:
    return {"kind": "Node", "metadata": {"name": name, "labels": {"sos.network/site": site} if site else {}}}


def pod(name: str, on: str, component: str, daemon_set: str) -> Object:
    owners = [{"kind": "DaemonSet", "name": daemon_set}]
    meta = {"name": name, "uid": name, "labels": {"app.kubernetes.io/component": component}, "ownerReferences": owners}
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": on}}


Step = tuple[Output, Seen]
"""Output of a pass and its input."""


def seen(nodes: list[Object], before: Step | None = None, pods: tuple[Object, ...] = (), **more: Any) -> Seen:
    children = with_left(before[0].compiled.manifests, before[0].left, before[1]) if before else ()
    spaces = ({"metadata": {"name": "default"}},)
    return listing(objects=loaded("01-two-sites"), nodes=tuple(nodes), namespaces=spaces, children=children, pods=pods, **more)


def built(world: Seen, before: Step | None = None) -> Step:
    return build_output(world, SETTINGS, before[0].issued if before else Issued(0, ""), {}), world


def child(step: Step, kind: str) -> Object:
    manifests = with_left(step[0].compiled.manifests, step[0].left, step[1])
    return next(m for m in manifests if (m["kind"], m["metadata"]["name"]) == (kind, CHILD))


def data(step: Step) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in child(step, "ConfigMap")["data"].items()}


def terms(step: Step) -> list[Object]:
    affinity = child(step, "DaemonSet")["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    return list(affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"])


BOTH = [node("a1"), node("a2")]
LEFT = [node("a1"), node("a2", None)]
AGENT, SWITCH = pod("agent", "a2", "agent", "sos-agent-default-west"), pod("switch", "a2", "node", CHILD)
NAMED = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a2"]}]}


def test_an_agent_without_a_bridge_does_not_keep_the_bridge_of_a_departed_node() -> None:
    routed = pod("routed", "a2", "agent", "sos-agent-default-south")
    routed["spec"] |= {"hostNetwork": True, "containers": [{"name": "agent", "args": ["--attach", "none"]}]}
    first = built(seen(BOTH))
    second = built(seen(LEFT, first, (routed, SWITCH)), first)
    assert {name: document["state"] for name, document in data(second).items()} == {"a1.json": "Present", "a2.json": "Absent"}


def test_a_departed_node_gets_state_absent_after_its_agent_is_gone() -> None:
    first = built(seen(BOTH))
    assert not first[0].left
    second = built(seen(LEFT, first, (AGENT, SWITCH)), first)
    assert {name: document["state"] for name, document in data(second).items()} == {"a1.json": "Present", "a2.json": "Present"}
    assert data(second)["a2.json"] == data(first)["a2.json"]
    assert NAMED in terms(second) and len(terms(second)) == 2
    third = built(seen(LEFT, second, (SWITCH,)), second)
    told = data(third)["a2.json"]
    assert told["state"] == "Absent" and told["generation"] > data(second)["a2.json"]["generation"]
    again = built(seen(LEFT, third, (SWITCH,)), third)
    assert data(again)["a2.json"] == told, "the document is the same in every pass"
    answer = NodeAnswer(hash=told["hash"], state="Ready", bridge="", message="removed")
    for said, done in ((replace(answer, bridge="br-sos"), False), (replace(answer, hash="old"), False), (answer, True)):
        last = built(seen(LEFT, third, (SWITCH,), answers={"switch": said}), third)
        assert (not last[0].left) == done
        assert ("a2.json" in data(last)) == (NAMED in terms(last)) == (not done)


def test_moved_deleted_and_given_up_nodes_are_dropped_without_cleanup() -> None:
    first = built(seen(BOTH))
    for nodes, more in (
        ([node("a1"), node("a2", "east")], {}),
        ([node("a1")], {}),
        (LEFT, {"given_up": frozenset({("west", "a2")})}),
    ):
        step = built(seen(nodes, first, (SWITCH,), **more), first)
        assert not step[0].left
        assert "a2.json" not in data(step)
