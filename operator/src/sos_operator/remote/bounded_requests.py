"""Requests to others: those that a pass waits for, but not long (they go on by themselves), and those that go out several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

# Half of what a repair may take (2 s): whoever does not answer must not hold up what has nothing to do with it.
ANSWER_WAIT_S = 1.0


class BoundedRequests:
    """At most one request per name. Used from one event loop only."""

    def __init__(self, bug: Callable[[str, BaseException], None]) -> None:
        self._bug = bug
        """Hears of calls that raise: theirs is the name, nobody else's the trouble."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def names(self) -> frozenset[str]:
        """Whom an answer is still awaited from."""
        return frozenset(name for name, task in self._tasks.items() if not task.done())

    async def run(self, calls: Mapping[str, Callable[[], Awaitable[None]]], late: Callable[[], None]) -> None:
        """Start what is not under way already, and wait a moment; `late` is called when something ends after that."""
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
        """End what is under way."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def in_batches(calls: Iterable[Callable[[], Awaitable[None]]], size: int) -> None:
    """Make calls, `size` at a time. The first error is raised when its batch is over, and no further batch begins: where one call
    fails because nobody answers, a thousand would."""
    waiting = list(calls)
    for start in range(0, len(waiting), size):
        for ended in await asyncio.gather(*(call() for call in waiting[start : start + size]), return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended


async def _awaited(call: Callable[[], Awaitable[None]]) -> None:
    await call()
