"""Key rotation: its steps, the distributed keys of each step, and a valid key at every agent."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_fixtures import QUICK_OVERLAP_S, rotating_operator
from operator_kube import Kube
from operator_listing import parsed as listed
from operator_listing import secret as parsed
from operator_run import NAMESPACE, Operator, eventually
from sos_operator.core.secrets import key_rotation, keys
from sos_operator.core.secrets.secrets import secret_files

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OVERLAP = timedelta(seconds=180)


def master(ids: tuple[int, ...] = (1,), **annotations: str) -> dict[str, Any]:
    data = {f"master-{key_id}": base64.b64encode(f"{key_id:064x}".encode()).decode() for key_id in ids}
    return {"metadata": {"name": "sos-master", "resourceVersion": "7", "annotations": annotations}, "data": data}


def merged(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Apply a merge patch (RFC 7386), limited to the features of these patches."""
    data = {name: text for name, text in (obj["data"] | patch.get("data", {})).items() if text is not None}
    meta = obj["metadata"] | {"annotations": obj["metadata"]["annotations"] | patch["metadata"]["annotations"]}
    return {"metadata": meta, "data": data}


def folder(obj: dict[str, Any]) -> tuple[set[str], str | None]:
    """Key folder of an agent of site 1: file names, and the id of the sending key."""
    found = keys.parse_masters(secret_files(parsed(obj)))
    files = keys.Masters(found, key_rotation.sending(parsed(obj), found)).site_files(1, [1, 2])
    return {name for name in files if name != "sending"}, files.get("sending")


def step_at(obj: dict[str, Any], at: datetime, fresh: str = "", *, everywhere: bool = True) -> tuple[str, dict[str, Any]] | None:
    return key_rotation.next_step(parsed(obj), at, OVERLAP, fresh, everywhere=everywhere)


def test_a_new_key_is_distributed_then_used_then_the_old_key_is_removed() -> None:
    obj, at, seen = master(**{key_rotation.REQUEST_ANNOTATION: "march"}), NOW, []
    while step := step_at(obj, at, "ab" * 32):
        assert step[1]["metadata"]["resourceVersion"] == "7"
        obj = merged(obj, step[1])
        seen.append((step[0], *folder(obj)))
        state = key_rotation.parse_state(parsed(obj))
        if state.going and state.since:
            assert step_at(obj, at + OVERLAP - timedelta(seconds=1)) is None, "the step is not due yet"
            at += OVERLAP
    both = {"site-1", "pair-2-1", "site-2", "pair-2-2"}
    assert seen == [
        ("key 2 is announced", both, "1"),
        ("Announced: handed out to everybody", both, "1"),
        ("key 2 is in use", both, "2"),
        ("InUse: handed out to everybody", both, "2"),
        ("keys before 2 are gone", {"site-2", "pair-2-2"}, "2"),
    ]
    assert secret_files(parsed(obj)) == {"master-2": b"ab" * 32}
    assert key_rotation.parse_state(parsed(obj)) == key_rotation.State("march", key_rotation.DONE, NOW + 2 * OVERLAP)


def test_the_time_of_a_step_starts_when_all_secrets_hold_its_keys() -> None:
    obj, at = master(**{key_rotation.REQUEST_ANNOTATION: "march"}), NOW
    for phase in (key_rotation.ANNOUNCED, key_rotation.IN_USE):
        step = step_at(obj, at, "ab" * 32)
        assert step is not None
        obj = merged(obj, step[1])
        at += 10 * OVERLAP  # no operator wrote the Secrets, or a Secret was refused
        assert step_at(obj, at, everywhere=False) is None
        step = step_at(obj, at)
        assert step is not None
        obj = merged(obj, step[1])
        assert key_rotation.parse_state(parsed(obj)) == key_rotation.State("march", phase, at)
        assert step_at(obj, at + OVERLAP, everywhere=False) is None, "the step does not end while a Secret lacks its keys"
        at += OVERLAP
    step = step_at(obj, at)
    assert step is not None
    assert step[0] == "keys before 2 are gone"


def test_a_clock_that_was_ahead_does_not_stop_a_rotation() -> None:
    said = '{"request": "march", "phase": "Announced", "since": "2036-03-01T12:00:00Z"}'
    obj = master((1, 2), **{key_rotation.STATE_ANNOTATION: said})
    step = step_at(obj, NOW)
    assert step is not None
    obj = merged(obj, step[1])
    assert key_rotation.parse_state(parsed(obj)).since == NOW
    assert key_rotation.sending(parsed(obj), (1, 2)) == 1


def secret(name: str, **data: str) -> dict[str, Any]:
    return {"kind": "Secret", "metadata": {"name": name}, "data": data}


def test_a_step_is_handed_out_only_if_all_secrets_match() -> None:
    derived = [secret("a", k="1", sending="1"), secret("b", k="2")]
    assert key_rotation.handed_out(derived, listed(*derived), [])
    third = listed(*derived, secret("c", k="0"))
    assert key_rotation.handed_out(derived, third, [("Secret", "gone"), ("Secret", "a"), ("ConfigMap", "c")])
    assert not key_rotation.handed_out(derived, listed(*derived[:1]), []), "a Secret is missing"
    mixed = listed(secret("a", k="1", sending="2"), derived[1])
    assert not key_rotation.handed_out(derived, mixed, []), "a Secret has another step's keys"
    assert not key_rotation.handed_out(derived, third, [("Secret", "c")]), "a Secret's update is withheld"


def test_only_a_new_request_starts_another_rotation() -> None:
    assert step_at(master(), NOW) is None
    said = '{"request": "march", "phase": "Done", "since": "2026-03-01T12:00:00Z"}'
    done = master((2,), **{key_rotation.REQUEST_ANNOTATION: "march", key_rotation.STATE_ANNOTATION: said})
    assert step_at(done, NOW) is None
    done["metadata"]["annotations"][key_rotation.REQUEST_ANNOTATION] = "june"
    step = step_at(done, NOW, "cd" * 32)
    assert step is not None
    assert set(step[1]["data"]) == {"master-3"}


def test_a_request_during_a_rotation_waits_for_its_end() -> None:
    obj = master(**{key_rotation.REQUEST_ANNOTATION: "march"})
    step = step_at(obj, NOW, "ab" * 32)
    assert step is not None
    obj = merged(obj, step[1])
    obj["metadata"]["annotations"][key_rotation.REQUEST_ANNOTATION] = "urgent"
    for at in (NOW, NOW + OVERLAP):
        step = step_at(obj, at, "cd" * 32)
        assert step is not None
        obj = merged(obj, step[1])
    assert step is not None
    assert step[0] == "key 2 is in use"
    assert key_rotation.parse_state(parsed(obj)).request == "march"
    assert key_rotation.is_asked_for(parsed(obj))


def test_an_invalid_state_annotation_counts_as_none() -> None:
    for text in ("", "x", "[]", '{"phase": "Announced"}', '{"phase": "Other", "since": "2026-03-01T12:00:00Z"}'):
        obj = master((1, 2), **{key_rotation.STATE_ANNOTATION: text})
        assert not key_rotation.parse_state(parsed(obj)).going
        assert key_rotation.sending(parsed(obj), (1, 2)) == 2


def test_a_rotation_beyond_the_last_key_id_is_refused() -> None:
    step = step_at(master((0xFFFF,), **{key_rotation.REQUEST_ANNOTATION: "x"}), NOW)
    assert step is not None
    assert "used up" in step[0]
    assert "data" not in step[1]


@pytest.fixture(scope="module")
def operator(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with rotating_operator(installed, tmp_path_factory.mktemp("operator")) as running:
        yield running


def ids(kube: Kube, secret: str, prefix: str) -> set[str]:
    return {name for name in kube.get("secret", secret, "-n", NAMESPACE)["data"] if name.startswith(prefix)}


def newest(kube: Kube) -> int:
    return max(int(name.removeprefix("master-")) for name in ids(kube, "sos-master", "master-"))


def sending_of(kube: Kube, secret: str) -> bytes:
    return base64.b64decode(kube.get("secret", secret, "-n", NAMESPACE)["data"]["sending"])


def ask(kube: Kube, text: str) -> None:
    kube.kubectl("annotate", "secret", "sos-master", "-n", NAMESPACE, f"sos.network/rotate-keys={text}", "--overwrite")


USER = f"system:serviceaccount:{NAMESPACE}:sos-operator"
WEST, CONTROLLER = "sos-sitekeys-west", "sos-controllerkeys-default"
POLICY = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: refused}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [secrets]}]
  matchConditions:
    - {name: one, expression: "object.metadata.name == 'NAME'"}
    - {name: operator, expression: "request.userInfo.username == 'USER'"}
  validations: [{expression: "false", message: not now}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: refused}
spec: {policyName: refused, validationActions: [Deny]}
"""


@contextmanager
def refused(kube: Kube, name: str) -> Iterator[None]:
    """Make the API server refuse the operator's writes of one Secret."""
    text = POLICY.replace("NAME", name).replace("USER", USER)
    kube.kubectl("apply", "-f", "-", stdin=text)

    def holds() -> bool:
        words = ("annotate", "secret", name, "-n", NAMESPACE, f"test/x={time.monotonic()}", "--overwrite", f"--as={USER}")
        return kube.kubectl(*words, check=False).returncode != 0

    try:
        eventually("the refusal", holds, 30)
        yield
    finally:
        kube.kubectl("delete", "-f", "-", stdin=text)
        eventually("the end of the refusal", lambda: not holds(), 30)


def test_a_rotation_replaces_the_keys_in_a_cluster(example: Operator) -> None:
    kube = example.kube
    first = kube.get("secret", "sos-master", "-n", NAMESPACE)["data"]
    assert sending_of(kube, WEST) == b"1", "the Secrets have a sending key before the first rotation"
    ask(kube, "test")
    eventually("the new key at the agents", lambda: ids(kube, WEST, "site-") == {"site-1", "site-2"}, 30)
    eventually("the old key gone", lambda: ids(kube, WEST, "site-") == {"site-2"}, 60)
    said = [line["message"] for line in example.lines() if line["message"].startswith("keys: ")]
    assert said == [
        "keys: key 2 is announced",
        "keys: Announced: handed out to everybody",
        "keys: key 2 is in use",
        "keys: InUse: handed out to everybody",
        "keys: keys before 2 are gone",
    ]
    assert ids(kube, "sos-master", "master-") == {"master-2"}
    assert kube.get("secret", "sos-master", "-n", NAMESPACE)["data"]["master-2"] != first["master-1"]
    assert sending_of(kube, CONTROLLER) == b"2"


@pytest.mark.slow
def test_a_refused_secret_delays_the_rotation(example: Operator) -> None:
    kube = example.kube
    old, new = newest(kube), newest(kube) + 1
    with refused(kube, WEST):
        ask(kube, "refused")
        eventually("the new key at the controller", lambda: any(name.endswith(f"-{new}") for name in ids(kube, CONTROLLER, "site-")), 30)
        time.sleep(2.5 * QUICK_OVERLAP_S)  # a rotation that did not wait would take two more steps in this time
        example.settle()
        assert int(sending_of(kube, CONTROLLER)) == old, "no sender uses a key that one site lacks"
        assert ids(kube, "sos-master", "master-") == {f"master-{old}", f"master-{new}"}
    eventually("the old key gone", lambda: ids(kube, WEST, "site-") == {f"site-{new}"}, 120)


def test_a_refused_rotation_step_does_not_stop_other_work(example: Operator) -> None:
    kube, new = example.kube, newest(example.kube) + 1
    with refused(kube, "sos-master"):
        ask(kube, "not now")
        said = "keys: the next step cannot be written"
        eventually("the refusal", lambda: any(line["message"].startswith(said) for line in example.lines()), 30)
        kube.kubectl("delete", "secret", WEST, "-n", NAMESPACE)
        eventually("the Secret of a site", lambda: bool(kube.kubectl("get", "secret", WEST, "-n", NAMESPACE, check=False).stdout), 30)
    eventually("the end of the rotation", lambda: ids(kube, "sos-master", "master-") == {f"master-{new}"}, 120)
