"""The de-duplicating queue between watches and the reconcile loop."""

from __future__ import annotations

import asyncio


class WakeQueue:
    """Collects keys until the loop takes them all at once.

    A key is what changed (a kind's plural). It is a set, so its size is bounded by the number of kinds however many
    events arrive; nothing is ever lost, because one pass looks at the whole world. Used from one event loop only.
    """

    def __init__(self, settle_seconds: float = 0.05) -> None:
        self._keys: set[str] = set()
        self._woken = asyncio.Event()
        # A burst (a helm install, a node's labels) arrives within milliseconds: one pass should see all of it.
        self._settle_seconds = settle_seconds

    def wake(self, key: str) -> None:
        """Add a key and wake the loop."""
        self._keys.add(key)
        self._woken.set()

    async def take(self, timeout: float) -> frozenset[str]:
        """Wait for a key, at most `timeout` seconds, and return all collected (empty after a time-out)."""
        try:
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        except TimeoutError:
            return frozenset()
        await asyncio.sleep(self._settle_seconds)
        keys = frozenset(self._keys)
        self._keys.clear()
        self._woken.clear()
        return keys
