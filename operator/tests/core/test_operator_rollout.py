"""Staged rollout of node-configs: the order of nodes, and the effect of a failing node."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import sos_compile
import sos_compile.model.formats.node
from hypothesis import given
from hypothesis import strategies as st
from operator_kube import ROOT
from operator_listing import custom, listing, parsed
from sos_compile.documents.parts import file_name, standalone
from sos_compile.model.formats.shared import content_hash
from sos_operator.core.desired.rollout import TURNS_ANNOTATION, Standing, decide, max_unavailable, plan_rollouts, urgent_pods, withhold
from sos_operator.core.model.custom_resources import SosSite
from sos_operator.core.model.remote.node_status import NodeAnswer
from sos_operator.core.model.world import Seen, absent
from sos_operator.core.status.report import report
from sos_operator.core.status.situation import Situation


def node(given: str, wanted: str = "new", pod: str = "Ready", state: str = "Ready", said: str = "", turn: bool = False) -> Standing:
    """A node with a pod. `said` is the hash that the node reports, by default its document's hash; `turn`: delivered in a rollout."""
    answer = NodeAnswer(said or given, state, "br-sos", "as configured" if state == "Ready" else "no such luck")
    return Standing(wanted, given, pod, answer, turn=turn)


def test_nodes_are_updated_one_after_the_other() -> None:
    nodes = {name: node("old") for name in ("a", "b", "c")}
    turns = []
    while waiting := decide(nodes, 1).waiting:
        (turn,) = [name for name, standing in nodes.items() if standing.given == "old" and name not in waiting]
        turns.append(turn)
        nodes[turn] = node("new", said="old", turn=True)
        assert set(decide(nodes, 1).waiting) == set(waiting), "a busy node occupies the only slot"
        assert decide(nodes, 2).waiting.keys() == set(sorted(waiting)[1:]), "with two slots one more node starts"
        nodes[turn] = node("new")
    assert turns == ["a", "b"], "the last node does not wait"


def test_a_failed_node_stops_the_rollout() -> None:
    rollout = decide({"a": node("new", state="Failed", turn=True), "b": node("old"), "c": node("old")}, 2)
    assert rollout.aborted
    assert rollout.waiting == dict.fromkeys("bc", "the roll-out has stopped, because a failed with it: no such luck")
    assert decide({"a": node("new", pod="Failed", turn=True), "b": node("old")}, 1).aborted


def test_a_node_cut_off_by_its_document_delays_other_nodes() -> None:
    rollout = decide({"a": node("new", pod="Progressing", turn=True), "b": node("old")}, 1)
    assert not rollout.aborted
    assert rollout.waiting == {"b": "its turn comes after a"}


def test_an_unhealthy_node_comes_last_and_delays_no_node() -> None:
    away, failed = node("old", pod="Progressing"), node("old", state="Failed")
    rollout = decide({"a": away, "b": failed, "c": node("old")}, 1)
    assert set(rollout.waiting) == {"a", "b"}
    assert not rollout.aborted, "the node failed with the old document"
    assert not decide({"a": away, "b": failed, "c": node("new")}, 1).waiting


def test_an_unready_node_does_not_get_an_untried_document() -> None:
    rollout = decide({"a": node("new", pod="Progressing", turn=True), "b": node("old", pod="Progressing")}, 1)
    assert rollout.waiting == {"b": "its turn comes after a"}


@pytest.mark.parametrize("later", [{"pod": "Progressing"}, {"pod": "Failed"}, {"state": "Failed"}, {"state": "Progressing"}])
def test_confirmed_and_joining_nodes_do_not_delay_others(later: dict[str, str]) -> None:
    rollout = decide({"a": node("new", **later), "b": node("old"), "c": node("old")}, 1)
    assert (set(rollout.waiting), rollout.aborted) == ({"c"}, False)


def test_first_documents_and_nodes_without_pods_do_not_wait() -> None:
    failed = node("new", state="Failed", turn=True)
    rollout = decide({"a": failed, "b": Standing("new", "old"), "c": Standing("new", "", "Ready"), "d": node("old")}, 1)
    assert set(rollout.waiting) == {"d"}


def test_a_corrected_document_goes_first_to_nodes_that_did_not_fail() -> None:
    nodes = {"a": node("new", wanted="third", state="Failed"), "b": node("old", wanted="third")}
    assert set(decide(nodes, 1).waiting) == {"a"}


STANDINGS = st.builds(
    node,
    given=st.sampled_from(["old", "new"]),
    pod=st.sampled_from(["Ready", "Progressing", "Failed"]),
    state=st.sampled_from(["Ready", "Progressing", "Failed"]),
    said=st.sampled_from(["", "old"]),
    turn=st.booleans(),
)


@given(st.dictionaries(st.sampled_from("abcdef"), STANDINGS, min_size=1), st.integers(1, 4))
def test_at_most_max_unavailable_healthy_nodes_are_updated(nodes: dict[str, Standing], limit: int) -> None:
    rollout = decide(nodes, limit)
    told = [name for name, standing in nodes.items() if standing.open and name not in rollout.waiting]
    busy = [name for name, standing in nodes.items() if standing.turn and not standing.open and not standing.settled]
    assert len([name for name in told if nodes[name].well]) <= max(0, limit - len(busy))
    assert not (rollout.aborted and told)
    assert not (busy and any(not nodes[name].well for name in told)), "unhealthy nodes come after all others have finished"
    assert rollout.aborted == (bool(rollout.waiting) and any(nodes[name].failed for name in busy))


@pytest.mark.parametrize(("value", "nodes"), [(1, 1), (3, 3), ("25%", 2), ("5%", 1), ("100%", 10)])
def test_max_unavailable_is_a_number_or_a_percentage(value: Any, nodes: int) -> None:
    assert max_unavailable(SosSite.parse({"spec": {"update": {"maxUnavailable": value}}}), 10) == nodes
    assert max_unavailable(SosSite.parse({"spec": {}}), 10) == 1


# --- with objects ----------------------------------------------------------------------------------------------------

OBJECTS = tuple(item.obj for item in sos_compile.load([ROOT / "examples" / "02-overlay"]))
NODES = tuple(sos_compile.Node(f"clemson-{i}", {"sos.network/site": "clemson", "sos.network/wan": "a"}, f"172.18.0.{i}") for i in (1, 2, 3))


@pytest.fixture(params=[262_144, 0], ids=["whole", "parts"])
def share(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Compile the documents as usual, or with parts in files of their own (spec/node-config.md clause 46)."""
    size: int = request.param
    monkeypatch.setattr(sys.modules[__name__], "SHARE_FROM_BYTES", size)
    return size


SHARE_FROM_BYTES = 262_144


def compiled(mtu: int, nodes: int = 3, generation: int = 1) -> tuple[tuple[dict[str, Any], ...], sos_compile.Compiled]:
    objects = []
    for number, obj in enumerate(OBJECTS):
        admitted = sos_compile.admit(json.loads(json.dumps(obj)))[0]
        admitted["metadata"] |= {"uid": f"uid-{number}", "generation": 1}
        if admitted["metadata"]["name"] == "clemson":
            admitted["spec"]["network"]["mtu"] = mtu
        objects.append(admitted)
    world = sos_compile.World(objects=tuple(objects), nodes=NODES[:nodes], namespaces=(sos_compile.Namespace("default"),))
    world = replace(world, settings=replace(world.settings, generation=generation, share_from_bytes=SHARE_FROM_BYTES))
    return tuple(objects), sos_compile.compile_world(world)


def pod(name: str) -> dict[str, Any]:
    owner = [{"kind": "DaemonSet", "name": "sos-node-clemson"}]
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "uid": f"pod-{name}", "ownerReferences": owner}, "spec": {"nodeName": name}, "status": ready}


def config_map(found: sos_compile.Compiled) -> dict[str, Any]:
    return next(m for m in found.manifests if (m["kind"], m["metadata"]["name"]) == ("ConfigMap", "sos-node-clemson"))


def whole(document: Any, data: Mapping[str, str]) -> dict[str, Any]:
    """A document of a ConfigMap's data with all its parts, each of which must be there."""
    parts = {part: json.loads(data[file_name(part)]) for part in document.get("include", ())}
    assert all(content_hash(content) == part for part, content in parts.items())
    return standalone(document, parts)


def tunnels(document: Any, data: Mapping[str, str]) -> int:
    found = whole(document, data)
    return len(found["tunnels"]) + max(0, len(found.get("mesh", {}).get("nodes", ())) - 1)


@pytest.mark.usefixtures("share")
def test_documents_and_states_during_a_rollout() -> None:
    objects, old = compiled(1400)
    _, new = compiled(1300)
    assert len(new.nodes) == 3
    seen = listing(objects=objects, children=(config_map(old),), pods=tuple(pod(n.name) for n in NODES))
    answers = {f"pod-{n.name}": NodeAnswer(old.nodes[n.name]["hash"], "Ready", "br-sos", "as configured") for n in NODES}
    rollouts = plan_rollouts(seen, new, answers)
    handed = withhold(new, seen, rollouts)
    assert [handed.nodes[n.name]["bridge"]["mtu"] for n in NODES] == [1300, 1400, 1400]
    assert [json.loads(config_map(handed)["data"][f"{n.name}.json"])["bridge"]["mtu"] for n in NODES] == [1300, 1400, 1400]

    assert json.loads(config_map(handed)["metadata"]["annotations"][TURNS_ANNOTATION]) == {"clemson-1": new.nodes["clemson-1"]["hash"]}

    seen = replace(seen, children=parsed(config_map(handed)))
    answers["pod-clemson-1"] = NodeAnswer(new.nodes["clemson-1"]["hash"], "Failed", "br-sos", "port wan0 is refused")
    rollouts = plan_rollouts(seen, new, answers)
    assert withhold(new, seen, rollouts).nodes["clemson-2"]["bridge"]["mtu"] == 1400
    site = next(o for o in objects if (o["kind"], o["metadata"]["name"]) == ("SosSite", "clemson"))
    found = report(*custom(site), Situation(seen=seen, compiled=new, answers=answers, rollouts=rollouts))
    rows = {row["name"]: (row["state"], row.get("message", "")) for row in found.fields["nodes"]}
    assert rows["clemson-1"] == ("Failed", "port wan0 is refused")
    why = "the roll-out has stopped, because clemson-1 failed with it: port wan0 is refused"
    assert rows["clemson-2"] == rows["clemson-3"] == ("Aborted", why)
    (bridges,) = [v for v in found.verdicts if v.type == "BridgesReady"]
    assert (bridges.status, bridges.reason) == ("False", "RolloutAborted")
    assert "clemson-1: port wan0 is refused" in bridges.message


@pytest.mark.usefixtures("share")
def test_a_joining_node_does_not_wait() -> None:
    objects, old = compiled(1400, nodes=2)
    _, new = compiled(1400, nodes=3)
    assert all(old.nodes[name]["hash"] != new.nodes[name]["hash"] for name in old.nodes), "each node gets another tunnel"
    seen = listing(objects=objects, children=(config_map(old),), pods=tuple(pod(n.name) for n in NODES[:2]))
    answers = {f"pod-{name}": NodeAnswer(document["hash"], "Ready", "br-sos", "as configured") for name, document in old.nodes.items()}
    assert not plan_rollouts(seen, new, answers)["clemson"].waiting


@pytest.mark.usefixtures("share")
def test_a_node_that_confirms_and_dies_does_not_delay_the_rollout() -> None:
    objects, old = compiled(1400)
    _, new = compiled(1300)
    seen = listing(objects=objects, children=(config_map(old),), pods=tuple(pod(n.name) for n in NODES))
    answers = {f"pod-{n.name}": NodeAnswer(old.nodes[n.name]["hash"], "Ready", "br-sos", "as configured") for n in NODES}

    def pass_() -> list[int]:
        nonlocal seen
        handed = withhold(new, seen, plan_rollouts(seen, new, answers))
        seen = replace(seen, children=parsed(config_map(handed)))
        return [handed.nodes[n.name]["bridge"]["mtu"] for n in NODES]

    assert pass_() == pass_() == [1300, 1400, 1400]
    answers["pod-clemson-1"] = NodeAnswer(new.nodes["clemson-1"]["hash"], "Ready", "br-sos", "as configured")
    assert pass_() == [1300, 1300, 1400]
    answers["pod-clemson-1"] = NodeAnswer(new.nodes["clemson-1"]["hash"], "Failed", "br-sos", "port wan0 is refused")
    assert pass_() == [1300, 1300, 1400], "the second node is still busy"
    answers["pod-clemson-2"] = NodeAnswer(new.nodes["clemson-2"]["hash"], "Ready", "br-sos", "as configured")
    assert pass_() == [1300, 1300, 1300]


@pytest.mark.usefixtures("share")
def test_a_tunnel_added_during_a_rollout_does_not_advance_it() -> None:
    objects, old = compiled(1400, nodes=2)
    _, new = compiled(1300, nodes=2)
    _, more = compiled(1300, nodes=3)
    seen = listing(objects=objects, children=(config_map(old),), pods=tuple(pod(n.name) for n in NODES[:2]))
    answers = {f"pod-{name}": NodeAnswer(document["hash"], "Ready", "br-sos", "as configured") for name, document in old.nodes.items()}
    for found in (new, more, more):
        handed = withhold(found, seen, plan_rollouts(seen, found, answers))
        assert [handed.nodes[n.name]["bridge"]["mtu"] for n in NODES[:2]] == [1300, 1400]
        seen = replace(seen, children=parsed(config_map(handed)))


@pytest.mark.parametrize("change", ["action", "port"])
def test_a_changed_entry_for_other_nodes_is_rolled_out_in_turn(change: str) -> None:
    objects, old = compiled(1400)
    nodes = json.loads(json.dumps(dict(old.nodes)))
    for document in nodes.values():
        document["hash"] = "sha256:" + "1" * 64
        if change == "action":
            guard = next(flow for flow in document["baseFlows"] if flow["match"].startswith("ip,nw_src="))
            guard["actions"] = "drop"
        else:
            document["tunnels"][0]["udpPort"] += 1
    seen = listing(objects=objects, children=(config_map(old),), pods=tuple(pod(n.name) for n in NODES))
    answers = {f"pod-{n.name}": NodeAnswer(old.nodes[n.name]["hash"], "Ready", "br-sos", "as configured") for n in NODES}
    rollout = plan_rollouts(seen, replace(old, nodes=nodes), answers)["clemson"]
    assert set(rollout.waiting) == {"clemson-2", "clemson-3"}


@pytest.mark.parametrize(
    "setting", [{"lan": [{"name": "eth1", "ofport": 33101}]}, {"bond": {"mode": "ActiveBackup", "upDelaySeconds": 10}}]
)
def test_added_and_removed_settings_are_rolled_out_in_turn(setting: dict[str, Any]) -> None:
    objects, without = compiled(1400, nodes=2)
    _, later = compiled(1400, nodes=3, generation=9)
    for first, then in (({}, setting), (setting, {})):
        old, new = with_setting(without, first), with_setting(later, then)
        seen = listing(objects=objects, children=(config_map(old),), pods=tuple(pod(n.name) for n in NODES[:2]))
        answers = {f"pod-{n.name}": NodeAnswer(old.nodes[n.name]["hash"], "Ready", "br-sos", "as configured") for n in NODES[:2]}
        rollouts = plan_rollouts(seen, new, answers)
        assert set(rollouts["clemson"].waiting) == {"clemson-2"}
        waiting = withhold(new, seen, rollouts).nodes["clemson-2"]
        assert {key: waiting[key] for key in setting if key in waiting} == first, "the node keeps its own settings"
        assert len(waiting["tunnels"]) > len(old.nodes["clemson-2"]["tunnels"]), "and gets the current tunnels"


def with_setting(found: sos_compile.Compiled, setting: dict[str, Any]) -> sos_compile.Compiled:
    """Add a setting to the documents of the site's nodes."""
    nodes = {name: dict(document) | (setting if name.startswith("clemson") else {}) for name, document in found.nodes.items()}
    nodes = {name: document | {"hash": content_hash(document)} for name, document in nodes.items()}
    data = {f"{name}.json": json.dumps(document) for name, document in nodes.items() if name.startswith("clemson")}
    manifests = tuple({**m, "data": data} if m is config_map(found) else m for m in found.manifests)
    return replace(found, nodes=nodes, manifests=manifests)


def test_only_the_next_of_many_waiting_nodes_are_polled() -> None:
    nodes = {f"n{i:03}": node("old") for i in range(300)} | {"a": node("new", said="old", turn=True)}
    pods = tuple({**pod(name), "metadata": {**pod(name)["metadata"], "uid": name}} for name in nodes)
    asked = urgent_pods(listing(objects=(), pods=pods), {"clemson": decide(nodes, 1)})
    assert asked == {"a", "n000", "n001", "n002", "n003"}


def test_a_waiting_node_reports_its_own_failure_first() -> None:
    objects, old = compiled(1400)
    _, new = compiled(1300)
    seen = listing(objects=objects, children=(config_map(old),), pods=tuple(pod(n.name) for n in NODES))
    answers = {f"pod-{n.name}": NodeAnswer(old.nodes[n.name]["hash"], "Ready", "br-sos", "as configured") for n in NODES}
    answers["pod-clemson-3"] = NodeAnswer(old.nodes["clemson-3"]["hash"], "Failed", "br-sos", "wan0 is refused")
    situation = Situation(seen=seen, compiled=new, answers=answers, rollouts=plan_rollouts(seen, new, answers))
    state = situation.node_state("clemson", "clemson-3")
    assert (state.state, state.message) == ("Failed", "wan0 is refused; its turn comes after clemson-1")


@pytest.mark.usefixtures("share")
def test_a_waiting_node_gets_new_tunnels() -> None:
    objects, old = compiled(1400, nodes=2)
    seen = listing(objects=objects, children=(config_map(old),), pods=tuple(pod(n.name) for n in NODES[:2]))
    answers = {f"pod-{name}": NodeAnswer(document["hash"], "Ready", "br-sos", "as configured") for name, document in old.nodes.items()}

    def handed(found: sos_compile.Compiled) -> tuple[int, int, int]:
        """Generation, MTU and number of tunnels of the waiting node, after a check that its document is consistent."""
        nonlocal seen
        result = withhold(found, seen, plan_rollouts(seen, found, answers))
        seen = replace(seen, children=parsed(config_map(result)))
        document = result.nodes["clemson-2"]
        data = config_map(result)["data"]
        assert document == json.loads(data["clemson-2.json"])
        assert document["hash"] == content_hash(document)
        sos_compile.model.formats.node.NodeConfig.model_validate(whole(document, data))
        return document["generation"], document["bridge"]["mtu"], tunnels(document, data)

    before = tunnels(old.nodes["clemson-2"], config_map(old)["data"])
    assert handed(compiled(1300, nodes=2, generation=2)[1]) == (1, 1400, before)
    more = compiled(1300, nodes=3, generation=3)[1]
    assert handed(more) == (2, 1400, before + 1)
    assert handed(more) == (2, 1400, before + 1), "a document never changes without a new generation"
    assert handed(compiled(1300, nodes=2, generation=4)[1]) == (3, 1400, before)
    answers["pod-clemson-1"] = NodeAnswer(seen_hash(seen, "clemson-1"), "Ready", "br-sos", "as configured")
    assert handed(compiled(1300, nodes=2, generation=4)[1]) == (4, 1300, before)


def seen_hash(seen: Seen, name: str) -> str:
    return str(json.loads(seen.children[0].content["data"][f"{name}.json"])["hash"])


def test_a_changed_site_setting_in_a_part_waits_and_another_nodes_address_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part has the entries that follow from the site's settings, the second one those that name other nodes and agents."""
    monkeypatch.setattr(sys.modules[__name__], "SHARE_FROM_BYTES", 0)
    objects, old = compiled(1400)
    seen = listing(objects=objects, children=(config_map(old),), pods=tuple(pod(n.name) for n in NODES))
    answers = {f"pod-{n.name}": NodeAnswer(old.nodes[n.name]["hash"], "Ready", "br-sos", "as configured") for n in NODES}
    for part, waiting in ((0, {"clemson-2", "clemson-3"}), (1, set())):
        nodes = {}
        for name, document in old.nodes.items():
            include = list(document["include"])
            include[part] = "sha256:" + "0" * 64
            changed = {**document, "include": include, "generation": 2}
            nodes[name] = {**changed, "hash": content_hash(changed)}
        assert set(plan_rollouts(seen, replace(old, nodes=nodes), answers)["clemson"].waiting) == waiting


def test_absent_documents_need_no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SHARE_FROM_BYTES", 0)
    document = absent(compiled(1400)[1].nodes["clemson-1"])
    assert not {"include", "number"} & set(document)
    assert document["hash"] == content_hash(document)
    sos_compile.model.formats.node.NodeConfig.model_validate(document)
