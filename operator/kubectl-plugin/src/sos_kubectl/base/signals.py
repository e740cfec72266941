"""Ctrl-C and other signals during commands that create objects: the first signal interrupts, and the clean-up runs undisturbed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IMPATIENCE_S = 1.0


@contextmanager
def ended_once() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first signal of ENDING; ignore further signals within a second, because the clean-up has begun."""
    first = [float("-inf")]

    def stop(_number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - first[0] >= IMPATIENCE_S:
            first[0] = now
            raise KeyboardInterrupt

    kept = {number: signal.signal(number, stop) for number in ENDING}
    try:
        yield
    finally:
        _restore(kept)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore the signals of ENDING. No effect outside the main thread, the only thread that may set handlers and that signals interrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        _restore(kept)


def _restore(kept: dict[signal.Signals, signal._HANDLER]) -> None:
    for number, handler in kept.items():
        signal.signal(number, handler)
