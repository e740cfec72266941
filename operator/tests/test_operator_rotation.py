"""Rotation of keys: the steps, what they hand out, and that nobody is left behind or hurried."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import populated
from operator_kube import Kube
from operator_run import NAMESPACE, Operator, eventually, operator_running
from sos_operator.core import keys, rotation
from sos_operator.core.secrets import secret_files

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OVERLAP = timedelta(seconds=180)


def master(ids: tuple[int, ...] = (1,), **annotations: str) -> dict[str, Any]:
    data = {f"master-{key_id}": base64.b64encode(f"{key_id:064x}".encode()).decode() for key_id in ids}
    return {"metadata": {"name": "sos-master", "resourceVersion": "7", "annotations": annotations}, "data": data}


def merged(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """RFC 7386, as far as these patches go."""
    data = {name: text for name, text in (obj["data"] | patch.get("data", {})).items() if text is not None}
    meta = obj["metadata"] | {"annotations": obj["metadata"]["annotations"] | patch["metadata"]["annotations"]}
    return {"metadata": meta, "data": data}


def folder(obj: dict[str, Any]) -> tuple[set[str], str | None]:
    """What an agent of site 1 finds in its key folder: file names, and whom it is told to sign with."""
    found = keys.parse_masters(secret_files(obj))
    files = keys.Masters(found, rotation.sending(obj, found)).site_files(1, [1, 2])
    return {name for name in files if name != "sending"}, files.get("sending")


def test_announced_then_used_and_only_then_is_the_old_one_gone() -> None:
    obj, at, seen = master(**{rotation.REQUEST_ANNOTATION: "march"}), NOW, []
    while step := rotation.next_step(obj, at, OVERLAP, "ab" * 32):
        assert step[1]["metadata"]["resourceVersion"] == "7"
        obj = merged(obj, step[1])
        seen.append((step[0], *folder(obj)))
        if rotation.parse_state(obj).going:
            assert rotation.next_step(obj, at + OVERLAP - timedelta(seconds=1), OVERLAP, "") is None, "not before its time"
        at += OVERLAP
    both = {"site-1", "pair-2-1", "site-2", "pair-2-2"}
    assert seen == [
        ("key 2 is announced", both, "1"),
        ("key 2 is in use", both, None),
        ("keys before 2 are gone", {"site-2", "pair-2-2"}, None),
    ]
    assert secret_files(obj) == {"master-2": b"ab" * 32}
    assert rotation.parse_state(obj) == rotation.State("march", rotation.DONE, NOW + 2 * OVERLAP)


def test_only_a_new_request_begins_another_one() -> None:
    assert rotation.next_step(master(), NOW, OVERLAP, "") is None
    said = '{"request": "march", "phase": "Done", "since": "2026-03-01T12:00:00Z"}'
    done = master((2,), **{rotation.REQUEST_ANNOTATION: "march", rotation.STATE_ANNOTATION: said})
    assert rotation.next_step(done, NOW, OVERLAP, "") is None
    done["metadata"]["annotations"][rotation.REQUEST_ANNOTATION] = "june"
    step = rotation.next_step(done, NOW, OVERLAP, "cd" * 32)
    assert step is not None
    assert set(step[1]["data"]) == {"master-3"}


def test_a_request_during_a_rotation_waits_for_its_end() -> None:
    obj = master(**{rotation.REQUEST_ANNOTATION: "march"})
    step = rotation.next_step(obj, NOW, OVERLAP, "ab" * 32)
    assert step is not None
    obj = merged(obj, step[1])
    obj["metadata"]["annotations"][rotation.REQUEST_ANNOTATION] = "urgent"
    step = rotation.next_step(obj, NOW + OVERLAP, OVERLAP, "cd" * 32)
    assert step is not None
    assert step[0] == "key 2 is in use"
    assert rotation.parse_state(merged(obj, step[1])).request == "march"


def test_an_annotation_that_was_tampered_with_is_none() -> None:
    for text in ("", "x", "[]", '{"phase": "Announced"}', '{"phase": "Other", "since": "2026-03-01T12:00:00Z"}'):
        obj = master((1, 2), **{rotation.STATE_ANNOTATION: text})
        assert not rotation.parse_state(obj).going
        assert rotation.sending(obj, (1, 2)) == 2


def test_ids_end_somewhere() -> None:
    step = rotation.next_step(master((0xFFFF,), **{rotation.REQUEST_ANNOTATION: "x"}), NOW, OVERLAP, "")
    assert step is not None
    assert "used up" in step[0]
    assert "data" not in step[1]


@pytest.fixture(scope="module")
def operator(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """An operator whose rotations take seconds."""
    quick = {"SOS_KEY_OVERLAP_SECONDS": "3", "SOS_RESYNC_SECONDS": "1", "SOS_CONTROLLER_API_OVERRIDE": "default=http://127.0.0.1:1"}
    with populated(installed) as kube, operator_running(kube, tmp_path_factory.mktemp("operator"), **quick) as running:
        yield running


def test_a_rotation_in_a_cluster(example: Operator) -> None:
    kube = example.kube

    def ids(secret: str, prefix: str) -> set[str]:
        return {name for name in kube.get("secret", secret, "-n", NAMESPACE)["data"] if name.startswith(prefix)}

    first = kube.get("secret", "sos-master", "-n", NAMESPACE)["data"]
    kube.kubectl("annotate", "secret", "sos-master", "-n", NAMESPACE, "sos.network/rotate-keys=test")
    eventually("the new key at the agents", lambda: ids("sos-sitekeys-west", "site-") == {"site-1", "site-2"}, 30)
    sending = kube.get("secret", "sos-sitekeys-west", "-n", NAMESPACE)["data"].get("sending", "")
    assert base64.b64decode(sending) in (b"1", b""), "announced, or in use already"
    eventually("the old key gone", lambda: ids("sos-sitekeys-west", "site-") == {"site-2"}, 60)
    assert ids("sos-master", "master-") == {"master-2"}
    assert kube.get("secret", "sos-master", "-n", NAMESPACE)["data"]["master-2"] != first["master-1"]
    assert not ids("sos-controllerkeys-default", "sending")
