"""Leader election: acquire a Lease, renew it, and release it once the work has ended.

A holder that cannot renew ends its process before another operator may take the Lease (lease_watchdog.py, docs/adr/0024). Leader election
has its own thread and event loop, because compiling a large cluster blocks the main loop for as long as a lease lasts.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from sos_operator.cluster import lease_watchdog
from sos_operator.cluster.client import Cluster
from sos_operator.core.model.cluster_objects import Deployment
from sos_operator.core.model.errors import OperatorError
from sos_operator.core.model.kinds import DEPLOYMENT, LEASE
from sos_operator.core.model.options import Settings
from sos_operator.core.scheduling.lease import Record, Sight, Terms, claim, free_in, look, new_lease, read, reference, release

log = logging.getLogger(__name__)

EXIT_LOST = 1


class Candidate:
    """A process that wants, holds or held the Lease."""

    def __init__(self, cluster: Cluster, settings: Settings, turned: Callable[[bool], None]) -> None:
        self._cluster = cluster
        self._settings = settings
        self._name = settings.lease
        self._terms = Terms(settings.lease_seconds)
        self._turned = turned
        self._sight: Sight | None = None
        self._renewed_at = 0.0
        # Identify this process, not the pod: a restarted container does not hold its predecessor's Lease.
        self.me = f"{socket.gethostname()}_{secrets.token_hex(4)}"

    async def acquire(self, stop: asyncio.Event) -> bool:
        """Wait for the Lease and take it; False if stopped before. After each failed attempt, call `turned`, with True if another process
        holds the Lease."""
        while not stop.is_set():
            wait, others = self._terms.pace, False
            try:
                async with asyncio.timeout(self._terms.patience):
                    left = await self._look()
                wait, others = min(wait, left), left > 0
                if not others and await self._take():
                    log.info("holding the lease", extra={"lease": self._name, "holder": self.me})
                    return True
            except (OperatorError, TimeoutError) as error:
                log.warning(f"lease {self._name}: {str(error) or 'no answer in time'}")
            self._turned(others)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(wait, self._terms.pace / 10)):
                    await stop.wait()
        return False

    async def keep(self) -> None:
        """Renew until cancelled. End the process if another process holds the Lease, or a renewal is late."""
        try:
            await self._keep()
        except Exception:
            log.exception("a bug in keeping the lease")
            self._end("it cannot be kept")

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._terms.pace)
            error = await self._renew()
            if error is None:
                continue
            log.warning(f"lease {self._name} not renewed: {error}")
            holder = self._sight.record.holder if self._sight else ""
            if holder not in ("", self.me):
                self._end(f"it is {holder}'s")
            elif time.monotonic() - self._renewed_at >= self._terms.give_up:
                self._end("no renewal in time")

    async def release(self) -> None:
        """Release the Lease, so that the next candidate takes it within moments. If the release fails, the candidate waits for the Lease to
        expire."""
        try:
            async with asyncio.timeout(self._terms.patience):
                await self._look()
                if self._sight and self._sight.record.holder == self.me:
                    await self._cluster.merge(reference(self._settings, self._name), release(self._sight.record))
                    log.info("lease given up", extra={"lease": self._name})
        except (OperatorError, TimeoutError) as error:
            log.warning(f"lease {self._name} not given up: {str(error) or 'no answer in time'}")
        lease_watchdog.disarm()

    async def _look(self) -> float:
        """Read the Lease's holder; return the seconds until the Lease may be claimed."""
        lease = await self._cluster.get(LEASE, self._name, self._settings.namespace)
        now = time.monotonic()
        before, self._sight = self._sight, look(self._sight, read(lease, self._terms), now) if lease else None
        holder = self._sight.record.holder if self._sight else ""
        if self._sight and holder not in ("", self.me) and (before is None or before.record.holder != holder):
            log.info(f"standing by: the lease is {holder}'s", extra={"lease": self._name})
        return free_in(self._sight, self.me, now)

    async def _take(self) -> bool:
        """Claim the Lease. Arm the watchdog before sending: the lease time counts from the request, not from the answer."""
        sent = time.monotonic()
        lease_watchdog.arm(self._terms.fence)
        try:
            async with asyncio.timeout(self._terms.patience):
                await self._claim()
        except (OperatorError, TimeoutError) as error:
            # Disarm even if the claim has reached the server: this process writes nothing until a later claim is answered.
            lease_watchdog.disarm()
            log.info(f"lease {self._name} not taken: {str(error) or 'no answer in time'}")
            return False
        self._renewed_at = sent
        return True

    async def _renew(self) -> str | None:
        """Return the error of a renewal; None if it succeeded."""
        sent = time.monotonic()
        left = self._renewed_at + self._terms.give_up - sent
        try:
            async with asyncio.timeout(min(self._terms.patience, max(left, 0.0))):
                try:
                    await self._claim()
                except OperatorError:
                    await self._look()  # another client has written to the Lease, perhaps only a label
                    raise
        except (OperatorError, TimeoutError) as error:
            return str(error) or "no answer in time"
        self._renewed_at = sent
        lease_watchdog.arm(sent + self._terms.fence - time.monotonic())
        return None

    async def _claim(self) -> None:
        record = self._sight.record if self._sight else None
        content = claim(record, self.me, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), self._terms)
        if record is None:
            there = await self._cluster.get(DEPLOYMENT, self._settings.deployment, self._settings.namespace)
            deployment = Deployment.parse(there) if there else None
            lease = await self._cluster.create(new_lease(self._settings, self._name, content, deployment))
        else:
            lease = await self._cluster.merge(reference(self._settings, self._name), content)
        taken: Record = read(lease, self._terms)
        self._sight = Sight(taken, time.monotonic())

    def _end(self, why: str) -> None:
        """End the process immediately: an orderly shutdown would still write. If a log call hangs, the watchdog ends the process."""
        log.error(f"lease lost: {why}; this process ends", extra={"lease": self._name, "holder": self.me})
        logging.shutdown()
        os._exit(EXIT_LOST)


@asynccontextmanager
async def held(opened: Callable[[], AbstractAsyncContextManager[Candidate]], stop: asyncio.Event) -> AsyncIterator[bool]:
    """Hold the Lease inside the block, and release it at the end; yield False if stopped before acquiring it.

    `opened` opens a connection and yields a candidate; it runs in the thread that keeps the Lease.
    """
    with _loop_aside() as aside:
        life = _Life()
        if stop.is_set():
            life.stop.set()  # before the thread reads the Lease
        whole = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(life.live(opened), aside))
        taken = asyncio.wrap_future(life.taken)
        told = asyncio.create_task(_tell(stop, aside, life.stop))
        try:
            either: tuple[asyncio.Future[Any], ...] = (whole, taken)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            yield taken.done() and taken.result()  # if it is not done, `whole` raises the error
        finally:
            told.cancel()
            aside.call_soon_threadsafe(life.stop.set)
            aside.call_soon_threadsafe(life.worked.set)
            await whole


class _Life:
    """Work of the thread that keeps the Lease, and the events and the future that connect it to the main loop."""

    def __init__(self) -> None:
        self.stop, self.worked = asyncio.Event(), asyncio.Event()
        """`stop`: stop waiting for the Lease. `worked`: the work under the Lease has ended. The thread's own loop sets both events."""
        self.taken: concurrent.futures.Future[bool] = concurrent.futures.Future()

    async def live(self, opened: Callable[[], AbstractAsyncContextManager[Candidate]]) -> None:
        async with opened() as candidate:
            mine = await candidate.acquire(self.stop)
            keeping = asyncio.create_task(candidate.keep(), name="lease") if mine else None
            self.taken.set_result(mine)
            if keeping is None:
                return
            await self.worked.wait()
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await candidate.release()


@contextmanager
def _loop_aside() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in its own thread inside the block; the thread has ended after the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="lease", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _tell(stop: asyncio.Event, aside: asyncio.AbstractEventLoop, there: asyncio.Event) -> None:
    await stop.wait()
    aside.call_soon_threadsafe(there.set)
