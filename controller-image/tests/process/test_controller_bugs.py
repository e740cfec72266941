"""Test that a bug costs only one request, connection or key. The process and the configuration in force continue."""

from __future__ import annotations

import errno
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from controller_process import WAIT_S
from sos_controller import reload
from sos_controller.api.northbound import Api, serve
from sos_controller.app import Controller
from sos_controller.core.engine import Engine
from sos_controller.core.state import Identity
from sos_controller.openflow.accept import Listener
from sos_controller.openflow.framework import eventlet


def bugs(controller: Controller, what: str) -> int:
    return controller.engine.state.counters["bugs", what]


def test_request_that_triggers_a_bug_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(Engine(Identity(1, 1, 1, b"k")))
    api, said = Api(controller, ""), list[str]()

    def broken(_: Any) -> object:
        raise KeyError("a bug that the test asks for")

    monkeypatch.setitem(api._routes, "/v1/agents", broken)
    answer = api({"PATH_INFO": "/v1/agents", "REQUEST_METHOD": "GET"}, lambda status, _: said.append(status))
    assert said == ["500 Internal Server Error"] and b"internal error" in b"".join(answer) and bugs(controller, "request") == 1


def test_api_survives_a_lack_of_descriptors() -> None:
    """An error of accept(2) ends eventlet's server, which used to end the process."""
    api, sock = Api(Controller(Engine(Identity(1, 1, 1, b"k"))), ""), eventlet.listen(("127.0.0.1", 0))

    lacks = [errno.EMFILE, errno.ECONNABORTED, errno.ECONNRESET]

    class Poor:
        def __getattr__(self, name: str) -> Any:
            return getattr(sock, name)

        def accept(self) -> Any:
            if lacks:
                raise OSError(lacks.pop(), "a lack that the test asks for")
            return sock.accept()

    server = eventlet.spawn(serve, api, Poor())
    with eventlet.Timeout(WAIT_S):
        client = eventlet.connect(sock.getsockname())
        client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200 OK")
    assert not server.dead
    server.kill()
    sock.close()


def test_bug_while_reading_keys_keeps_the_old_keys_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(Engine(Identity(1, 1, 1, b"k")))
    reads: list[Path] = []

    def broken(folder: Path) -> Any:
        reads.append(folder)
        raise KeyError("a bug that the test asks for")

    monkeypatch.setattr(reload, "read_keys", broken)
    monkeypatch.setattr(reload, "RELOAD_S", 0.01)
    arguments = Namespace(keys=Path("keys"), token_file=Path("token"), openflow_tls=None)
    files = reload.Reload(controller, Api(controller, ""), Listener(controller, 1), arguments)
    loop = eventlet.spawn(files.loop)
    with eventlet.Timeout(WAIT_S):
        while len(reads) < 3:
            eventlet.sleep(0.01)
    assert not loop.dead and bugs(controller, "reload") == 1, "the bug is counted once"
    loop.kill()
