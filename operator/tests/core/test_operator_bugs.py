"""Unexpected exceptions in the operator: limited to their object, counted, and never fatal to the process."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_listing import config_map, custom, listing, parsed
from sos_operator import loop, reconcile
from sos_operator.cluster.handlers import hearer
from sos_operator.cluster.kubernetes_services import ServiceObserver
from sos_operator.cluster.work_queue import WorkQueue
from sos_operator.cluster.workload_pods import PodObserver
from sos_operator.core.desired.departure import documents, on_nodes
from sos_operator.core.desired.finalizer import CLEANUP_FINALIZER
from sos_operator.core.desired.generation import Issued, parse_issued
from sos_operator.core.desired.output import build_output
from sos_operator.core.desired.rollout import max_unavailable, plan_rollouts
from sos_operator.core.model.cluster_objects import Node
from sos_operator.core.model.custom_resources import SosController, SosSite
from sos_operator.core.model.errors import NotReady
from sos_operator.core.model.kinds import API_VERSION
from sos_operator.core.model.options import Images, Settings
from sos_operator.core.model.remote.node_status import NodeAnswer
from sos_operator.core.model.world import Seen, api_base, controller_endpoints
from sos_operator.core.scheduling.change_queue import Changed
from sos_operator.core.status.report import report
from sos_operator.core.status.situation import Situation
from sos_operator.process.bugs import Bugs
from sos_operator.process.health import Health
from sos_operator.process.metrics import Metrics

SETTINGS = Settings(namespace="n", images=Images(controller="c", agent="a", node="n", ovs="o"))
PREFIXES = {"west": "10.0.0.0/24", "east": "10.0.1.0/24"}


def obj(kind: str, name: str, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    meta = {"name": name, "uid": f"uid-{kind}-{name}", "generation": 1, "resourceVersion": "1", **metadata}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": spec or {}}


def site(name: str, **metadata: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"sos.network/site": name}}
    return obj("SosSite", name, {"nodeSelector": selector, "prefixes": [PREFIXES[name]], "services": {"namespaces": "All"}}, **metadata)


def node(name: str, where: str, address: str) -> dict[str, Any]:
    addresses = [{"type": "InternalIP", "address": address}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"sos.network/site": where}},
        "status": {"addresses": addresses},
    }


SERVICE = obj("SosService", "web", {"from": {"site": "west"}, "to": {"site": "east"}}, namespace="tenant")
OBJECTS = (obj("SosController", "default"), obj("SosAgent", "default"), site("west"), site("east"), SERVICE)
SEEN = listing(objects=OBJECTS, nodes=(node("w", "west", "192.0.2.1"), node("e", "east", "192.0.2.2")))


def counted(metrics: Metrics, where: str) -> float:
    return metrics.registry.get_sample_value("sos_operator_bugs_total", {"where": where}) or 0.0


def test_an_exception_fails_its_pass_and_the_loop_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception is counted and logged with its traceback, and the pass is retried after the usual back-off."""
    monkeypatch.setattr(loop, "next_delay", lambda *_: 0.001)
    monkeypatch.setattr(loop, "rest", lambda *_: 0.0)

    async def body() -> None:
        metrics, stop, passes = Metrics(), asyncio.Event(), list[int]()

        class Broken:
            async def reconcile(self, woken: Any) -> Any:
                passes.append(1)
                if len(passes) == 3:
                    stop.set()
                raise KeyError("a rule that nobody thought of")

        await loop._loop(Broken(), WorkQueue(), Health(), metrics, stop)  # type: ignore[arg-type]
        assert len(passes) == 3 and counted(metrics, "pass") == 3
        assert metrics.registry.get_sample_value("sos_operator_reconcile_total", {"result": "failed"}) == 3

    asyncio.run(body())


def test_a_failed_comparison_of_a_change_wakes_the_loop() -> None:
    metrics, queue = Metrics(), WorkQueue()

    def knows(*_: Any) -> bool:
        raise KeyError("uid")

    hearer(queue, knows, Bugs(metrics))(Changed("sossites", "", "west"), False, "u", "1")
    assert queue.waits and counted(metrics, "watch") == 1


class Stub:
    """Parts of a reconciler: calls are recorded and have no effect."""

    def __init__(self, seen: Seen) -> None:
        self.seen, self.patches, self.statuses = seen, list[tuple[str, Any]](), dict[str, Any]()
        metrics = Metrics()
        self.metrics, self.bugs = metrics, Bugs(metrics)
        self.settings = dataclasses.replace(SETTINGS, site_cleanup_seconds=60)
        self.observer = self.cluster = self
        self.pods = PodObserver(self, permitted=False)  # type: ignore[arg-type]
        self.services = ServiceObserver(self, permitted=False)  # type: ignore[arg-type]
        self.missing = frozenset[Any]()

    def forget(self, *_: Any) -> None: ...

    def learn(self, *_: Any) -> None: ...

    async def see(self, _: float) -> Seen:
        return self.seen

    async def merge(self, obj: Any, patch: Any) -> Any:
        self.patches.append((obj["metadata"]["name"], patch))
        return obj

    async def apply_status(self, obj: Any, status: Any) -> Any:
        self.statuses[obj["metadata"]["name"]] = status
        return {**obj, "status": status}

    async def create(self, obj: Any) -> Any:
        return obj


def leaving(name: str, ago_s: float) -> dict[str, Any]:
    stamp = (datetime.now(UTC) - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return site(name, deletionTimestamp=stamp, finalizers=["other", CLEANUP_FINALIZER])


@pytest.mark.parametrize("error", [KeyError("nobody thought of it"), NotReady("the master key is gone")])
def test_a_deleted_site_is_released_after_its_timeout_despite_errors(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Stub(dataclasses.replace(SEEN, objects=custom(leaving("west", 61), leaving("east", 1))))
    reconciler = reconcile.Reconciler(parts)  # type: ignore[arg-type]

    async def broken(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(reconciler, "_secrets", broken)
    with pytest.raises(type(error)):
        asyncio.run(reconciler.reconcile(frozenset()))
    assert [(name, patch["metadata"]["finalizers"]) for name, patch in parts.patches] == [("west", ["other"])]


def test_a_status_bug_affects_only_the_status_of_its_object(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Stub(SEEN)
    original = reconcile.report

    def raising(each: Any, situation: Situation) -> Any:
        if each.name == "west":
            raise KeyError("nobody thought of it")
        return original(each, situation)

    monkeypatch.setattr(reconcile, "report", raising)
    compiled = build_output(SEEN, SETTINGS, Issued(0, ""), {}).compiled
    asyncio.run(reconcile.Reconciler(parts)._publish(SEEN, Situation(seen=SEEN, compiled=compiled)))  # type: ignore[arg-type]
    assert sorted(parts.statuses) == ["default", "east", "web", "west"]
    (ready,) = parts.statuses["west"]["conditions"]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "Unknown", "InternalError")
    assert "KeyError: 'nobody thought of it'" in ready["message"]
    assert len(parts.statuses["east"]["conditions"]) > 1
    assert counted(parts.metrics, "status") == 1


@pytest.mark.parametrize("changed_by_another", [False, True])
def test_a_written_status_counts_for_the_rest_of_the_pass(changed_by_another: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finalizer's patch names the version after the write, unless that version also contains another client's change."""
    seen = dataclasses.replace(SEEN, objects=custom(leaving("west", 61)))
    parts, forgotten, learned = Stub(seen), list[Changed](), list[Any]()

    async def apply_status(each: Any, status: Any) -> Any:
        parts.statuses[f"{each['metadata']['name']}-{len(parts.statuses)}"] = status
        spec = {**each["spec"], "siteID": 9} if changed_by_another else each["spec"]
        return {**each, "metadata": {**each["metadata"], "resourceVersion": "2"}, "spec": spec, "status": status}

    monkeypatch.setattr(parts, "apply_status", apply_status)
    monkeypatch.setattr(parts, "forget", forgotten.extend)
    monkeypatch.setattr(parts, "learn", learned.append)
    output = build_output(seen, SETTINGS, Issued(0, ""), {})
    reconciler = reconcile.Reconciler(parts)  # type: ignore[arg-type]

    async def publish_twice() -> None:
        for _ in range(2):
            current = reconciler._current(seen)
            await reconciler._publish(current, Situation(seen=current, compiled=output.compiled))
        await reconciler._finalize(reconciler._current(seen), output, {})

    asyncio.run(publish_twice())
    assert list(parts.statuses) == ["west-0"], "the second publication finds the status of the first"
    ((_, patch),) = parts.patches
    assert patch["metadata"]["resourceVersion"] == ("1" if changed_by_another else "2")
    assert [each["metadata"]["resourceVersion"] for each in learned] == ([] if changed_by_another else ["2"])
    assert (Changed("sossites", "", "west") in forgotten) == changed_by_another
    assert "status" not in seen.objects[0].content, "the listing is unchanged"


def test_faults_of_a_compilation_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    bugs = Bugs(metrics)
    long = obj("SosService", "web", SERVICE["spec"], namespace="tenant")
    output = build_output(dataclasses.replace(SEEN, objects=custom(*OBJECTS[:-1], long)), SETTINGS, Issued(0, ""), {})
    assert output.compiled.faults == ()
    from sos_compile import Fault, ObjectKey

    fault = Fault(ObjectKey("SosService", "tenant", "web"), "KeyError: 'x'", "Traceback ...")
    with caplog.at_level(logging.ERROR):
        bugs.compiled([fault])
        bugs.compiled([fault])
        assert counted(metrics, "compile") == 1 and "Traceback" in caplog.text
        bugs.compiled([])
        bugs.compiled([fault])
    assert counted(metrics, "compile") == 2


def test_a_node_that_cannot_be_compiled_keeps_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node keeps its bridge: only a node that has left its site is ordered to remove the bridge."""
    first = build_output(SEEN, SETTINGS, Issued(0, ""), {})
    children = tuple({**m, "metadata": {**m["metadata"], "uid": "u", "resourceVersion": "1"}} for m in first.compiled.manifests)
    from sos_compile.documents import node_config

    original: Callable[..., Any] = node_config._tunnels

    def tunnels(network: Any, placed: Any, where: Any, settings: Any) -> Any:
        if any(other.node.name == "w" for other in network.mesh_of(placed)):
            raise ValueError("an address that nobody thought of")
        return original(network, placed, where, settings)

    monkeypatch.setattr(node_config, "_tunnels", tunnels)
    again = build_output(dataclasses.replace(SEEN, children=parsed(*children)), SETTINGS, first.issued, {})
    assert [fault.key.name for fault in again.compiled.faults] == ["w"]
    assert again.left == () and "w" not in again.compiled.nodes
    files = {m["metadata"]["name"]: m["data"] for m in again.compiled.manifests if m["kind"] == "ConfigMap"}
    before = {m["metadata"]["name"]: m["data"] for m in first.compiled.manifests if m["kind"] == "ConfigMap"}
    assert files["sos-node-west"]["w.json"] == before["sos-node-west"]["w.json"]


FIELDS = ["node", "site", "state", "hash", "generation", "baseFlows", "tunnels", "bridge", "match", "name"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=8,
        )
    ),
    max_leaves=8,
)
FIRST = build_output(SEEN, SETTINGS, Issued(0, ""), {})


@settings(deadline=None)
@given(st.lists(json_values | st.none(), min_size=2, max_size=2), st.booleans())
def test_invalid_text_in_a_config_map_fails_no_pass(written: list[Any], departs: bool) -> None:
    """Covers rollouts, deleted sites and departed nodes."""
    children = []
    for manifest in FIRST.compiled.manifests:
        child = {**manifest, "metadata": {**manifest["metadata"], "uid": "u", "resourceVersion": "1"}}
        if child["kind"] == "ConfigMap" and child["metadata"]["name"] in ("sos-node-west", "sos-node-east"):
            name = "w" if child["metadata"]["name"].endswith("west") else "e"
            value = written[name == "e"]
            if isinstance(value, dict):
                value = {**json.loads(child["data"][f"{name}.json"]), **value, "node": name}
            child = {**child, "data": {f"{name}.json": json.dumps(value)}}
        children.append(child)
    gone = leaving("west", 1) if departs else OBJECTS[2]
    seen = dataclasses.replace(
        SEEN, children=parsed(*children), objects=custom(*OBJECTS[:2], gone, *OBJECTS[3:]), nodes=SEEN.nodes[1:] if departs else SEEN.nodes
    )
    output = build_output(seen, SETTINGS, FIRST.issued, {})
    plan_rollouts(seen, output.compiled, {})
    for child in (c for c in children if c["kind"] == "ConfigMap"):
        documents(config_map(child))


@settings(deadline=None)
@given(st.integers() | st.text(max_size=6) | st.none() | st.lists(st.integers(), max_size=1), st.integers(1, 1024))
def test_max_unavailable_is_at_least_one_for_any_value(value: Any, total: int) -> None:
    assert max_unavailable(SosSite.parse({"spec": {"update": {"maxUnavailable": value}}}), total) >= 1


def test_a_daemon_set_without_affinity_selects_departed_nodes() -> None:
    changed = on_nodes({"kind": "DaemonSet", "spec": {"template": {"spec": {}}}}, ["a"])
    terms = changed["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms == {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]}


def with_children(output: Any, *objects: Any) -> Seen:
    maps = (m for m in output.compiled.manifests if m["kind"] == "ConfigMap")
    children = tuple({**m, "metadata": {**m["metadata"], "uid": "u", "resourceVersion": "1"}} for m in maps)
    return dataclasses.replace(SEEN, children=parsed(*children), objects=custom(*(objects or OBJECTS)))


@pytest.mark.parametrize("answering", [False, True])
def test_a_lost_record_never_lowers_a_generation(answering: bool) -> None:
    """The generation is restored from ConfigMaps and controllers' configurations in force; nodes and agents refuse a lower generation."""
    first = build_output(SEEN, SETTINGS, Issued(57, "x"), {})
    assert first.issued.generation == 58
    controller = first.compiled.controllers["default"]
    in_force = {"default": (controller["generation"], controller["hash"])} if answering else {}
    again = build_output(with_children(first), SETTINGS, Issued(0, ""), in_force)
    assert again.issued.generation >= 58
    assert {doc["generation"] for doc in (*again.compiled.nodes.values(), *again.compiled.agents.values())} == {58}
    changed = {**OBJECTS[2], "spec": {**OBJECTS[2]["spec"], "datapath": {"type": "Netdev"}}}
    changed["metadata"] = {**changed["metadata"], "generation": 2}
    after = build_output(with_children(again, *OBJECTS[:2], changed, *OBJECTS[3:]), SETTINGS, again.issued, in_force)
    assert after.compiled.nodes["w"]["generation"] > 58
    assert after.compiled.nodes["e"]["generation"] == 58


def test_a_new_generation_exceeds_the_one_in_force_at_a_node() -> None:
    """The record and the ConfigMaps are lost: only the node's answer contains the generation."""
    answers = {"uid": NodeAnswer("sha256:" + "0" * 64, "Ready", "br-sos", "", 90)}
    output = build_output(dataclasses.replace(SEEN, answers=answers), SETTINGS, Issued(0, ""), {})
    assert output.compiled.nodes["w"]["generation"] == 91


def test_a_huge_generation_in_a_config_map_does_not_use_up_the_range() -> None:
    first = build_output(SEEN, SETTINGS, Issued(5, "x"), {})
    seen = with_children(first)
    for child in (each.content for each in seen.children):
        child["data"] = {name: text.replace('"generation": 6', f'"generation": {2**53 - 1}') for name, text in child["data"].items()}
    seen = dataclasses.replace(seen, children=parsed(*(each.content for each in seen.children)))
    assert build_output(seen, SETTINGS, first.issued, {"default": (2**53, "x")}).issued.generation == 6
    assert parse_issued({"generation": "9" * 5000, "digest": "x"}) == parse_issued({"generation": str(2**53)}) == Issued(0, "")


@pytest.mark.parametrize(
    ("spec", "switches", "own"),
    [
        ({"clusterIP": "fd00::5", "clusterIPs": ["fd00::5", "10.96.0.10"]}, "tcp:10.96.0.10:6653", "http://10.96.0.10:8080"),
        ({"clusterIP": "fd00::5", "clusterIPs": ["fd00::5"]}, None, "http://[fd00::5]:8080"),
        ({"clusterIP": "None", "clusterIPs": ["None"]}, None, ""),
    ],
)
def test_a_service_without_ipv4_is_reported_instead_of_an_endpoint(spec: dict[str, Any], switches: str | None, own: str) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "sos-controller-default"}, "spec": spec}
    seen = dataclasses.replace(SEEN, children=parsed(service))
    assert controller_endpoints(seen) == ({"default": (switches,)} if switches else {})
    assert api_base(SosController.parse(OBJECTS[0]), seen, {}) == own
    compiled = build_output(seen, SETTINGS, Issued(0, ""), {}).compiled
    (available,) = (v for v in report(*custom(OBJECTS[0]), Situation(seen=seen, compiled=compiled)).verdicts if v.type == "Available")
    assert (available.reason == "NoIPv4") == (spec["clusterIPs"] == ["fd00::5"])


def test_a_site_reports_a_wrong_node_address() -> None:
    seen = dataclasses.replace(SEEN, nodes=(Node.parse(node("w", "west", "fd00::1")), SEEN.nodes[1]))
    compiled = build_output(seen, SETTINGS, Issued(0, ""), {}).compiled
    (row,) = report(*custom(OBJECTS[2]), Situation(seen=seen, compiled=compiled)).fields["nodes"]
    assert "fd00::1 is not IPv4" in row["message"]
