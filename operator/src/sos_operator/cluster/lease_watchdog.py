"""End this process when its lease time is over, whatever its state: stopped, swapped out, or deep in a computation.

The kernel enforces the deadline: a timer keeps running while a process is stopped, and a pending signal is delivered before the process
executes another instruction. The handler is the C library's `_exit`: the default action of a signal does not affect process 1 of a
container, and a handler in Python would wait for the current call to return.
"""

from __future__ import annotations

import ctypes
import signal

EXIT_STATUS = int(signal.SIGALRM)  # the handler receives the signal's number, which `_exit` uses as the status


def arm(seconds: float) -> None:
    """End this process in `seconds`, replacing an earlier deadline."""
    library = ctypes.CDLL(None)
    library.signal.argtypes, library.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    library.signal(signal.SIGALRM, ctypes.cast(library._exit, ctypes.c_void_p))
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))  # 0 would disarm


def disarm() -> None:
    """Cancel the deadline."""
    signal.setitimer(signal.ITIMER_REAL, 0)
