"""Packet capture at an interface, for programs inside a namespace; it stops at the end of standard input."""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Iterator

SO_RCVBUFFORCE, ETH_P_ALL = 33, 3  # linux/socket.h, linux/if_ether.h
RECEIVE_BYTES = 128 << 20
_POLL_S = 0.1
_BACKLOG_S = 30.0  # limit for reading the remaining packets at the end; on a busy machine, packets are read seconds late


def passing(interface: str, *options: tuple[int, int], last_look_s: float) -> Iterator[socket.socket]:
    """Yield a packet socket for each packet to read; stop when standard input ended `last_look_s` ago and all packets are read.

    `options` are the (level, name) pairs of socket options to set before the first packet. Prints `listening` when the capture starts.
    """
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    for level, name in options:
        tap.setsockopt(level, name, 1)
    tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BYTES)
    tap.bind((interface, ETH_P_ALL))
    print("listening", flush=True)
    until = float("inf")
    while (now := time.monotonic()) < until + _BACKLOG_S:
        readable, _, _ = select.select([tap, *([sys.stdin] if until == float("inf") else [])], [], [], _POLL_S if now < until else 0)
        if now >= until and not readable:
            return
        if sys.stdin in readable and not sys.stdin.read(1):
            until = time.monotonic() + last_look_s
        if tap in readable:
            yield tap
