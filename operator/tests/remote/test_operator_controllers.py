"""Pushing configurations to controllers: back-off for a controller that refuses; both replicas of a controller."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from operator_listing import listing
from sos_operator.core.model.cluster_objects import Secret
from sos_operator.core.model.errors import Refused
from sos_operator.core.model.options import Images, Settings
from sos_operator.core.model.remote.controller_view import ControllerView
from sos_operator.process.metrics import Metrics
from sos_operator.remote import controllers as pushing

SETTINGS = Settings(namespace="n", images=Images(controller="c", agent="a", node="n", ovs="o"))


class Api:
    """A controller that refuses every configuration and counts the refusals."""

    def __init__(self, words: str) -> None:
        self.words, self.offered, self.started = words, 0, 1

    async def status(self, _base: str) -> dict[str, Any]:
        return {"config": {"hash": "old"}, "controller": {"startedAt": self.started}}

    async def put_config(self, *_: Any) -> dict[str, Any]:
        self.offered += 1
        raise Refused(self.words)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(pushing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def offered(api: Api, clock: list[float], seconds: int = 600) -> int:
    """Number of times that a document is offered within `seconds`, with a pass every two seconds."""
    controllers = pushing.Controllers(api, SETTINGS, Metrics())  # type: ignore[arg-type]

    async def passes() -> None:
        for second in range(0, seconds, 2):
            clock[0] += 2
            if second == seconds // 2:
                api.started += 1
            await controllers._visit(pushing.Replica("c", 0), "http://c", {"hash": "new", "generation": 1}, "token")
            assert controllers._said[pushing.Replica("c", 0)].push_error == api.words

    asyncio.run(passes())
    return api.offered


def test_a_refused_configuration_is_offered_with_backoff_and_immediately_after_a_restart(clock: list[float]) -> None:
    assert 16 <= offered(Api("HTTP 400: services[0].x: unknown field"), clock) <= 24


def test_a_token_unknown_to_the_controller_is_retried_in_every_pass(clock: list[float]) -> None:
    assert offered(Api("HTTP 401"), clock) == 300


class Pair:
    """Two replicas at different addresses, which keep what they are given."""

    def __init__(self, **active: bool) -> None:
        self.active = active
        self.hashes = dict.fromkeys(active, "old")
        self.ids = {base: f"{number:016x}" for number, base in enumerate(active, 1)}

    async def status(self, base: str) -> dict[str, Any]:
        said = {"name": "c", "startedAt": base, "active": self.active[base], "generationId": self.ids[base]}
        return {"config": {"hash": self.hashes[base], "generation": 3}, "controller": said, "links": len(base)}

    async def put_config(self, base: str, document: dict[str, Any], _token: str) -> dict[str, Any]:
        self.hashes[base] = document["hash"]
        return {}


def visited(api: Pair) -> ControllerView:
    external = {"endpoints": ["tcp:192.0.2.1:6653", "tcp:192.0.2.2:6653"], "apiURL": "one", "standbyURL": "other", "tokenSecretName": "t"}
    spec = {"type": "External", "replicas": 2, "external": external}
    controller = {"kind": "SosController", "apiVersion": "sos.network/v1alpha1", "metadata": {"name": "c", "uid": "u"}, "spec": spec}
    seen = listing(objects=(controller,))
    secret = Secret.parse({"metadata": {"name": "t", "namespace": "n"}, "data": {"token": "dG9rZW4="}})
    compiled = SimpleNamespace(controllers={"c": {"hash": "new", "generation": 3}})
    controllers = pushing.Controllers(api, SETTINGS, Metrics())  # type: ignore[arg-type]
    return asyncio.run(controllers.visit(seen, compiled, {"t": secret}, lambda: None))["c"]  # type: ignore[arg-type]


def test_both_replicas_get_the_configuration_and_the_active_one_describes_the_controller() -> None:
    api = Pair(one=False, other=True)
    view = visited(api)
    assert api.hashes == {"one": "new", "other": "new"}
    assert view.own("startedAt") == "other" and view.current and view.count("links") == 5
    assert view.standby is not None and view.standby.own("startedAt") == "one" and view.standby.current


def test_of_two_active_replicas_the_one_with_the_newer_generation_id_counts() -> None:
    assert visited(Pair(one=True, other=True)).own("startedAt") == "other"


def test_a_controller_without_an_active_replica_is_not_reachable() -> None:
    view = visited(Pair(one=False, other=False))
    assert not view.reachable and "none of its replicas is active" in view.error
