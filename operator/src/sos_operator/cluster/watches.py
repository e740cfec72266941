"""Keep watches running: each in a thread with its own event loop, restarted whenever it ends.

An unexpected error in one watch (a status 500 in the middle of a stream, a briefly refused token, or a missing RBAC permission) makes kopf
end all watches that run in the same kopf operator. kopf then cancels all tasks that were created in its event loop after its start, so each
watch needs its own loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from sos_operator.core.scheduling.backoff import watch_delay

log = logging.getLogger(__name__)

END_S = 10.0  # time limit of an orderly shutdown; slower threads end with the process
TASKS_END_S = 2.0  # time limit for tasks that a watch left behind
STEADY_S = 60.0  # runtime from which the end of a watch counts as a new fault, so that the back-off restarts

Watch = Callable[[asyncio.Event], Awaitable[object]]
"""Watches until the event is set."""
Ended = Callable[[str], None]
"""Called with the name of a watch before the watch is restarted; changes since its end have been missed."""


@asynccontextmanager
async def watching(watches: Mapping[str, Watch], ended: Ended) -> AsyncIterator[None]:
    """Keep the watches running inside the block. `ended` is called in the event loop of the caller."""
    home = asyncio.get_running_loop()
    threads = [_Kept(name, watch, home, ended) for name, watch in watches.items()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.stop()
        deadline = time.monotonic() + END_S
        for thread in threads:
            await asyncio.to_thread(thread.join, max(0.0, deadline - time.monotonic()))


class _Kept(threading.Thread):
    """One watch and its thread."""

    def __init__(self, name: str, watch: Watch, home: asyncio.AbstractEventLoop, ended: Ended) -> None:
        super().__init__(name=f"watch-{name}", daemon=True)
        self._what, self._watch, self._home, self._ended = name, watch, home, ended
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def stop(self) -> None:
        """End the watch without a restart."""
        self._stopped.set()
        with self._lock:
            if self._running:
                loop, stop = self._running
                loop.call_soon_threadsafe(stop.set)

    def run(self) -> None:
        """Body of the thread: run the watch, and restart it after each end."""
        ends = 0
        while not self._stopped.is_set():
            began = time.monotonic()
            why = self._live()
            if self._stopped.is_set():
                return
            ends = 1 if time.monotonic() - began > STEADY_S else ends + 1
            pause = watch_delay(ends)
            log.warning(f"the watch {self._what} ended and starts again in {pause:.0f} s: {why}", extra={"watch": self._what})
            self._stopped.wait(pause)
            with suppress(RuntimeError):  # the caller's loop is closed: it has ended without waiting for this thread
                self._home.call_soon_threadsafe(self._ended, self._what)

    def _live(self) -> str:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._once())
        except (Exception, asyncio.CancelledError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            _end_tasks(loop)
        return "without an error"

    async def _once(self) -> None:
        stop = asyncio.Event()
        with self._lock:
            self._running = (asyncio.get_running_loop(), stop)
        try:
            if not self._stopped.is_set():
                await self._watch(stop)
        finally:
            with self._lock:
                self._running = None


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel tasks as asyncio.run does, but do not wait for a task that does not end."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=TASKS_END_S))
    loop.close()
