"""A datapath that only talks: enough OpenFlow 1.3 for a controller to count it as connected and its entries as taken."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

VERSION = 4
HELLO, ECHO, FEATURES, CONFIG, MULTIPART, BARRIER, ROLE, ASYNC = 0, 2, 5, 7, 18, 20, 24, 26  # the requests; each answer is the next number
DESCRIPTION = 0
PACKET_IN = 10


class Switch(threading.Thread):
    """One connection; its end is the switch's."""

    def __init__(self, dpid: str, port: int) -> None:
        super().__init__(daemon=True)
        self._dpid = int(dpid, 16)
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._socket.settimeout(None)
        self._sending = threading.Lock()

    def run(self) -> None:
        self._send(HELLO, 1, b"")
        try:
            while header := self._read(8):
                _, kind, length, xid = struct.unpack("!BBHI", header)
                self._answer(kind, xid, self._read(length - 8))
        except OSError:
            return

    def packet_in(self, port: int, frame: bytes) -> None:
        """Hand a frame that came in on a port to the controller, as the table's last entry does."""
        match = struct.pack("!HHIIxxxx", 1, 12, 0x80000004, port)
        self._send(PACKET_IN, 0, struct.pack("!IHBBQ", 0xFFFFFFFF, len(frame), 1, 0, 0) + match + bytes(2) + frame)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.join(10)

    def _answer(self, kind: int, xid: int, body: bytes) -> None:
        if kind == FEATURES:
            self._send(kind + 1, xid, struct.pack("!QIBB2xII", self._dpid, 0, 254, 0, 0, 0))
        elif kind == MULTIPART:
            (what,) = struct.unpack("!H", body[:2])
            self._send(kind + 1, xid, struct.pack("!HH4x", what, 0) + (bytes(1056) if what == DESCRIPTION else b""))
        elif kind == CONFIG:
            self._send(kind + 1, xid, struct.pack("!HH", 0, 128))
        elif kind in (ECHO, ROLE, BARRIER):
            self._send(kind + 1, xid, body)

    def _send(self, kind: int, xid: int, body: bytes) -> None:
        with self._sending:
            self._socket.sendall(struct.pack("!BBHI", VERSION, kind, 8 + len(body), xid) + body)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                return b""
            data += more
        return data


@contextmanager
def connected(dpids: list[str], port: int) -> Iterator[dict[str, Switch]]:
    """Switches that are connected inside the block."""
    switches = {dpid: Switch(dpid, port) for dpid in dpids}
    for switch in switches.values():
        switch.start()
    try:
        yield switches
    finally:
        for switch in switches.values():
            if switch.is_alive():
                switch.close()
