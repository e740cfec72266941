"""The northbound API (spec/northbound.md) as a WSGI application. Requests read snapshots; only PUT changes state: it replaces the
configuration."""

from __future__ import annotations

import hmac
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import parse_qs

import msgspec

from sos_controller import __version__
from sos_controller.api import metrics
from sos_controller.app import Controller
from sos_controller.core import snapshot
from sos_controller.core.commands import Notice
from sos_controller.core.config import MAX_BYTES
from sos_controller.core.types import DatapathId
from sos_controller.files.config import ConfigError, ConflictError
from sos_controller.openflow.framework import eventlet

LOG = logging.getLogger("sos_controller.api")

MAX_CONNECTIONS = 64
MAX_PER_CLIENT = 32
"""Maximum number of connections from one address, so that one client leaves connections to others, kubelet's probes included."""
REQUEST_S = 30.0
"""Time limit of a request, body included, from the connection's start or the previous response, even if bytes keep arriving."""
MAX_READERS = 16
MAX_WAITING = 1_024
"""Maximum backlog of events of one reader; beyond it the reader is disconnected."""
ACCEPT_PAUSE_S = 0.1
"""Delay before the next `accept` if descriptors or memory are exhausted: an immediate retry would fail, too."""
HEARTBEAT_S = 15.0
"""Interval of empty lines on an event stream, by which each side detects a lost peer."""

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed", 409: "Conflict"} | {
    413: "Content Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class _RefusalError(Exception):
    def __init__(self, status: int, message: str, path: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.path = status, message, path


class Api:
    """Router of requests. `tokens` are replaced when their files change; without tokens, no PUT is accepted."""

    def __init__(self, controller: Controller, started_at: str) -> None:
        self.tokens: tuple[bytes, ...] = ()
        self.served: Counter[str] = Counter()
        """Number of open connections by client address."""
        self._controller = controller
        self._started_at = started_at
        self._registry = metrics.registry(controller)
        self._readers = 0
        self._routes: dict[str, Callable[[Environ], object]] = {
            "/healthz": lambda _: {"status": "ok"},
            "/readyz": self._ready,
            "/v1/config": self._config,
            "/v1/status": self._status,
            "/v1/topology": lambda _: snapshot.topology(controller.engine),
            "/v1/agents": lambda _: snapshot.agents(controller.engine),
            "/v1/measurements": lambda _: snapshot.measurements(controller.engine),
            "/v1/sessions": self._sessions,
            "/v1/plain": self._plain,
            "/v1/entries": self._entries,
        }

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        try:
            return self._answer(environ, start_response)
        except _RefusalError as refusal:
            error = {"message": refusal.message} | ({"path": refusal.path} if refusal.path else {})
            return _respond(start_response, refusal.status, {"error": error})
        except Exception:
            self._controller.bug("request")
            return _respond(start_response, 500, {"error": {"message": "internal error of the controller; see its log"}})

    def _answer(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if method == "PUT" and path == "/v1/config":
            return _respond(start_response, 200, self._put_config(environ))
        known = path in self._routes or path in ("/metrics", "/v1/events")
        if method != "GET":
            raise _RefusalError(405 if known else 404, "no such method")
        if path == "/metrics":
            return _send(start_response, 200, metrics.render(self._registry), "text/plain; version=0.0.4; charset=utf-8")
        if path == "/v1/events":
            return self._events(start_response)
        if not known:
            raise _RefusalError(404, "no such resource")
        return _respond(start_response, 200, self._routes[path](environ))

    def _ready(self, _: Environ) -> object:
        if self._controller.engine.state.config is None:
            raise _RefusalError(503, "no configuration is in force")
        return {"status": "ready"}

    def _status(self, _: Environ) -> object:
        shown = snapshot.status(self._controller.engine, self._started_at, __version__)
        shown["controller"] |= self._controller.mastership.report()
        return shown

    def _config(self, _: Environ) -> object:
        if self._controller.raw_config is None:
            raise _RefusalError(404, "no configuration is in force")
        return json.loads(self._controller.raw_config)

    def _put_config(self, environ: Environ) -> object:
        self._authorize(environ.get("HTTP_AUTHORIZATION", ""))
        try:
            length = int(environ.get("CONTENT_LENGTH") or -1)
        except ValueError:
            length = -1
        if length < 0:
            raise _RefusalError(400, "Content-Length is needed")
        if length > MAX_BYTES:
            raise _RefusalError(413, f"larger than {MAX_BYTES} bytes")
        data = environ["wsgi.input"].read(length)
        try:
            config, changed = self._controller.configure(data)
        except ConfigError as error:
            raise _RefusalError(400, error.message, error.path) from error
        except ConflictError as error:
            raise _RefusalError(409, str(error)) from error
        return {"generation": config.generation, "hash": config.hash, "changed": changed}

    def _authorize(self, header: str) -> None:
        scheme, _, given = header.partition(" ")
        said = given.strip().encode("latin-1", "replace")
        # Compare all tokens, so that the time does not reveal which token matched.
        right = [hmac.compare_digest(said, token) for token in self.tokens]
        if scheme.lower() != "bearer" or not any(right):
            raise _RefusalError(401, "a valid bearer token is needed")

    def _sessions(self, environ: Environ) -> object:
        limit = _limit(environ, snapshot.MAX_SESSIONS_SHOWN)
        return snapshot.sessions(self._controller.engine, limit, _place(environ, "client"), _place(environ, "server"))

    def _plain(self, environ: Environ) -> object:
        ends, service = (_place(environ, "client"), _place(environ, "server")), _query(environ, "service") or ""
        return snapshot.plain(self._controller.engine, _limit(environ, snapshot.MAX_PLAIN_SHOWN), *ends, service)

    def _entries(self, environ: Environ) -> object:
        text = _query(environ, "dpid")
        try:
            dpid = DatapathId(int(text or "", 16))
        except ValueError as error:
            raise _RefusalError(400, "dpid is not a datapath id of 16 hex digits", "dpid") from error
        return snapshot.entries(self._controller.engine, dpid)

    def _events(self, start_response: StartResponse) -> Iterable[bytes]:
        if self._readers >= MAX_READERS:
            raise _RefusalError(503, f"{MAX_READERS} readers are connected already")
        self._readers += 1  # decremented when the generator ends, for whatever reason
        start_response("200 OK", [("Content-Type", "application/x-ndjson"), ("Cache-Control", "no-store")])
        return _Stream(self._stream())

    def _stream(self) -> Iterator[bytes]:
        waiting: eventlet.queue.Queue = eventlet.queue.Queue(MAX_WAITING)
        cut = [False]

        def listen(notice: Notice) -> None:
            if waiting.full():
                cut[0] = True
            else:
                waiting.put_nowait(notice)

        self._controller.listeners.append(listen)
        try:
            yield b"\n"
            while not cut[0]:
                try:
                    notice = waiting.get(timeout=HEARTBEAT_S)
                except eventlet.queue.Empty:
                    yield b"\n"
                    continue
                yield json.dumps({"kind": notice.kind, **notice.data}).encode() + b"\n"
        finally:
            self._controller.listeners.remove(listen)
            self._readers -= 1


class _Stream:
    """An iterable whose generator is started immediately, so that its `finally` runs even if the reader leaves before the first line."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._first: list[bytes] = [next(lines)]
        self._lines = lines

    def __iter__(self) -> Iterator[bytes]:
        yield from self._first
        yield from self._lines

    def close(self) -> None:
        """Close the generator; called by the server when the reader is gone."""
        self._lines.close()  # type: ignore[attr-defined]


def _query(environ: Environ, name: str) -> str | None:
    values = parse_qs(environ.get("QUERY_STRING", "")[:4096], max_num_fields=32).get(name)
    return values[-1] if values else None


def _limit(environ: Environ, most: int) -> int:
    text = _query(environ, "limit")
    if text is not None and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise _RefusalError(400, "limit is not a number", "limit")
    return most if text is None else int(text)


def _place(environ: Environ, name: str) -> bytes:
    text = _query(environ, name)
    try:
        return snapshot.place(text) if text else b""
    except ValueError as error:
        raise _RefusalError(400, f"{name} is neither ADDRESS nor ADDRESS:PORT", name) from error


def _respond(start_response: StartResponse, status: int, document: object) -> Iterable[bytes]:
    return _send(start_response, status, msgspec.json.encode(document) + b"\n", "application/json")


def _send(start_response: StartResponse, status: int, data: bytes, kind: str) -> Iterable[bytes]:
    headers = [("Content-Type", kind), ("Content-Length", str(len(data))), ("Cache-Control", "no-store")]
    start_response(f"{status} {_REASONS[status]}", headers)
    return [data]


class _Protocol(eventlet.wsgi.HttpProtocol):  # type: ignore[misc]
    """eventlet's protocol with a time limit for requests: eventlet itself limits single reads only."""

    def handle(self) -> None:
        """Serve a connection, unless its address already has MAX_PER_CLIENT connections."""
        served, address = self.server.app.served, self.client_address[0]
        if served[address] >= MAX_PER_CLIENT:
            return
        served[address] += 1
        try:
            super().handle()
        finally:
            served[address] -= 1
            if not served[address]:
                del served[address]

    def handle_one_request(self) -> None:
        """Serve one request; close the connection if the request does not arrive in time."""
        self._deadline = eventlet.Timeout(REQUEST_S)
        try:
            super().handle_one_request()
        except eventlet.Timeout as timeout:
            if timeout is not self._deadline:
                raise
            self.close_connection = True
        finally:
            self._deadline.cancel()

    def parse_request(self) -> bool:
        """Read the headers. A GET without a body is complete: cancel the deadline. A body has to arrive before the deadline, too."""
        read = bool(super().parse_request())
        if read and self.command == "GET" and not {"content-length", "transfer-encoding"} & {name.lower() for name in self.headers}:
            self._deadline.cancel()
        return read


class Listener:
    """A listening socket whose `accept` never fails: eventlet's server would stop as soon as descriptors run out."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def accept(self) -> Any:
        """Return the next connection; wait for it, and for free descriptors."""
        while True:
            try:
                return self._sock.accept()
            except OSError as error:
                LOG.warning("accept: %s", error)
                eventlet.sleep(ACCEPT_PAUSE_S)


def serve(api: Api, sock: Any) -> None:
    """Answer requests forever. Send each chunk immediately: a line of the event stream must not wait for the next line."""
    limits = {"max_size": MAX_CONNECTIONS, "socket_timeout": REQUEST_S, "keepalive": REQUEST_S}
    eventlet.wsgi.server(Listener(sock), api, log=LOG, log_output=False, protocol=_Protocol, minimum_chunk_size=1, **limits)
