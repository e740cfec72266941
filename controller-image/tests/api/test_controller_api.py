"""Test the northbound API as a WSGI application over a live engine."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from controller_lab import TOKEN, document
from controller_process import WAIT_S
from controller_world import World
from sos_controller.api.northbound import MAX_CONNECTIONS, MAX_PER_CLIENT, MAX_READERS, Api, serve
from sos_controller.app import Controller
from sos_controller.core.commands import Notice
from sos_controller.core.snapshot import listing
from sos_controller.core.types import parse_address
from sos_controller.openflow.framework import eventlet


@pytest.fixture
def world() -> World:
    made = World()
    made.converge()
    made.syn(40000)
    return made


@pytest.fixture
def api(world: World) -> Api:
    controller = Controller(world.engine)
    controller.raw_config = json.dumps(document()).encode()
    made = Api(controller, "2026-01-01T00:00:00Z")
    made.tokens = (TOKEN.encode(),)
    return made


def ask(api: Api, path: str, method: str = "GET", body: bytes = b"", token: str | None = None, query: str = "") -> tuple[int, object]:
    said: list = []
    environ = {
        "PATH_INFO": path, "REQUEST_METHOD": method, "QUERY_STRING": query,
        "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body),
        **({"HTTP_AUTHORIZATION": f"Bearer {token}"} if token else {}),
    }  # fmt: skip
    data = b"".join(api(environ, lambda status, headers: said.append(status)))
    text = data.decode()
    return int(said[0].split()[0]), json.loads(text) if text.startswith("{") else text


def test_status_reports_datapaths_agents_services_and_sessions(api: Api, world: World) -> None:
    status, said = ask(api, "/v1/status")
    assert status == 200 and said["config"] == {"generation": 1, "hash": document()["hash"]}
    assert [d["name"] for d in said["datapaths"]] == ["edge1", "edge2", "core1", "core2"] and all(d["connected"] for d in said["datapaths"])
    assert [a["site"] for a in said["agents"]] == ["west", "east"] and said["links"] == 4 and said["sessions"] == 1
    (service,) = said["services"]
    assert (service["state"], service["sessions"]) == ("Programmed", 1) and service["needed"] == service["acknowledged"]
    world.disconnect("core1")
    world.tick(0.1)
    (service,) = ask(api, "/v1/status")[1]["services"]
    assert service["state"] == "Programmed", "the service stays programmed over the other path"
    assert "0003000000000003" not in service["needed"]


def test_each_endpoint_answers(api: Api) -> None:
    assert ask(api, "/healthz")[0] == 200 and ask(api, "/readyz")[0] == 200
    topology = ask(api, "/v1/topology")[1]
    assert len(topology["links"]) == 4 and topology["links"][0]["a"]["name"] == "p1" and topology["hosts"][0]["address"] == "10.0.0.11"
    assert {a["sessions"] for a in ask(api, "/v1/agents")[1]["agents"]} == {0}
    sessions = ask(api, "/v1/sessions")[1]
    assert (
        sessions["total"] == 1 and sessions["sessions"][0]["client"] == "10.0.0.11:40000" and sessions["sessions"][0]["state"] == "Active"
    )
    assert ask(api, "/v1/sessions", query="limit=0")[1] == {"sessions": [], "total": 1, "truncated": True}
    entries = ask(api, "/v1/entries", query="dpid=0001000000000001&unknown=1")[1]["entries"]
    assert any(e["match"].get("tcp_flags") == "0x2/0x17" and e["hardTimeout"] == 5 for e in entries)
    assert ask(api, "/v1/config")[1] == document()


def test_filters_find_a_session_beyond_the_list_limit(api: Api, world: World) -> None:
    for port in range(40001, 40004):
        world.syn(port)
    for query, ports in (
        ("client=10.0.0.11:40002", [40002]),
        ("client=10.0.0.11&limit=4", [40000, 40001, 40002, 40003]),
        ("client=10.0.0.1", []),
        ("client=10.0.0.11:4000", []),
        ("server=10.0.0.11", []),
        ("server=10.0.0.139:9", []),
        ("client=10.0.0.11:40003&server=10.0.0.139&limit=1", [40003]),
    ):
        said = ask(api, "/v1/sessions", query=query)[1]
        assert sorted(int(s["client"].rpartition(":")[2]) for s in said["sessions"]) == ports, query
        assert (said["total"], "truncated" in said) == (len(ports), False)


def test_topology_lists_every_address_of_a_host(api: Api, world: World) -> None:
    (host,) = [h for h in world.engine.state.hosts.all() if h.addresses[:1] == (parse_address("10.0.0.11"),)]
    world.engine.state.hosts.learn(host.mac, parse_address("10.0.0.77"), host.location, world.engine.state.now)
    (shown,) = [h for h in ask(api, "/v1/topology")[1]["hosts"] if "10.0.0.11" in h["addresses"]]
    assert shown["addresses"] == ["10.0.0.77", "10.0.0.11"] and shown["address"] == "10.0.0.77"


def test_metrics_are_prometheus_text(api: Api) -> None:
    status, text = ask(api, "/metrics")
    assert status == 200
    for line in (
        "sos_controller_sessions_open 1.0",
        'sos_controller_agents{site="west"} 1.0',
        'sos_controller_syns_total{outcome="begun"} 1.0',
    ):
        assert line in text
    assert 'sos_controller_service_programmed{service="default/bulk"} 1.0' in text


@pytest.mark.parametrize(
    ("path", "method", "query", "status"),
    [
        ("/nothing", "GET", "", 404),
        ("/v1/status", "POST", "", 405),
        ("/nothing", "POST", "", 404),
        ("/v1/entries", "GET", "", 400),
        ("/v1/entries", "GET", "dpid=zz", 400),
        ("/v1/sessions", "GET", "limit=-1", 400),
        ("/v1/sessions", "GET", "client=a", 400),
        ("/v1/sessions", "GET", "client=10.0.0.1:", 400),
        ("/v1/sessions", "GET", "server=10.0.0.1:65536", 400),
    ],
)
def test_invalid_requests_return_the_matching_status(api: Api, path: str, method: str, query: str, status: int) -> None:
    got, said = ask(api, path, method, query=query)
    assert got == status and said["error"]["message"]


def test_put_config_needs_the_token(api: Api) -> None:
    body = json.dumps(document(2)).encode()
    for token in (None, "wrong", TOKEN + "x", TOKEN[:-1]):
        assert ask(api, "/v1/config", "PUT", body, token)[0] == 401
    api.tokens = ()
    assert ask(api, "/v1/config", "PUT", body, "None")[0] == 401
    api.tokens = (b"one", b"other")
    assert [ask(api, "/v1/config", "PUT", body, token)[0] for token in ("one", "other", "none", TOKEN)] == [200, 200, 401, 401]


def test_put_config_accepts_only_newer_generations(api: Api) -> None:
    def put(made: dict) -> tuple[int, object]:
        return ask(api, "/v1/config", "PUT", json.dumps(made).encode(), TOKEN)

    assert put(document(2)) == (200, {"generation": 2, "hash": document()["hash"], "changed": True})
    assert put(document(2))[1]["changed"] is False
    assert put(document(1))[0] == 409
    assert put(document(2, services=False))[0] == 409
    status, said = put({**document(3), "colour": "red"})
    assert status == 400 and "colour" in said["error"]["message"]
    made = document(3)
    made["services"][0]["ports"][0]["first"] = 0
    assert put(made)[1]["error"]["path"] == "services[0].ports[0].first"
    assert ask(api, "/v1/config")[1]["generation"] == 2


def test_controller_without_configuration_is_not_ready() -> None:
    from sos_controller.core.engine import Engine
    from sos_controller.core.state import Identity

    api = Api(Controller(Engine(Identity(1, 1, 1, b"k"))), "")
    assert ask(api, "/readyz")[0] == 503 and ask(api, "/healthz")[0] == 200 and ask(api, "/v1/config")[0] == 404
    assert ask(api, "/v1/status")[1]["services"] == [] and ask(api, "/metrics")[0] == 200


def test_events_are_streamed_and_slow_readers_disconnected(api: Api) -> None:
    controller = api._controller
    environ = {"PATH_INFO": "/v1/events", "REQUEST_METHOD": "GET", "QUERY_STRING": ""}
    streams = [api(environ, lambda *_: None) for _ in range(MAX_READERS)]
    said: list = []
    api(environ, lambda status, headers: said.append(status))
    assert said[0].startswith("503")
    for stream in streams[1:]:
        stream.close()
    lines = iter(streams[0])
    assert next(lines) == b"\n"
    controller._tell(Notice("link", {"links": 4}))
    assert json.loads(next(lines)) == {"kind": "link", "links": 4}
    for _ in range(2000):
        controller._tell(Notice("link", {"links": 4}))
    left = list(lines)
    assert len(left) <= 1024 and not controller.listeners and api._readers == 0


def test_truncated_lists_are_marked() -> None:
    assert listing("x", [{}] * 3, 2) == {"x": [{}, {}], "truncated": True} and listing("x", [{}], 2) == {"x": [{}]}


@pytest.fixture
def served(api: Api) -> Iterator[int]:
    """Yield the port of a running API server."""
    sock = eventlet.listen(("127.0.0.1", 0))
    server = eventlet.spawn(serve, api, sock)
    yield sock.getsockname()[1]
    server.kill()
    sock.close()


def probed(port: int) -> bytes:
    """Return the server's response to a health probe from 127.0.0.1."""
    with eventlet.Timeout(WAIT_S):
        sock = eventlet.connect(("127.0.0.1", port))
        sock.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        return bytes(sock.recv(4096))


def test_one_client_address_cannot_use_all_connections(served: int, api: Api) -> None:
    crowd = [eventlet.connect(("127.0.0.1", served), bind=("127.0.0.2", 0)) for _ in range(MAX_CONNECTIONS * 2)]
    assert probed(served).startswith(b"HTTP/1.1 200 OK")
    assert api.served["127.0.0.2"] == MAX_PER_CLIENT
    for sock in crowd:
        sock.close()
    with eventlet.Timeout(WAIT_S):
        while api.served:
            eventlet.sleep(0.01)


BODY = b"HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /healthz",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
        b"GET /healthz " + BODY + b"\r\n",
        b"PUT /v1/config " + BODY + b"\r\n",
        b"PUT /v1/config " + BODY + b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n",
    ],
)
def test_slow_requests_time_out(served: int, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr("sos_controller.api.northbound.REQUEST_S", 0.2)
    sock = eventlet.connect(("127.0.0.1", served))
    sock.sendall(begun)
    with eventlet.Timeout(WAIT_S), suppress(ConnectionError):
        while True:
            eventlet.sleep(0.02)
            sock.sendall(b"x")
    assert probed(served).startswith(b"HTTP/1.1 200 OK")


def test_responses_may_outlast_the_request_timeout(served: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sos_controller.api.northbound.REQUEST_S", 0.2)
    monkeypatch.setattr("sos_controller.api.northbound.HEARTBEAT_S", 0.1)
    sock = eventlet.connect(("127.0.0.1", served))
    sock.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
    said, end = b"", time.monotonic() + 1
    with eventlet.Timeout(WAIT_S):
        while time.monotonic() < end:
            got = sock.recv(4096)
            assert got, said
            said += got
