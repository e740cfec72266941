"""Requests with a bounded wait (they continue in the background) and with bounded concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

import aiohttp

# Maximum time that a pass waits for answers, so that a peer that does not answer delays no unrelated work for long: half of the 2 s within
# which drift is repaired.
ANSWER_WAIT_S = 1.0


class BoundedRequests:
    """At most one request in flight per name. Used from one event loop only."""

    def __init__(self, bug: Callable[[str, BaseException], None]) -> None:
        self._bug = bug
        """Called with the name and the error of a failed call; other calls are not affected."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def names(self) -> frozenset[str]:
        """Names of the requests in flight."""
        return frozenset(name for name, task in self._tasks.items() if not task.done())

    async def run(self, calls: Mapping[str, Callable[[], Awaitable[None]]], late: Callable[[], None]) -> None:
        """Start requests that are not in flight yet, and wait at most ANSWER_WAIT_S; call `late` for each request that ends later."""
        for name in [name for name, task in self._tasks.items() if task.done()]:
            task = self._tasks.pop(name)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._bug(name, error)
        for name, call in calls.items():
            if name not in self._tasks:
                self._tasks[name] = asyncio.ensure_future(_awaited(call))
        waited = [self._tasks[name] for name in calls]
        if not waited:
            return
        _, slow = await asyncio.wait(waited, timeout=ANSWER_WAIT_S)
        for task in slow:
            task.add_done_callback(lambda _: late())

    async def close(self) -> None:
        """Cancel requests in flight."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def bounded_body(reply: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the whole body of a reply. Raises ValueError above `limit` bytes."""
    content = bytearray()
    # content.read(n) returns only the bytes that have arrived so far.
    async for chunk in reply.content.iter_chunked(65_536):
        content += chunk
        if len(content) > limit:
            raise ValueError(f"the answer has more than {limit} bytes")
    return bytes(content)


async def in_batches(calls: Iterable[Callable[[], Awaitable[None]]], size: int) -> None:
    """Make calls in batches of `size`. After a batch with an error, raise its first error and start no further batch: a server that leaves
    one call unanswered would not answer a thousand."""
    waiting = list(calls)
    for start in range(0, len(waiting), size):
        for ended in await asyncio.gather(*(call() for call in waiting[start : start + size]), return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended


async def _awaited(call: Callable[[], Awaitable[None]]) -> None:
    await call()
