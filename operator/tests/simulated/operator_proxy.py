"""A proxy in front of an API server that injects faults on request."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web
from operator_kube import Kube

HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding", "host", "keep-alive", "accept-encoding"}


def _status(code: int, reason: str) -> bytes:
    return json.dumps(
        {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason}
    ).encode()


def _error(code: int, reason: str) -> bytes:
    return b'{"type":"ERROR","object":' + _status(code, reason) + b"}\n"


@dataclass(frozen=True)
class Fault:
    """An injected fault: a status for every request, or bytes in a watch stream, which then ends or is aborted."""

    status: int = 200
    stream: bytes | None = None
    cut: bool = False


FAULTS = {
    "unauthorized": Fault(401),
    "internal-error": Fault(500),
    "too-many-requests": Fault(429),
    "unavailable": Fault(503),
    "stream-gone": Fault(stream=_error(410, "Expired")),
    "stream-internal-error": Fault(stream=_error(500, "InternalError")),
    "stream-garbage": Fault(stream=b"\x00not JSON\n[]\n"),
    "stream-of-no-object": Fault(stream=b'{"type":"ADDED","object":{"metadata":null}}\n'),
    "stream-cut": Fault(stream=b'{"type":"ADDED","obj', cut=True),
}


@dataclass
class Proxy:
    """A running proxy."""

    upstream: str
    url: str = ""
    met: int = 0
    """Number of requests that met the current fault."""
    _fault: Fault | None = None
    _streams: set[asyncio.Task[object]] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """Inject a fault inside the block; streams that run at the start of the block are ended."""
        self.met, self._fault = 0, FAULTS[name]
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._streams])
        try:
            yield
        finally:
            self._fault = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        fault, watch = self._fault, request.query.get("watch") == "true"
        if fault and fault.stream is None:
            self.met += 1
            return web.Response(status=fault.status, body=_status(fault.status, "told to"), content_type="application/json")
        if fault and fault.stream is not None and watch:
            self.met += 1
            return await self._spoilt(request, fault, fault.stream)
        return await self._passed(request, watch)

    async def _spoilt(self, request: web.Request, fault: Fault, stream: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(stream)
        if fault.cut and request.transport:
            request.transport.abort()
        return response

    async def _passed(self, request: web.Request, watch: bool) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        connector = aiohttp.TCPConnector(ssl=False)
        async with (
            aiohttp.ClientSession(connector=connector, auto_decompress=True) as session,
            session.request(request.method, self.upstream + request.raw_path, headers=headers, data=await request.read() or None) as answer,
        ):
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            task = asyncio.current_task()
            if watch and task:
                self._streams.add(task)
                task.add_done_callback(self._streams.discard)
            with suppress(ConnectionError, aiohttp.ClientError):
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            return response

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        """Serve until `stop` is set."""
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await stop.wait()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await runner.cleanup()

    def config(self, kube: Kube, token: str) -> Path:
        """Write a kubeconfig for the proxy."""
        path = kube.config_for("proxied", token)
        path.write_text(path.read_text().replace(self.upstream, self.url))
        return path


@contextmanager
def faulty_proxy(kube: Kube) -> Iterator[Proxy]:
    """Run a proxy in front of this API server, initially without faults."""
    proxy, ready, stop = Proxy(kube.url), threading.Event(), asyncio.Event()
    thread = threading.Thread(target=lambda: proxy._loop.run_until_complete(proxy.serve(ready, stop)), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield proxy
    finally:
        proxy._loop.call_soon_threadsafe(stop.set)
        thread.join(10)
