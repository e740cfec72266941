"""Reported statuses: printed columns and conditions of every kind in every state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import sos_compile
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_kube import ROOT
from operator_listing import custom, listing, parsed
from sos_operator.core.model.cluster_objects import Node
from sos_operator.core.model.conditions import Verdict
from sos_operator.core.model.remote.controller_view import ControllerView
from sos_operator.core.model.remote.node_status import NodeAnswer
from sos_operator.core.model.world import parse_allocations
from sos_operator.core.status.report import report
from sos_operator.core.status.situation import Report, Situation
from sos_operator.core.status.status_writer import plan_write, still_pending

FIGURE8 = {"edge1": "west", "core1": "core1", "core2": "core2", "edge2": "east"}


def loaded(*names: str) -> tuple[dict[str, Any], ...]:
    items = sos_compile.load([ROOT / "examples" / name for name in names])
    objects = []
    for number, item in enumerate(items):
        obj = sos_compile.admit(item.obj)[0]
        obj["metadata"] |= {"uid": f"uid-{number}", "generation": 1}
        objects.append(obj)
    return tuple(objects)


OBJECTS = loaded("01-two-sites", "bad/unknown-site.yaml")
NODES = tuple(sos_compile.Node(name, {"sos.network/site": site}, f"172.18.0.{i}") for i, (name, site) in enumerate(FIGURE8.items(), 2))
COMPILED = sos_compile.compile_world(
    sos_compile.World(
        objects=OBJECTS,
        nodes=NODES,
        namespaces=(sos_compile.Namespace("default"),),
        observed=sos_compile.Observed(endpoints={"default": ("tcp:10.96.0.10:6653",)}),
    )
)
HASH = COMPILED.controllers["default"]["hash"]
DPIDS = [doc["bridge"]["datapathId"] for doc in COMPILED.nodes.values()]
AGENTS = [doc["agentId"] for doc in COMPILED.agents.values()]
EDGES = [COMPILED.nodes[node]["bridge"]["datapathId"] for node in ("edge1", "edge2")]


def status(**change: Any) -> dict[str, Any]:
    """Status of a controller without problems."""
    service = {"id": "default/bulk", "state": "Programmed", "reason": "Programmed", "needed": EDGES, "acknowledged": EDGES, "sessions": 3}
    return {
        "config": {"generation": 4, "hash": HASH},
        "datapaths": [{"dpid": dpid, "connected": True} for dpid in DPIDS],
        "agents": [{"id": agent} for agent in AGENTS],
        "links": 4,
        "services": [service],
        "sessions": 3,
    } | change


def view(**change: Any) -> dict[str, ControllerView]:
    return {"default": replace(ControllerView(name="default", status=status(), wanted_hash=HASH), **change)}


def pods() -> tuple[dict[str, Any], ...]:
    found = []
    for node, site in FIGURE8.items():
        sets = [f"sos-node-{site}"] + ([f"sos-agent-default-{site}"] if site in ("west", "east") else [])
        for name in sets:
            meta = {
                "name": f"{name}-x",
                "namespace": "n",
                "uid": f"{name}-{node}",
                "ownerReferences": [{"kind": "DaemonSet", "name": name}],
            }
            ready = {"conditions": [{"type": "Ready", "status": "True"}]}
            found.append({"metadata": meta, "spec": {"nodeName": node}, "status": ready})
    return tuple(found)


def daemon_sets() -> tuple[dict[str, Any], ...]:
    names = ("sos-agent-default-west", "sos-agent-default-east")
    done = {"observedGeneration": 1, "desiredNumberScheduled": 1, "numberReady": 1, "updatedNumberScheduled": 1}
    return tuple({"kind": "DaemonSet", "metadata": {"name": name, "generation": 1}, "spec": {}, "status": done} for name in names)


def situation(views: Mapping[str, ControllerView], **change: Any) -> Situation:
    seen = listing(objects=OBJECTS, pods=pods(), children=daemon_sets())
    return replace(Situation(seen=seen, compiled=COMPILED, views=views), **change)


def the(kind: str, name: str, given: Situation) -> Report:
    return report(*custom(next(o for o in OBJECTS if (o["kind"], o["metadata"]["name"]) == (kind, name))), given)


def says(found: Report, type_: str = "Ready") -> tuple[str, str]:
    (verdict,) = [v for v in found.verdicts if v.type == type_]
    return verdict.status, verdict.reason


def test_every_kind_is_ready_without_problems() -> None:
    good = situation(view())
    for kind, name, reason in (("SosSite", "west", "Ready"), ("SosSite", "core2", "Ready"), ("SosAgent", "default", "Ready")):
        assert says(the(kind, name, good)) == ("True", reason)
    assert says(the("SosController", "default", good)) == ("True", "Available")
    assert says(the("SosService", "bulk", good)) == ("True", "Programmed")
    site = the("SosSite", "west", good).fields
    assert (site["nodesReady"], site["datapathsConnected"], site["agentsRegistered"]) == ("1/1", "1/1", "1/1")
    assert site["mtu"] == 1500
    agent = the("SosAgent", "default", good).fields
    assert (agent["sites"], agent["desired"], agent["ready"], agent["registered"]) == ("east,west", 2, 2, 2)
    service = the("SosService", "bulk", good).fields
    assert (service["datapaths"], service["sessions"], service["ports"]) == ("2/2", 3, "22,80,443,5000-5999")
    assert "gain" not in service
    assert the("SosController", "default", good).fields["datapaths"] == "4/4"


def test_the_gain_is_shown_if_it_is_known() -> None:
    said = status()
    said["services"][0]["gain"] = 12.44
    assert the("SosService", "bulk", situation(view(status=said))).fields["gain"] == "12.4x"


def recent(**change: Any) -> dict[str, Any]:
    return {
        **{"seconds": 300, "accelerated": 3, "plain": {"AgentMemory": 57, "Option": 1}, "plainIsRule": True},
        **{"leadingReason": "AgentMemory", "message": "an agent has reached its memory limit"},
        **change,
    }


def traffic(**change: Any) -> Verdict | None:
    said = status()
    said["services"][0]["recent"] = recent(**change)
    found = the("SosService", "bulk", situation(view(status=said)))
    assert says(found) == ("True", "Programmed"), "Ready depends only on installed entries"
    return next((v for v in found.verdicts if v.type == "Accelerating"), None)


def test_mostly_plain_connections_set_accelerating_false() -> None:
    plain = traffic()
    assert plain is not None and (plain.status, plain.reason) == ("False", "AgentMemory")
    assert "50 or more connections of the last 5 minutes went plain and 2 or more were accelerated" in plain.message
    assert plain == traffic(plain={"AgentMemory": 80}), "small changes of the counts cause no write"
    good = traffic(plainIsRule=False)
    assert good is not None and (good.status, good.reason) == ("True", "Accelerating")


def test_refused_connections_are_reported_as_refused() -> None:
    refused = traffic(refused=True)
    assert refused is not None
    assert "50 or more connections of the last 5 minutes were refused, as spec.require asks, and 2" in refused.message


def test_the_message_of_a_programmed_service_is_shown() -> None:
    said = status()
    said["services"][0]["message"] = "first packets of any client are punted to the controller"
    (programmed,) = [v for v in the("SosService", "bulk", situation(view(status=said))).verdicts if v.type == "Programmed"]
    assert programmed.message == "acknowledged by 2 datapaths; first packets of any client are punted to the controller"


def test_accelerating_is_absent_if_the_controller_has_no_counts() -> None:
    assert not [v for v in the("SosService", "bulk", situation(view())).verdicts if v.type == "Accelerating"]


NONSENSE = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**80), 2**80), st.floats(), st.text(max_size=100), st.lists(st.none() | st.text(max_size=5))
)
SERVICE_KEYS = st.sampled_from(["state", "reason", "message", "needed", "acknowledged", "sessions", "gain", "recent"])
CONFIG = st.dictionaries(st.just("generation"), NONSENSE)
STATUS_KEYS = st.sampled_from(["datapaths", "agents", "links", "sessions", "declaredLinks", "config"])


@settings(deadline=None)
@given(
    st.dictionaries(SERVICE_KEYS, NONSENSE),
    st.dictionaries(STATUS_KEYS, NONSENSE),
    st.dictionaries(st.just("generation"), NONSENSE),
    NONSENSE,
)
def test_any_answer_of_a_controller_gives_valid_statuses(
    row: dict[str, Any], rest: dict[str, Any], config: dict[str, Any], hash_: object
) -> None:
    said = status(config={"generation": 4, "hash": HASH} | config)
    said["services"][0] |= {"recent": recent(**dict.fromkeys(recent(), hash_))} | row
    said |= rest
    for wanted in (HASH, hash_):
        given_ = situation(view(status=said, wanted_hash=wanted))
        for obj in custom(*OBJECTS):
            write = plan_write(obj, report(obj, given_), "2026-01-01T00:00:00Z", 3600.0)
            assert write is not None
            assert sos_compile.admit({**obj.content, "status": write.status})[1] == []


def test_a_transit_site_expects_no_agents() -> None:
    assert says(the("SosSite", "core1", situation(view())), "AgentsRegistered") == ("True", "NoneExpected")


def test_an_unreachable_controller_makes_dependent_conditions_unknown() -> None:
    lost = situation(view(status=None, error="connection refused"))
    for kind, name in (("SosSite", "west"), ("SosAgent", "default"), ("SosService", "bulk")):
        assert says(the(kind, name, lost)) == ("Unknown", "ControllerUnreachable")
    assert says(the("SosSite", "west", lost), "BridgesReady") == ("True", "Ready"), (
        "conditions that do not depend on the controller stay known"
    )
    assert says(the("SosService", "bulk", situation({}))) == ("Unknown", "ControllerUnreachable")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"config": {"generation": 3, "hash": "sha256:old"}}, ("False", "Programming")),
        ({"services": []}, ("False", "Programming")),
        (
            {"services": [{"id": "default/bulk", "state": "Pending", "reason": "NoAgents", "needed": EDGES, "acknowledged": []}]},
            ("False", "NoAgents"),
        ),
        ({"services": [{"id": "default/bulk", "state": "Pending", "needed": EDGES, "acknowledged": EDGES[:1]}]}, ("False", "Programming")),
    ],
)
def test_a_service_is_programmed_only_for_the_current_configuration(change: dict[str, Any], expected: tuple[str, str]) -> None:
    found = the("SosService", "bulk", situation(view(status=status(**change))))
    assert says(found, "Programmed") == says(found) == expected


def test_missing_datapaths_and_agents_are_named() -> None:
    away = status(datapaths=[{"dpid": dpid, "connected": dpid != EDGES[0]} for dpid in DPIDS], agents=[])
    found = the("SosSite", "west", situation(view(status=away)))
    assert says(found) == ("False", "NotConnected")
    (verdict,) = [v for v in found.verdicts if v.type == "DatapathsConnected"]
    assert f"missing: edge1 ({EDGES[0]})" in verdict.message
    assert any(v.message == "0 of 1 agents; missing: edge1" for v in found.verdicts)
    assert says(found, "AgentsRegistered") == ("False", "NotRegistered")
    assert says(the("SosController", "default", situation(view(status=away)))) == ("True", "Available"), (
        "missing datapaths do not make their controller unavailable"
    )
    assert the("SosController", "default", situation(view(status=away))).fields["datapaths"] == "3/4"


def test_a_refused_configuration_shows_at_controller_and_service() -> None:
    refused = situation(view(status=status(config={"generation": 3, "hash": "sha256:old"}), push_error="HTTP 400: services[0]: no"))
    for kind, name in (("SosController", "default"), ("SosService", "bulk")):
        assert says(the(kind, name, refused)) == ("False", "ConfigRefused")


def test_a_missing_external_token_is_always_reported() -> None:
    spec = {
        "type": "External",
        "external": {"endpoints": ["tcp:192.0.2.9:6653"], "apiURL": "http://192.0.2.9", "tokenSecretName": "theirs"},
    }
    obj = {**next(o for o in OBJECTS if o["kind"] == "SosController"), "spec": spec}
    for change in ({}, {"status": None, "error": "connection refused"}):
        found = report(*custom(obj), situation(view(has_token=False, **change)))
        assert says(found) == says(found, "Available") == ("False", "SecretNotFound")
        (verdict,) = [v for v in found.verdicts if v.type == "Available"]
        assert "spec.external.tokenSecretName" in verdict.message and "create it" in verdict.message
        assert still_pending(found), "polled soon again, because created Secrets are not watched"
    assert says(report(*custom(obj), situation(view()))) == ("True", "Available")


def test_an_unknown_site_affects_only_its_service() -> None:
    found = the("SosService", "lost", situation(view()))
    assert says(found, "Accepted") == ("True", "Accepted")
    assert says(found, "ResolvedRefs") == ("False", "SiteNotFound")
    assert says(found) == ("False", "SiteNotFound")
    assert says(the("SosService", "bulk", situation(view()))) == ("True", "Programmed")


def test_an_apply_error_shows_at_the_owner() -> None:
    broken = situation(view(), apply_errors={("SosSite", "west"): "DaemonSet n/x: 403 quota", ("SosAgent", "default"): "no"})
    assert says(the("SosSite", "west", broken)) == ("False", "ApplyFailed")
    assert says(the("SosAgent", "default", broken)) == ("False", "ApplyFailed")
    assert says(the("SosSite", "east", broken)) == ("True", "Ready")


def test_without_multus_the_site_works_and_names_the_missing_network() -> None:
    found = the("SosSite", "west", situation(view(), multus=False))
    assert says(found) == ("True", "Ready")
    assert says(found, "PodsAttachable") == ("False", "MultusMissing")


def test_a_missing_interface_is_reported_and_the_site_stays_ready() -> None:
    said = NodeAnswer("sha256:x", "Ready", "br-sos", "", interfaces=(("wan0", "Waiting"), ("wan1", "Up")))
    found = the("SosSite", "west", situation(view(), answers={"sos-node-west-edge1": said}))
    assert says(found) == ("True", "Ready")
    assert says(found, "InterfacesAttached") == ("False", "InterfaceMissing")
    assert says(the("SosSite", "east", situation(view())), "InterfacesAttached") == ("Unknown", "RollingOut")


def test_without_pods_nothing_is_ready() -> None:
    empty = situation(view(), seen=listing(objects=OBJECTS))
    assert says(the("SosSite", "west", empty)) == ("False", "RollingOut")
    assert says(the("SosAgent", "default", empty)) == ("False", "RollingOut")


def test_an_agent_pool_without_sites_is_not_ready() -> None:
    only = tuple(o for o in OBJECTS if o["kind"] in ("SosAgent", "SosController"))
    compiled = sos_compile.compile_world(sos_compile.World(objects=only))
    found = the("SosAgent", "default", Situation(seen=listing(objects=only), compiled=compiled, views=view()))
    assert says(found) == ("False", "NoMatchingNodes")


def test_an_object_unknown_to_the_compilation_is_pending() -> None:
    stranger = {"apiVersion": "sos.network/v1alpha1", "kind": "SosLink", "metadata": {"name": "new", "uid": "u"}}
    assert says(report(*custom(stranger), situation(view()))) == ("Unknown", "Pending")


def test_a_warning_is_reported_without_refusal() -> None:
    problem = sos_compile.Problem("SosSite", "", "west", "spec.x", sos_compile.Reason.LIMIT_EXCEEDED, "odd", warning=True)
    warned = situation(view(), compiled=replace(COMPILED, problems=(*COMPILED.problems, problem)))
    found = the("SosSite", "west", warned)
    assert says(found) == ("True", "Ready")
    assert [v.message for v in found.verdicts if v.type == "Accepted"] == ["spec.x: odd"]


def test_the_same_facts_give_the_same_status() -> None:
    for obj in OBJECTS:
        assert report(*custom(obj), situation(view())) == report(*custom(obj), situation(view()))


ENDS = {"a": {"site": "west", "uplink": "wan0"}, "b": {"site": "core1", "uplink": "wan1"}}
LINK = {
    "apiVersion": "sos.network/v1alpha1",
    "kind": "SosLink",
    "metadata": {"name": "wire", "uid": "uid-wire", "generation": 1},
    "spec": ENDS,
}


def test_a_transport_of_two_sites_has_no_state_of_a_link() -> None:
    pair = {**LINK, "spec": {"a": {"site": "west"}, "b": {"site": "east"}, "transport": {}}}
    world = sos_compile.World(objects=(*OBJECTS, pair), nodes=NODES, namespaces=(sos_compile.Namespace("default"),))
    found = report(*custom(pair), replace(situation(view()), compiled=sos_compile.compile_world(world)))
    assert {verdict.type for verdict in found.verdicts} == {"Accepted", "Ready"}
    assert says(found) == ("True", "Accepted")


def test_the_state_of_a_link_comes_from_a_controller_of_both_sites() -> None:
    world = sos_compile.World(objects=(*OBJECTS, LINK), nodes=NODES, namespaces=(sos_compile.Namespace("default"),))
    compiled = sos_compile.compile_world(world)

    def told(**change: Any) -> tuple[str, str]:
        found = report(*custom(LINK), replace(situation(view(**change)), compiled=compiled))
        (up,) = [verdict for verdict in found.verdicts if verdict.type == "Up"]
        assert says(found) == (up.status, up.reason)
        return up.status, up.reason

    turned = {"a": ENDS["b"], "b": ENDS["a"]}
    assert told(status=status(declaredLinks=[{**ENDS, "up": True}])) == ("True", "Up")
    assert told(status=status(declaredLinks=[{**turned, "up": True}])) == ("True", "Up")
    assert told(status=status(declaredLinks=[{**ENDS, "up": False}])) == ("False", "Down")
    assert told(status=status(declaredLinks=[])) == ("Unknown", "Programming")
    assert told(status=status(declaredLinks=[{"a": "west", "up": True}, "odd"])) == ("Unknown", "Programming")
    assert told(status=status()) == ("Unknown", "Programming"), "an older controller does not report declaredLinks"
    assert told(status=None, error="away") == ("Unknown", "ControllerUnreachable")
    assert told(asked=False, status=None) == ("Unknown", "NotObserved")


@pytest.mark.parametrize(
    "ready", [{"status": "Unknown", "message": "Kubelet stopped posting node status."}, {"status": "False", "reason": "NotReady"}]
)
def test_an_unready_node_is_reported_despite_ready_pods(ready: dict[str, str]) -> None:
    condition = {"type": "Ready", **ready}
    lost = {"kind": "Node", "metadata": {"name": "edge1"}, "status": {"conditions": [condition]}}
    well = {"kind": "Node", "metadata": {"name": "edge2"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    world = situation(view())
    there = replace(world, seen=replace(world.seen, nodes=(Node.parse(lost), Node.parse(well))))
    assert says(the("SosSite", "west", there)) == ("False", "NodeFailed")
    assert says(the("SosAgent", "default", there)) == ("False", "NodeFailed")
    assert says(the("SosSite", "east", there)) == ("True", "Ready")
    (bridges,) = [v for v in the("SosSite", "west", there).verdicts if v.type == "BridgesReady"]
    assert "edge1: the node is not ready" in bridges.message


def overlapping(**second: Any) -> tuple[tuple[dict[str, Any], ...], sos_compile.Compiled]:
    """Services a/web and b/web between west and east of the example, which admit every namespace."""
    objects = [obj for obj in OBJECTS if obj["kind"] != "SosService"]
    objects = [{**o, "spec": {**o["spec"], "services": {"namespaces": "All"}}} if o["kind"] == "SosSite" else o for o in objects]
    for number, (namespace, spec) in enumerate([("a", {}), ("b", second)]):
        meta = {"name": "web", "namespace": namespace, "uid": f"uid-{namespace}", "generation": 1}
        meta["creationTimestamp"] = f"2026-01-0{number + 1}T00:00:00Z"
        full = {"from": {"site": "west"}, "to": {"site": "east"}, "ports": [{"port": 80}], **spec}
        made = {"apiVersion": "sos.network/v1alpha1", "kind": "SosService", "metadata": meta, "spec": full}
        objects.append(sos_compile.admit(made)[0])
    compiled = sos_compile.compile_world(sos_compile.World(objects=tuple(objects), nodes=NODES))
    return tuple(objects), compiled


def of_namespace(objects: tuple[dict[str, Any], ...], compiled: sos_compile.Compiled, namespace: str) -> Report:
    rows = [{"id": f"{n}/web", "state": "Programmed", "reason": "Programmed", "needed": [], "acknowledged": []} for n in "ab"]
    known = {"default": replace(view()["default"], status=status(services=rows))}
    found = Situation(seen=listing(objects=objects), compiled=compiled, views=known)
    return report(*custom(next(o for o in objects if o["metadata"].get("namespace") == namespace)), found)


def test_a_shadowed_service_is_not_ready_and_names_no_service_of_another_namespace() -> None:
    objects, compiled = overlapping()
    hidden, hiding = of_namespace(objects, compiled, "b"), of_namespace(objects, compiled, "a")
    assert says(hidden, "Shadowed") == ("True", "WhollyShadowed")
    assert says(hidden) == ("False", "WhollyShadowed")
    assert says(hiding, "ShadowsOthers") == ("True", "ShadowsOthers")
    assert says(hiding) == ("True", "Programmed")
    message = next(v.message for v in hidden.verdicts if v.type == "Shadowed")
    assert "ports 80" in message and "another namespace" in message and "web" not in message
    (west,) = (obj for obj in custom(*objects) if obj.name == "west")
    site = report(west, Situation(seen=listing(objects=objects), compiled=compiled))
    assert "a/web hides b/web" in next(v.message for v in site.verdicts if v.type == "ServicesOverlap")


def test_a_partly_shadowed_service_is_ready_and_reports_it() -> None:
    objects, compiled = overlapping(ports=[{"port": 80, "endPort": 90}])
    hidden = of_namespace(objects, compiled, "b")
    assert says(hidden, "Shadowed") == ("True", "PartlyShadowed")
    assert says(hidden) == ("True", "Programmed")


def test_a_service_that_needs_encryption_reports_its_refused_connections() -> None:
    objects, compiled = overlapping(ports=[{"port": 81}], require=["Encrypted"])
    found = of_namespace(objects, compiled, "b")
    assert says(found) == says(found, "ResolvedRefs") == ("False", "NotEncrypted")
    assert [v.message for v in found.verdicts if v.type == "Programmed"] == ["only entries that refuse its connections are installed"]
    assert "set spec.transport.encryption of a SosLink" in next(v.message for v in found.verdicts if v.type == "Ready")


def test_deprecated_stream_settings_of_a_service_are_reported() -> None:
    objects, compiled = overlapping(ports=[{"port": 81}], transport={"encryption": "None", "compression": "Adaptive"})
    assert [v.message for v in of_namespace(objects, compiled, "b").verdicts if v.type == "Accepted"] == [""]
    one = next(o for o in OBJECTS if o["kind"] == "SosService" and o["metadata"]["name"] == "bulk")
    tuned = {**one, "spec": {**one["spec"], "transport": {**one["spec"]["transport"], "streams": 8}}}
    others = tuple(obj for obj in OBJECTS if obj is not one)
    world = sos_compile.World(objects=(*others, tuned), nodes=NODES, namespaces=(sos_compile.Namespace("default"),))
    found = report(*custom(tuned), replace(situation(view()), compiled=sos_compile.compile_world(world)))
    (accepted,) = (v for v in found.verdicts if v.type == "Accepted")
    assert accepted.status == "True" and accepted.message.startswith("spec.transport.streams: streams apply to all services between")


def test_the_claim_of_a_service_survives_a_round_trip() -> None:
    objects, compiled = overlapping()
    reported = {}
    for obj in objects:
        if obj["kind"] == "SosService":
            found = of_namespace(objects, compiled, obj["metadata"]["namespace"]).fields
            reported[obj["metadata"]["namespace"]] = found["claim"]
            obj["status"] = {"claim": found["claim"]}
    assert reported["a"]["number"] < reported["b"]["number"]
    assert parse_allocations(parsed(*objects)).claims == compiled.allocations.claims
    assert compiled.allocations.claims.keys() == {"a/web", "b/web"}


def test_a_service_without_acceptance_keeps_its_claim() -> None:
    objects, _ = overlapping()
    service = {**objects[-1], "status": {"claim": {"number": 7, "scope": "0123456789abcdef"}}}
    kept = plan_write(*custom(service), Report({}, ()), "2026-01-01T00:00:00Z", 100.0)
    assert kept is not None and kept.status["claim"] == {"number": 7, "scope": "0123456789abcdef"}


REPLICATED = next(o for o in OBJECTS if o["kind"] == "SosController")


def standby(**own: Any) -> ControllerView:
    said = {"role": "Slave", "active": False, "datapathsInRole": len(DPIDS)} | own
    return ControllerView(name="default", status={**status(), "controller": said}, wanted_hash=HASH)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (standby(), ("True", "StandbyReady")),
        (None, ("False", "NoStandby")),
        (replace(standby(), status=None, error="timed out"), ("False", "NoStandby")),
        (replace(standby(), push_error="HTTP 400"), ("False", "ConfigRefused")),
        (replace(standby(), wanted_hash="other"), ("False", "Programming")),
        (standby(datapathsInRole=3), ("False", "DatapathDisconnected")),
        (standby(role="Master"), ("False", "DatapathDisconnected")),
    ],
)
def test_standby_of_a_controller_has_a_condition_and_the_controller_is_ready_without_it(
    change: ControllerView | None, said: tuple[str, str]
) -> None:
    replicated = {**REPLICATED, "spec": {**REPLICATED["spec"], "replicas": 2}}
    found = report(*custom(replicated), situation(view(standby=change)))
    assert says(found, "StandbyReady") == said
    assert says(found) == ("True", "Available")
    assert not [v for v in report(*custom(REPLICATED), situation(view())).verdicts if v.type == "StandbyReady"]
