"""Rotation of a controller's bearer token: its steps, and acceptance of configurations by a real controller during the whole rotation."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from operator_agent import network
from operator_controller import Controller
from operator_fixtures import becomes, populated
from operator_kube import ROOT, Kube
from operator_listing import secret as parsed
from operator_repeat import repeated
from operator_run import NAMESPACE, Operator, controller_keys, eventually, operator_running
from sos_operator.core.secrets import token_rotation
from sos_operator.core.secrets.key_rotation import DONE, parse_state
from sos_operator.core.secrets.secrets import secret_files

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OVERLAP = timedelta(seconds=180)
SECRET = "sos-controllertoken-default"
QUICK_OVERLAP_S = 5


def secret(request: str = "march", **files: str) -> dict[str, Any]:
    data = {name.replace("_", "-"): base64.b64encode(text.encode()).decode() for name, text in (files or {"token": "old"}).items()}
    meta = {"name": SECRET, "resourceVersion": "7", "annotations": {token_rotation.REQUEST_ANNOTATION: request}}
    return {"metadata": meta, "data": data}


def merged(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Apply a merge patch (RFC 7386), limited to the features of these patches."""
    data = {name: text for name, text in (obj["data"] | patch.get("data", {})).items() if text is not None}
    return {"metadata": obj["metadata"] | {"annotations": obj["metadata"]["annotations"] | patch["metadata"]["annotations"]}, "data": data}


def test_a_new_token_is_accepted_then_used_then_the_old_token_is_removed() -> None:
    obj, at, seen = secret(), NOW, []
    while step := token_rotation.next_step(parsed(obj), at, OVERLAP, "new"):
        assert step[1]["metadata"]["resourceVersion"] == "7", "if two operators run, only one can create a token"
        obj = merged(obj, step[1])
        seen.append((step[0], secret_files(parsed(obj))))
        if token_rotation.is_asked_for(parsed(obj)):
            assert token_rotation.next_step(parsed(obj), at + OVERLAP - timedelta(seconds=1), OVERLAP, "newer") is None, (
                "the step is not due yet"
            )
        at += OVERLAP
    assert seen == [
        ("a new token is announced", {"token": b"old", "token-also": b"new"}),
        ("the new token is in use", {"token": b"new", "token-also": b"old"}),
        ("the old token is gone", {"token": b"new"}),
    ]
    assert parse_state(parsed(obj), token_rotation.STATE_ANNOTATION).phase == DONE
    assert not token_rotation.is_asked_for(parsed(obj))
    obj["metadata"]["annotations"][token_rotation.REQUEST_ANNOTATION] = "june"
    assert token_rotation.is_asked_for(parsed(obj))


def test_no_rotation_without_a_request() -> None:
    assert token_rotation.next_step(parsed(secret("")), NOW, OVERLAP, "new") is None
    assert not token_rotation.is_asked_for(parsed({"metadata": {"name": SECRET}, "data": {}}))


def test_a_future_time_and_a_removed_token_do_not_stop_rotation() -> None:
    ahead = {"request": "march", "phase": "Announced", "since": "2036-03-01T12:00:00Z"}
    obj = secret(token="old", token_also="new")
    obj["metadata"]["annotations"][token_rotation.STATE_ANNOTATION] = json.dumps(ahead)
    step = token_rotation.next_step(parsed(obj), NOW, OVERLAP, "newer")
    assert step is not None
    obj = merged(obj, step[1])
    assert parse_state(parsed(obj), token_rotation.STATE_ANNOTATION).since == NOW
    del obj["data"]["token-also"]
    step = token_rotation.next_step(parsed(obj), NOW + OVERLAP, OVERLAP, "newer")
    assert step is not None
    assert secret_files(parsed(merged(obj, step[1]))) == {"token": b"old"}, "the operator always keeps a token"
    assert not token_rotation.is_asked_for(parsed(merged(obj, step[1])))


@pytest.fixture(scope="module")
def pair(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Operator, Controller]]:
    """An operator with rotations of a few seconds, and a controller whose kubelet updates Secrets quickly."""
    folder: Path = tmp_path_factory.mktemp("tokens")
    controller = Controller(installed, folder)
    extra = {"SOS_KEY_OVERLAP_SECONDS": str(QUICK_OVERLAP_S), "SOS_CONTROLLER_API_OVERRIDE": f"default={controller.url}"}
    with populated(installed) as kube, operator_running(kube, folder, **extra) as operator:
        kube.kubectl("apply", "-f", str(ROOT / "examples" / "01-two-sites"))
        eventually("the keys of both sites, and the id of the sending key", lambda: len(controller_keys(kube)) == 3)
        try:
            controller.start()
            with repeated(lambda: controller.mount(SECRET, "token"), every_s=0.5):
                yield operator, controller
        finally:
            controller.kill()


def test_configurations_are_accepted_throughout_a_rotation(pair: tuple[Operator, Controller]) -> None:
    operator, controller = pair
    kube, numbers = operator.kube, itertools.count(200)

    def files() -> dict[str, bytes]:
        return secret_files(parsed(kube.get("secret", SECRET, "-n", NAMESPACE)))

    def change() -> None:
        kube.patch_spec("sosservice", "bulk", "default", {"priority": next(numbers)})

    def last_change_is_in_force(wanted: int) -> bool:
        return bool(controller.get("/v1/config")["services"][0]["priority"] >= wanted)

    old = files()["token"]
    becomes(kube, "soscontroller/default", "Ready", "True", "Available")
    changed = kube.get("soscontroller", "default")["status"]["conditions"]
    with network(kube, controller.openflow) as switches:
        becomes(kube, "sosservice/default/bulk", "Programmed", "True", "Programmed")
        before = controller.get("/v1/status")["controller"], [switch.connections for switch in switches.values()]
        with repeated(change, every_s=1.0):
            kube.kubectl("annotate", "secret", SECRET, "-n", NAMESPACE, "sos.network/rotate-token=march")
            eventually("both tokens in the Secret", lambda: files().get("token-also") not in (None, old))
            new = files()["token-also"]
            eventually("the controller accepts both tokens", lambda: controller.admits(old) and controller.admits(new), QUICK_OVERLAP_S)
            eventually("the tokens change places", lambda: files() == {"token": new, "token-also": old})
            assert controller.admits(old) and controller.admits(new)
            eventually("the old token gone", lambda: files() == {"token": new})
            eventually("the controller accepts only the new token", lambda: not controller.admits(old))
        wanted = next(numbers) - 1
        eventually("the last change", lambda: last_change_is_in_force(wanted), 15)
        assert controller.admits(new)
        assert (controller.get("/v1/status")["controller"], [switch.connections for switch in switches.values()]) == before
    pushes = [line for line in operator.http("/metrics")[1].splitlines() if line.startswith("sos_operator_config_pushes_total{")]
    assert pushes and not [line for line in pushes if 'result="refused"' in line and not line.endswith(" 0.0")], pushes
    same = {row["type"]: row["lastTransitionTime"] for row in changed}
    now = {row["type"]: row["lastTransitionTime"] for row in kube.get("soscontroller", "default")["status"]["conditions"]}
    assert now["Available"] == same["Available"], "Available stayed True during the rotation"
    said = [line["message"] for line in operator.lines() if line["message"].startswith("token: ")]
    assert said == ["token: a new token is announced", "token: the new token is in use", "token: the old token is gone"]
