"""Actions repeated in the background of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(step: Callable[[], object], every_s: float, end_s: float | None = None) -> Iterator[None]:
    """`step` at once and then every so often inside the block, in a thread; its last run is waited for, `end_s` at most."""
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
