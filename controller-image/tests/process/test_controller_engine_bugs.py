"""Test that a bug in the engine costs only one event or document.

The engine of this file is a Python object, and compiled modules accept only a compiled engine. `make test-compiled` therefore omits this
file.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from controller_lab import TOKEN, document
from controller_process import WAIT_S
from controller_world import World
from sos_controller.api.northbound import Api
from sos_controller.app import Controller
from sos_controller.core.engine import Engine
from sos_controller.core.events import ConfigChanged, Event, Tick
from sos_controller.core.state import Identity
from sos_controller.openflow.framework import eventlet


class Stumbling:
    """Engine that raises an error in selected events, halfway through a configuration."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.stumbles: Callable[[Event], bool] = lambda _: False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def handle(self, event: Event, now: float, more: bool = False) -> Any:
        if not self.stumbles(event):
            return self._engine.handle(event, now, more)
        if isinstance(event, ConfigChanged):
            self._engine.state.adopt_config(event.config)
        raise KeyError("a bug that the test asks for")


def stumbling(engine: Engine) -> tuple[Controller, Stumbling]:
    made = Stumbling(engine)
    return Controller(made), made  # type: ignore[arg-type]


def bugs(controller: Controller, what: str) -> int:
    return controller.engine.state.counters["bugs", what]


def put(api: Api, made: dict[str, Any]) -> tuple[int, Any]:
    said: list[str] = []
    body = json.dumps(made).encode()
    environ = {"PATH_INFO": "/v1/config", "REQUEST_METHOD": "PUT", "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}
    answer = api({**environ, "HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}, lambda status, _: said.append(status))
    return int(said[0].split()[0]), json.loads(b"".join(answer))


def test_document_that_triggers_a_bug_is_refused_and_the_old_one_stays() -> None:
    world = World()
    world.converge()
    controller, engine = stumbling(world.engine)
    api = Api(controller, "")
    api.tokens = (TOKEN.encode(),)
    assert put(api, document(2))[0] == 200
    before = controller.engine.state.config
    engine.stumbles = lambda event: isinstance(event, ConfigChanged) and event.config.generation == 3
    status, said = put(api, document(3, services=False))
    assert status == 400 and "log" in said["error"]["message"]
    assert controller.engine.state.config is before and controller.raw_config == json.dumps(document(2)).encode()
    assert [service.id for service in controller.engine.state.services] == [service.id for service in before.services]
    assert bugs(controller, "ConfigChanged") == 1
    engine.stumbles = lambda _: False
    assert put(api, document(3))[0] == 200, "the document is accepted at the next attempt"


def test_first_document_that_triggers_a_bug_is_not_in_force() -> None:
    controller, engine = stumbling(Engine(Identity(1, 1, 1, b"k")))
    engine.stumbles = lambda _: True
    with pytest.raises(Exception, match="could not be applied"):
        controller.configure(json.dumps(document(1)).encode())
    assert controller.engine.state.config is None and controller.raw_config is None
    engine.stumbles = lambda _: False
    assert controller.configure(json.dumps(document(1)).encode())[1]


def test_ticks_continue_after_bugs_in_the_engine_and_in_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, engine = stumbling(Engine(Identity(1, 1, 1, b"k")))
    ticks: list[Event] = []

    def stumbles(event: Event) -> bool:
        ticks.append(event)
        return isinstance(event, Tick) and len(ticks) < 3

    def flush() -> None:
        raise KeyError("a bug that the test asks for")

    engine.stumbles = stumbles
    monkeypatch.setattr(controller, "flush", flush)
    loop = eventlet.spawn(controller.tick_loop)
    with eventlet.Timeout(WAIT_S):
        while len(ticks) < 6:
            eventlet.sleep(0.01)
    assert not loop.dead and bugs(controller, "Tick") == 2 and bugs(controller, "flush") >= 5
    loop.kill()
