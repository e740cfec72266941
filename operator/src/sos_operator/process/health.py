"""/healthz, /readyz and /metrics."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from sos_operator.process.metrics import Metrics

# Seconds without the end of a pass after which /healthz fails. Even a pass that waits for every controller and a slow API server takes much
# less.
STUCK_AFTER_S = 180.0


@dataclass(slots=True)
class Health:
    """State of the loop (monotonic seconds)."""

    last_end: float = field(default_factory=time.monotonic)
    """End of the last pass, successful or not."""
    passed: bool = False
    """True once any pass has ended, successful or not. A rolling update keeps the old operator until the new one is ready, and an object
    that is always refused must not block the update; failing passes show in the metrics and their alert."""
    standing_by: bool = False
    """True if another operator is active, and this operator has seen the Lease."""

    def wait(self, now: float, others: bool) -> None:
        """Record that the Lease was read, a standby's only activity; `others`: another operator holds the Lease."""
        self.last_end, self.standing_by = now, self.standing_by or others

    def take_over(self, now: float) -> None:
        """Judge the loop by its passes from now on."""
        self.last_end, self.standing_by = now, False

    @property
    def ready(self) -> bool:
        """True if a pass has ended, or if another operator is known to be active."""
        return self.passed or self.standing_by

    def alive(self, now: float) -> bool:
        """True if the loop makes passes. Unreachable clusters and controllers do not count, because a restart would not help."""
        return now - self.last_end < STUCK_AFTER_S


@asynccontextmanager
async def serve(health: Health, metrics: Metrics, host: str, port: int) -> AsyncIterator[int]:
    """Serve until the block is left; yield the port (a free one if `port` is 0)."""

    async def healthz(_: web.Request) -> web.Response:
        good = health.alive(time.monotonic())
        return web.Response(text="ok\n" if good else "the reconcile loop is stuck\n", status=200 if good else 503)

    async def readyz(_: web.Request) -> web.Response:
        if not health.ready:
            return web.Response(text="no pass has ended yet\n", status=503)
        return web.Response(text="standing by\n" if health.standing_by else "ok\n")

    async def numbers(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", numbers)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
