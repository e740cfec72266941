"""Decisions of the operator's core, without a cluster, a socket or a clock."""

from __future__ import annotations

import base64
import json
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_kube import ROOT
from operator_listing import config_map, custom, listing, parsed, pod, secret
from sos_operator.core import plan
from sos_operator.core.desired import departure, finalizer, generation, pod_refresh
from sos_operator.core.desired.generation import Issued
from sos_operator.core.model import conditions, pod_state, world
from sos_operator.core.model.conditions import Verdict
from sos_operator.core.model.custom_resources import SosController
from sos_operator.core.model.errors import KindMissing
from sos_operator.core.model.objects import Ref, Resource, parse_conditions
from sos_operator.core.model.remote import controller_view, node_status
from sos_operator.core.plan import Applied
from sos_operator.core.scheduling import backoff
from sos_operator.core.scheduling.change_queue import NAMED_MAX, Changed, ChangeQueue
from sos_operator.core.secrets import keys, secrets
from sos_operator.core.status import status_writer

NAMES = st.text("abcdefgh", min_size=1, max_size=4)


def test_the_folder_does_not_shadow_pythons_operator() -> None:
    assert operator.__file__ is not None
    assert operator.__file__.endswith("operator.py")
    assert operator.add(1, 2) == 3


# --- plan ------------------------------------------------------------------------------------------------------------


def child(name: str, kind: str = "ConfigMap", owner: str = "sos-operator", **data: str) -> dict[str, Any]:
    version = {"DaemonSet": "apps/v1"}.get(kind, "v1")
    labels = {"app.kubernetes.io/managed-by": owner} if owner else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "n", "labels": labels}, "data": data}


def as_stored(manifest: dict[str, Any], uid: str = "u") -> dict[str, Any]:
    """A manifest as an API server stores it."""
    meta = {**manifest["metadata"], "uid": uid, "resourceVersion": "7", "creationTimestamp": "t", "managedFields": [], "generation": 1}
    return {**manifest, "metadata": meta, "status": {"seen": True}}


def memory_of(*manifests: dict[str, Any]) -> dict[Ref, Applied]:
    return {plan.ref_of(m): plan.applied(m, as_stored(m)) for m in manifests}


CHILDREN = st.lists(
    st.builds(child, NAMES, st.sampled_from(["ConfigMap", "Secret", "DaemonSet"])),
    max_size=6,
    unique_by=lambda m: (m["kind"], m["metadata"]["name"]),
)


@given(CHILDREN)
def test_an_unchanged_object_is_not_applied_again(manifests: list[dict[str, Any]]) -> None:
    assert plan.plan(manifests, parsed(*map(as_stored, manifests)), memory_of(*manifests)).empty


@given(CHILDREN, CHILDREN)
def test_a_plan_turns_the_observed_into_the_desired_state(wanted: list[dict[str, Any]], there: list[dict[str, Any]]) -> None:
    changes = plan.plan(wanted, parsed(*map(as_stored, there)), {})
    result = {plan.ref_of(m) for m in there} - {o.ref for o in changes.delete} | {plan.ref_of(m) for m in changes.apply}
    assert result == {plan.ref_of(m) for m in wanted}
    assert list(changes.apply) == sorted(
        changes.apply, key=lambda m: (["Secret", "ConfigMap", "DaemonSet"].index(m["kind"]), plan.ref_of(m))
    )


@given(CHILDREN, st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_order(manifests: list[dict[str, Any]], random: Any) -> None:
    shuffled = random.sample(manifests, len(manifests))
    assert plan.plan(manifests, [], {}) == plan.plan(shuffled, [], {})


def test_foreign_terminating_and_kept_objects_are_not_deleted() -> None:
    going = as_stored(child("going"))
    going["metadata"]["deletionTimestamp"] = "t"
    there = [
        as_stored(child("foreign", owner="")),
        as_stored(child("helm", owner="Helm")),
        going,
        as_stored(child("kept")),
        as_stored(child("old")),
    ]
    changes = plan.plan([], parsed(*there), {}, frozenset({Ref("ConfigMap", "n", "kept")}))
    assert [o.name for o in changes.delete] == ["old"]


@pytest.mark.parametrize("edit", ["data", "labels", "uid"])
def test_an_object_changed_by_another_client_is_applied_again(edit: str) -> None:
    manifest = child("m", a="1")
    there = as_stored(manifest)
    there["metadata"]["resourceVersion"] = "8"
    if edit == "data":
        there["data"] = {"a": "2"}
    elif edit == "labels":
        there["metadata"]["labels"] = {**there["metadata"]["labels"], "x": "y"}
    else:
        there["metadata"]["uid"] = "another"
    assert plan.plan([manifest], parsed(there), memory_of(manifest)).apply == (manifest,)


def test_status_and_versions_are_no_change() -> None:
    manifest = child("m")
    there = as_stored(manifest)
    there["status"], there["metadata"]["resourceVersion"] = {"numberReady": 3}, "99"
    assert plan.plan([manifest], parsed(there), memory_of(manifest)).empty


def test_a_changed_manifest_is_always_applied() -> None:
    before, now = child("m", a="1"), child("m", a="2")
    assert plan.plan([now], parsed(as_stored(before)), memory_of(before)).apply == (now,)
    assert plan.plan([now], parsed(as_stored(now)), memory_of(before)).apply == (now,), (
        "applied even if another client has made the same change: the operator's field manager must own it"
    )


def test_an_unknown_kind_is_found_before_the_first_call() -> None:
    with pytest.raises(KindMissing, match="Gadget"):
        plan.plan([child("a", "Gadget")], [], {})


# --- changes ------------------------------------------------------------------------------------------------------------


def test_changes_are_named_up_to_a_limit() -> None:
    news = ChangeQueue()
    one, other = Changed("sosservices", "n", "a"), Changed("sossites", "", "w")
    for change in (one, other, one):
        news.add(change)
    assert news.take() == {one, other}
    assert news.take() == frozenset()
    for number in range(NAMED_MAX + 1):
        news.add(Changed("sosservices", "n", f"s{number}"))
    news.add(other)
    news.add(one)
    assert news.take() == {Changed("sosservices"), other}, "above NAMED_MAX changes only the kind is kept, also for later changes"


def test_a_change_of_a_whole_kind_covers_single_changes() -> None:
    news = ChangeQueue()
    for change in (Changed("pods", "n", "a"), Changed("pods"), Changed("pods", "n", "b")):
        news.add(change)
    assert news.take() == {Changed("pods")}


# --- conditions ------------------------------------------------------------------------------------------------------

VERDICTS = st.lists(
    st.builds(
        Verdict, st.sampled_from(["Accepted", "Deployed", "Registered"]), st.sampled_from(["True", "False", "Unknown"]), NAMES, NAMES
    ),
    max_size=3,
    unique_by=lambda v: v.type,
)


@given(VERDICTS, VERDICTS)
def test_transition_times_change_only_with_the_status(before: list[Verdict], after: list[Verdict]) -> None:
    old = conditions.build_conditions(before, [], 1, "2026-01-01T00:00:00Z")
    new = conditions.build_conditions(after, parse_conditions(old), 2, "2026-01-02T00:00:00Z")
    was = {c["type"]: c for c in old}
    for row in new:
        same = row["type"] in was and was[row["type"]]["status"] == row["status"]
        assert row["lastTransitionTime"] == ("2026-01-01T00:00:00Z" if same else "2026-01-02T00:00:00Z")
        assert row["observedGeneration"] == 2
    assert conditions.build_conditions(after, parse_conditions(new), 2, "2026-01-03T00:00:00Z") == new
    assert conditions.transitions(parse_conditions(new), new) == []


@given(VERDICTS)
def test_the_summary_prefers_false_to_unknown_to_true(verdicts: list[Verdict]) -> None:
    summed = conditions.summary(verdicts, "Fine")
    statuses = {v.status for v in verdicts}
    assert summed.status == ("False" if "False" in statuses else "Unknown" if "Unknown" in statuses else "True")
    if summed.status == "True":
        assert summed.reason == "Fine"
    else:
        assert summed.reason in {v.reason for v in verdicts if v.status == summed.status}


def test_the_transition_time_of_the_default_condition_is_replaced() -> None:
    default = {"type": "Ready", "status": "Unknown", "reason": "Pending", "lastTransitionTime": "1970-01-01T00:00:00Z"}
    (row,) = conditions.build_conditions([Verdict("Ready", "Unknown", "X")], parse_conditions([default]), 1, "2026-01-01T00:00:00Z")
    assert row["lastTransitionTime"] == "2026-01-01T00:00:00Z"


def test_events_report_only_new_transitions() -> None:
    def row(type_: str, status: str, reason: str = "R") -> dict[str, Any]:
        return {"type": type_, "status": status, "reason": reason, "message": "m"}

    assert conditions.transitions([], [row("Deployed", "False"), row("Ready", "Unknown")]) == []
    assert [t.type for t in conditions.transitions([], [row("Accepted", "False")])] == ["Accepted"]
    both = conditions.transitions(
        parse_conditions([row("Deployed", "False"), row("Ready", "False")]), [row("Deployed", "True"), row("Ready", "True")]
    )
    assert [t.type for t in both] == ["Deployed"], "an event for Ready would repeat the event for Deployed"


# --- generation ------------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 99),
    st.sampled_from("ab"),
    st.sampled_from("ab"),
    st.lists(st.tuples(st.integers(0, 199), st.sampled_from("xyz")), max_size=3),
)
def test_generations_exceed_the_last_and_foreign_generations(last: int, had: str, has: str, in_force: list[tuple[int, str]]) -> None:
    issued = generation.next_issued(Issued(last, had), has, in_force, ["x"])
    assert issued.digest == has
    assert issued.generation >= max(last, 1)
    assert (issued.generation > last) or (had == has and last > 0)
    assert not [g for g, hash_ in in_force if hash_ != "x" and g >= issued.generation], (
        "the controller would refuse a generation that is not newer"
    )


def test_a_document_keeps_its_generation_until_it_changes() -> None:
    ours = {("node", "n1"): "sha256:" + "a" * 64, ("node", "n2"): "sha256:" + "b" * 64}
    text = json.dumps({"agents": [], "generation": 3, "hash": "sha256:" + "a" * 64, "node": "n1"}, indent=2)
    before = generation.issued_before([config_map({"data": {"n1.json": text, "odd": "{}"}}), config_map({})], 7)
    assert generation.generations(ours, 7, before, {}) == {("node", "n1"): 3, ("node", "n2"): 7}
    assert generation.issued_before([config_map({"data": {"n1.json": text}})], 2) == {}, "generation 3 has not been issued yet"


@pytest.mark.parametrize(("in_force", "wanted"), [((9, "h"), 3), ((3, "other"), 8), ((2, "other"), 3), ((7, "other"), 8)])
def test_a_controller_with_another_document_gets_a_newer_generation(in_force: tuple[int, str], wanted: int) -> None:
    """A controller refuses documents that are not newer than its own, including documents issued earlier."""
    assert generation.generations({("controller", "c"): "h"}, 8, {"h": 3}, {"c": in_force}) == {("controller", "c"): wanted}


def test_a_generation_in_force_with_our_hash_is_adopted() -> None:
    assert generation.next_issued(Issued(5, "d"), "d", [(5, "x")], ["x"]) == Issued(5, "d")
    assert generation.next_issued(Issued(5, "d"), "d", [(9, "x")], ["x"]) == Issued(9, "d"), (
        "the record is never below a generation in force"
    )


@pytest.mark.parametrize("text", ["", "-1", "x", "1.5", "²"])
def test_an_invalid_record_counts_as_none(text: str) -> None:
    assert generation.parse_issued({"generation": text}).generation == 0


def test_the_record_survives_a_round_trip() -> None:
    assert generation.parse_issued(generation.encode_issued(Issued(7, "d"))) == Issued(7, "d")


# --- keys and Secrets ------------------------------------------------------------------------------------------------


def test_derivation_agrees_with_the_vectors() -> None:
    vectors = {v["name"]: v for v in json.loads((ROOT / "spec" / "vectors" / "keys" / "v1.json").read_text())}
    master = bytes.fromhex(vectors["site 1"]["fields"]["key"])
    files = keys.Masters({1: master}, 1).site_files(1, [1, 2])
    assert files == {"site-1": vectors["site 1"]["hex"], "pair-2-1": vectors["pair 1,2"]["hex"], "sending": "1"}
    assert keys.Masters({1: master}, 1).controller_files([1])["site-1-1"] == vectors["site 1"]["hex"]


def test_both_keys_are_present_during_a_rotation() -> None:
    files = keys.Masters({1: b"a" * 32, 2: b"b" * 32}, 2).site_files(1, [2])
    assert set(files) == {"site-1", "site-2", "pair-2-1", "pair-2-2", "sending"}


@pytest.mark.parametrize(
    ("name", "content"),
    [("master-0", b"00" * 32), ("master-65536", b"00" * 32), ("master-x", b"00" * 32), ("master-1", b"00"), ("key-1", b"00" * 32)],
)
def test_an_invalid_master_key_is_no_key(name: str, content: bytes) -> None:
    assert keys.parse_masters({name: content}) == {}


def test_master_keys_are_read() -> None:
    assert keys.parse_masters({"master-1": b"ab" * 32 + b"\n", "master-2": b"zz" * 32}) == {1: bytes.fromhex("ab" * 32)}


def test_a_token_is_read_and_a_broken_secret_is_no_token() -> None:
    controller = SosController.parse({"metadata": {"name": "c"}, "spec": {"type": "Managed"}})
    good = secret({"data": {"token": base64.b64encode(b" t0ken\n").decode()}})
    assert secrets.token_of({"sos-controllertoken-c": good}, controller) == "t0ken"
    assert secrets.token_of({"sos-controllertoken-c": secret({"data": {"token": "!"}})}, controller) is None
    assert secrets.token_of({}, controller) is None


def test_only_our_own_secrets_get_an_owner_reference() -> None:
    """Covers a Secret from a version without owners, and a Secret whose owner was deleted and created again."""
    (owner,) = custom({"apiVersion": "sos.network/v1alpha1", "kind": "SosController", "metadata": {"name": "c", "uid": "new"}})
    wanted = secrets.Wanted("sos-controllertoken-c", "token", owner)
    ours: dict[str, Any] = {"labels": {"app.kubernetes.io/managed-by": "sos-operator"}}
    patch = secrets.adoption(secret({"metadata": ours}), wanted)
    assert patch is not None
    assert [(o["kind"], o["uid"]) for o in patch["metadata"]["ownerReferences"]] == [("SosController", "new")]
    assert secrets.adoption(secret({"metadata": {**ours, "ownerReferences": [{"uid": "old"}]}}), wanted) == patch
    assert secrets.adoption(secret({"metadata": {**ours, **patch["metadata"]}}), wanted) is None
    assert secrets.adoption(secret({"metadata": {}}), wanted) is None
    assert secrets.adoption(secret({"metadata": ours}), secrets.Wanted(secrets.MASTER, "master-1")) is None


def test_the_api_address_is_the_service_or_the_external_url() -> None:
    service = {"kind": "Service", "metadata": {"name": "sos-controller-c"}, "spec": {"clusterIP": "10.96.0.7"}}
    managed = {"kind": "SosController", "metadata": {"name": "c"}, "spec": {"type": "Managed"}}
    seen = listing(children=(service,), objects=(managed,))
    assert world.api_base(SosController.parse(managed), seen, {}) == "http://10.96.0.7:8080"
    assert world.api_base(SosController.parse(managed), listing(), {}) == ""
    assert world.api_base(SosController.parse(managed), seen, {"c": "http://127.0.0.1:1"}) == "http://127.0.0.1:1"
    assert world.controller_endpoints(seen) == {"c": ("tcp:10.96.0.7:6653",)}
    spec: dict[str, Any] = {"type": "External", "external": {"endpoints": ["tcp:e:1"]}}
    external = {"kind": "SosController", "metadata": {"name": "e"}, "spec": spec}
    assert world.api_base(SosController.parse(external), seen, {}) is None
    spec["external"]["apiURL"] = "https://e:8443/"
    assert world.api_base(SosController.parse(external), seen, {}) == "https://e:8443"
    assert world.controller_endpoints(listing(objects=(external,))) == {"e": ("tcp:e:1",)}


# --- timing ----------------------------------------------------------------------------------------------------------


@given(st.booleans(), st.booleans(), st.integers(1, 100), st.floats(0, 1))
def test_waits_are_bounded(failed: bool, pending: bool, failures: int, jitter: float) -> None:
    wait = backoff.next_delay(backoff.Outcome(failed, pending), failures, jitter)
    assert 0.5 <= wait <= backoff.BACKOFF_LAST_S
    if not failed:
        assert wait == (2.0 if pending else 5.0)


def test_back_off_doubles_up_to_its_limit() -> None:
    waits = [backoff.next_delay(backoff.Outcome(True, True), n, 0.0) for n in range(1, 9)]
    assert waits == [1, 2, 4, 8, 10, 10, 10, 10]


def test_a_flapping_object_does_not_keep_a_core_busy() -> None:
    rests = [backoff.rest(n) for n in range(100)]
    assert rests == sorted(rests)
    assert rests[0] <= 0.1, "a change during a pass waits only for the end of this pass"
    assert rests[-1] >= 0.5


def test_an_answer_expires_after_the_unreachable_time() -> None:
    heard = controller_view.Heard(10.0, {"sessions": 1})
    assert controller_view.fresh_status(heard, 10.0 + controller_view.UNREACHABLE_AFTER_S) == {"sessions": 1}
    assert controller_view.fresh_status(heard, 10.1 + controller_view.UNREACHABLE_AFTER_S) is None
    assert controller_view.fresh_status(controller_view.Heard(), 0.0) is None


@given(
    st.dictionaries(
        st.sampled_from(["datapaths", "agents", "services", "config", "links"]), st.one_of(st.none(), st.integers(), st.lists(st.none()))
    )
)
def test_any_status_of_a_controller_is_parsed_without_an_error(status: dict[str, Any]) -> None:
    view = controller_view.ControllerView(name="c", status=status, wanted_hash="h")
    assert view.connected() == view.agents() == frozenset()
    assert view.service("s") is None
    assert not view.current
    assert view.count("links") >= 0


# --- nodes and pods --------------------------------------------------------------------------------------------------


def test_polled_pods_are_bounded_and_urgent_first() -> None:
    everyone = [f"p{i}" for i in range(500)]
    chosen = node_status.whom_to_ask(everyone, {"p1": 99.0, "p2": 1.0}, frozenset({"p1", "p499"}), 100.0)
    assert len(chosen) == node_status.ASKED_PER_PASS
    assert set(chosen[:2]) == {"p1", "p499"}
    assert node_status.whom_to_ask(["p1"], {"p1": 99.0}, frozenset(), 100.0) == []


@given(st.binary(max_size=60))
def test_any_bytes_of_a_node_parse_to_an_answer_or_none(content: bytes) -> None:
    answer = node_status.parse_answer(content)
    assert answer is None or isinstance(answer.hash, str)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({"conditions": [{"type": "Ready", "status": "True"}]}, "Ready"),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, "Progressing"),
        ({"phase": "Failed", "reason": "Evicted"}, "Failed"),
        (
            {"containerStatuses": [{"name": "x", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]},
            "Failed",
        ),
        ({"containerStatuses": [{"name": "x", "state": {"waiting": {"reason": "ContainerCreating"}}}]}, "Progressing"),
    ],
)
def test_pod_states_follow_conditions_and_containers(status: dict[str, Any], state: str) -> None:
    assert pod_state.pod_state(pod({"status": status})).state == state


def test_a_failing_container_is_named() -> None:
    waiting = {"name": "agent", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}}
    assert (
        pod_state.pod_state(pod({"status": {"containerStatuses": [waiting]}})).message == "container agent: CrashLoopBackOff: back-off 10s"
    )
    ended = {**waiting, "name": "modules", "lastState": {"terminated": {"message": "openvswitch: not loaded\nneeded: openvswitch\n"}}}
    said = pod_state.pod_state(pod({"status": {"initContainerStatuses": [ended]}}))
    assert said.message == "container modules: CrashLoopBackOff: needed: openvswitch", (
        "the container's own message instead of the kubelet's back-off"
    )
    assert pod_state.pod_state(None).state == "Pending"


# --- departing, status writes ----------------------------------------------------------------------------------------


def test_absent_changes_only_state_and_hash() -> None:
    document = json.loads((ROOT / "spec" / "vectors" / "config" / "node" / "01-two-sites-edge1.json").read_text())
    gone = world.absent(document)
    assert {k for k in document if gone[k] != document[k]} == {"state", "hash"}
    assert world.absent(gone) == gone


def pod_on(node: str, uid: str = "p") -> dict[str, Any]:
    meta = {"name": "x", "namespace": "n", "uid": uid, "ownerReferences": [{"kind": "DaemonSet", "name": "sos-node-west"}]}
    return {"metadata": meta, "spec": {"nodeName": node}, "status": {}}


def test_a_departing_site_waits_for_each_of_its_nodes() -> None:
    going = departure.Departing("west", {"a": {"hash": "h"}, "b": {"hash": "h"}}, ())
    seen = listing(pods=(pod_on("a", "1"), pod_on("b", "2")))
    done, old = node_status.NodeAnswer("h", "Ready", "", "removed"), node_status.NodeAnswer("g", "Ready", "br-sos", "")
    assert departure.cleaned(going, seen, {"1": done, "2": done})
    assert not departure.cleaned(going, seen, {"1": done, "2": old})
    assert not departure.cleaned(going, seen, {"1": done})
    assert not departure.cleaned(going, seen, {"1": done, "2": node_status.NodeAnswer("h", "Progressing", "br-sos", "in use")})
    assert departure.cleaned(going, listing(pods=(pod_on("elsewhere", "3"),)), {})


def test_finalizers_of_other_programs_are_kept() -> None:
    site = Resource.parse({"metadata": {"resourceVersion": "5", "finalizers": ["theirs"]}})
    added = finalizer.finalizer_patch(site, wanted=True)
    assert added == {"metadata": {"resourceVersion": "5", "finalizers": ["theirs", finalizer.CLEANUP_FINALIZER]}}
    ours = Resource.parse({"metadata": {"resourceVersion": "6", "finalizers": added["metadata"]["finalizers"]}})
    assert finalizer.finalizer_patch(ours, wanted=True) is None
    assert finalizer.finalizer_patch(ours, wanted=False) == {"metadata": {"resourceVersion": "6", "finalizers": ["theirs"]}}


def test_pods_are_annotated_once_their_config_map_is_in_place() -> None:
    seen = listing(pods=(pod_on("a"),))
    hashes = {("sos-node-west", "a"): "new"}
    ((_, patch),) = pod_refresh.refresh_patches(seen, hashes, frozenset())
    assert patch["metadata"]["annotations"] == {pod_refresh.CONFIG_ANNOTATION: "new"}
    assert pod_refresh.refresh_patches(seen, hashes, frozenset({Ref("ConfigMap", "n", "sos-node-west")})) == []
    annotated = pod_on("a")
    annotated["metadata"]["annotations"] = {pod_refresh.CONFIG_ANNOTATION: "new"}
    assert pod_refresh.refresh_patches(listing(pods=(annotated,)), hashes, frozenset()) == []
    controller = pod_on("b")
    controller["metadata"] |= {"ownerReferences": [{"kind": "ReplicaSet", "name": "x"}], "labels": {"sos.network/controller": "default"}}
    ((_, patch),) = pod_refresh.refresh_patches(listing(pods=(controller,)), {("sos-controller-default", ""): "keys"}, frozenset())
    assert patch["metadata"]["annotations"] == {pod_refresh.CONFIG_ANNOTATION: "keys"}


def own(kind: str = "SosService", **status: Any) -> dict[str, Any]:
    meta = {"name": "s", "namespace": "n", "uid": "u", "generation": 3}
    return {"apiVersion": "sos.network/v1alpha1", "kind": kind, "metadata": meta, "status": status}


def test_a_status_is_written_only_if_it_has_changed() -> None:
    from sos_operator.core.status.situation import Report

    said = Report({"sessions": 1, "from": "west"}, (Verdict("Ready", "True", "Programmed"),))
    first = status_writer.plan_write(*custom(own()), said, "2026-01-01T00:00:00Z", 0.0)
    assert first is not None
    after = own(**first.status)
    (written,) = custom(after)
    assert status_writer.plan_write(written, said, "2026-01-02T00:00:00Z", 999.0) is None
    more = Report({"sessions": 2, "from": "west"}, said.verdicts)
    assert status_writer.plan_write(written, more, "2026-01-02T00:00:00Z", 59.0) is None, "a change of sessions alone waits for a minute"
    assert status_writer.plan_write(written, more, "2026-01-02T00:00:00Z", 60.0) is not None
    foreign = {"type": "Theirs", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "t"}
    after["status"]["conditions"].append(foreign)
    (written,) = custom(after)
    assert status_writer.plan_write(written, said, "2026-01-02T00:00:00Z", 0.0) is None, "conditions of other writers are not compared"


def test_allocations_outlive_an_invalid_spec() -> None:
    from sos_operator.core.status.situation import Report

    refused = Report({}, (Verdict("Accepted", "False", "Invalid"),))
    write = status_writer.plan_write(*custom(own("SosSite", siteID=4, nodes=[{"name": "a"}], nodesReady="1/1")), refused, "t", 0.0)
    assert write is not None
    assert (write.status["siteID"], write.status["nodes"]) == (4, [{"name": "a"}])
    assert "nodesReady" not in write.status
