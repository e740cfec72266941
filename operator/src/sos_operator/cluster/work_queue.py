"""Deduplicating queue between watches and the reconcile loop."""

from __future__ import annotations

import asyncio

from sos_operator.core.scheduling.change_queue import Changed, ChangeQueue


class WorkQueue:
    """Collects changes until the loop takes all of them together.

    Its size is bounded for any number of events (ChangeQueue). No change is lost, because one pass covers all objects.
    Used from one event loop only.
    """

    def __init__(self, settle_seconds: float = 0.05) -> None:
        self._news = ChangeQueue()
        self._woken = asyncio.Event()
        # A burst (a helm install, a node's labels) arrives within milliseconds: one pass should see all of it.
        self._settle_seconds = settle_seconds

    def wake(self, changed: Changed) -> None:
        """Add a change and wake the loop."""
        self._news.add(changed)
        self._woken.set()

    @property
    def waits(self) -> bool:
        """True if the queue holds changes."""
        return self._woken.is_set()

    async def take(self, timeout: float) -> frozenset[Changed]:
        """Wait at most `timeout` seconds for a change, and return all collected changes (none after a timeout)."""
        try:
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        except TimeoutError:
            return frozenset()
        await asyncio.sleep(self._settle_seconds)
        self._woken.clear()
        return self._news.take()
