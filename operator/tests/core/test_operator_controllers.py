"""Pushing configurations to controllers: back-off for a controller that refuses."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from sos_operator.core.model.errors import Refused
from sos_operator.core.model.options import Images, Settings
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
            await controllers._visit("c", "http://c", {"hash": "new", "generation": 1}, "token")
            assert controllers._said["c"].push_error == api.words

    asyncio.run(passes())
    return api.offered


def test_a_refused_configuration_is_offered_with_backoff_and_immediately_after_a_restart(clock: list[float]) -> None:
    assert 16 <= offered(Api("HTTP 400: services[0].x: unknown field"), clock) <= 24


def test_a_token_unknown_to_the_controller_is_retried_in_every_pass(clock: list[float]) -> None:
    assert offered(Api("HTTP 401"), clock) == 300
