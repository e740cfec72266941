"""Receive rings for a lab's switch ports, as a program of its own: `python -m sos_testbed.rings BYTES PIDFILE...`.

Open vSwitch 3.1 reads a port of its user-space datapath through an AF_PACKET socket with the kernel's default buffer of
208 KiB, which is three segmented frames; a network card's ring holds hundreds. Under a few milliseconds of scheduling
delay such a port drops a tenth of a 500 Mbit/s stream, and Open vSwitch has no setting for it. The default could be
raised for the whole machine (net.core.rmem_default); here only the sockets of the lab's own switches are changed, by
borrowing them with pidfd_getfd(2).
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from pathlib import Path

_SYS_PIDFD_GETFD = 438  # the same number on every architecture since Linux 5.6
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h; Python does not name it
PERIOD_S = 0.5  # a port that a fault took away comes back with a small buffer and gets its ring within this time

_libc = ctypes.CDLL(None, use_errno=True)


def enlarge(pid: int, size: int) -> int:
    """Give every packet socket of a process a receive buffer of `size` bytes; returns how many were smaller."""
    changed = 0
    pidfd = os.pidfd_open(pid)
    try:
        for number in [entry.name for entry in Path(f"/proc/{pid}/fd").iterdir()]:
            if _is_socket(pid, number):
                changed += _enlarge_one(pidfd, int(number), size)
    finally:
        os.close(pidfd)
    return changed


def _is_socket(pid: int, number: str) -> bool:
    try:
        return Path(f"/proc/{pid}/fd/{number}").readlink().name.startswith("socket:")
    except FileNotFoundError:
        return False  # closed in between


def _enlarge_one(pidfd: int, number: int, size: int) -> bool:
    borrowed = _libc.syscall(_SYS_PIDFD_GETFD, pidfd, number, 0)
    if borrowed < 0:
        return False  # closed in between
    with socket.socket(fileno=borrowed) as copy:
        # the kernel doubles what is set and shows the double (socket(7))
        if copy.family != socket.AF_PACKET or copy.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 2 * size:
            return False
        copy.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)
        return True


def main() -> None:
    """Look after the switches named by pid files until SIGTERM."""
    size, files = int(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    while not leave.wait(PERIOD_S):
        for file in files:
            try:
                changed = enlarge(int(file.read_text(encoding="ascii")), size)
            except (OSError, ValueError):
                continue  # the switch is down, or goes down while we look
            if changed:
                print(f"{file.parent.name}: {changed} ports", flush=True)


if __name__ == "__main__":
    main()
