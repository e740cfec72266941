"""Actions repeated in the background of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(step: Callable[[], object], every_s: float, end_s: float | None = None) -> Iterator[None]:
    """Run `step` immediately and then every `every_s` inside the block, in a thread; wait at most `end_s` for the last run."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            step()
            stop.wait(every_s)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(end_s)
