"""Simulated datapath: enough OpenFlow 1.3 for a controller to regard it as connected, and its entries as confirmed.

The datapath delivers LLDP probes to the switch at the other end of a wire, so links are discovered. When the controller stops, the datapath
tries to reconnect, as Open vSwitch does; packet-ins are lost in the meantime.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise

VERSION = 4
HELLO, ECHO, FEATURES, CONFIG, MULTIPART, BARRIER, ROLE, ASYNC = 0, 2, 5, 7, 18, 20, 24, 26  # request types; answers are one higher
DESCRIPTION, PORTS = 0, 13
PACKET_IN, PACKET_OUT = 10, 13
LEFT, RIGHT = 1, 2  # ports of switches in a row
UPLINKS = {LEFT: b"wan1", RIGHT: b"wan0"}
LLDP = b"\x88\xcc"


RECONNECT_S = 0.5


class Switch(threading.Thread):
    """A datapath that stays connected to one controller, reconnecting if necessary, until it is closed."""

    def __init__(self, dpid: str, port: int) -> None:
        super().__init__(daemon=True)
        self.wires: dict[int, tuple[Switch, int]] = {}
        """Port -> switch and port at the other end; set before the thread starts."""
        self._kept: list[int] | None = None
        self.connections = 0
        """Number of connections so far."""
        self._dpid, self._port = int(dpid, 16), port
        self._socket = self._connect()
        self._sending = threading.Lock()
        self._closed = threading.Event()

    def run(self) -> None:
        while not self._closed.is_set():
            self._serve()
            while not self._closed.wait(RECONNECT_S):
                try:
                    self._socket = self._connect()
                    break
                except OSError:
                    continue

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=10)
        connection.settimeout(None)
        self.connections += 1
        return connection

    def _serve(self) -> None:
        """Answer messages until the connection ends."""
        try:
            self._send(HELLO, 1, b"")
            while header := self._read(8):
                _, kind, length, xid = struct.unpack("!BBHI", header)
                self._answer(kind, xid, self._read(length - 8))
        except OSError:
            pass
        self._socket.close()

    def packet_in(self, port: int, frame: bytes) -> None:
        """Send a frame that arrived at a port to the controller, as a table-miss entry does."""
        match = struct.pack("!HHIIxxxx", 1, 12, 0x80000004, port)
        with suppress(OSError):
            self._send(PACKET_IN, 0, struct.pack("!IHBBQ", 0xFFFFFFFF, len(frame), 1, 0, 0) + match + bytes(2) + frame)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Delay all barrier replies until the end of the block."""
        with self._sending:
            self._kept = []
        yield
        with self._sending:
            kept, self._kept = self._kept, None
        for xid in kept:
            self._send(BARRIER + 1, xid, b"")

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.join(10)

    def _answer(self, kind: int, xid: int, body: bytes) -> None:
        if kind == FEATURES:
            self._send(kind + 1, xid, struct.pack("!QIBB2xII", self._dpid, 0, 254, 0, 0, 0))
        elif kind == MULTIPART:
            (what,) = struct.unpack("!H", body[:2])
            self._send(kind + 1, xid, struct.pack("!HH4x", what, 0) + self._told(what))
        elif kind == CONFIG:
            self._send(kind + 1, xid, struct.pack("!HH", 0, 128))
        elif kind == PACKET_OUT:
            self._emit(body)
        elif kind == BARRIER and self._keeps(xid):
            return
        elif kind in (ECHO, ROLE, BARRIER):
            self._send(kind + 1, xid, body)

    def _keeps(self, xid: int) -> bool:
        with self._sending:
            if self._kept is not None:
                self._kept.append(xid)
            return self._kept is not None

    def _told(self, what: int) -> bytes:
        if what == DESCRIPTION:
            return bytes(1056)
        if what == PORTS:
            return b"".join(struct.pack("!I4x6s2x16s32x", port, bytes([2, 0, 0, 0, 0, port]), UPLINKS[port]) for port in sorted(self.wires))
        return b""

    def _emit(self, body: bytes) -> None:
        """Deliver an LLDP probe over its wire; drop other packet-outs, because simulated hosts and agents receive nothing."""
        (length,) = struct.unpack("!H", body[8:10])
        actions, frame = body[16 : 16 + length], body[16 + length :]
        (out,) = struct.unpack("!4xI", actions[:8])
        if out in self.wires and frame[12:14] == LLDP:
            neighbour, port = self.wires[out]
            neighbour.packet_in(port, frame)

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
def connected(dpids: list[str], port: int, in_a_row: bool = False) -> Iterator[dict[str, Switch]]:
    """Run switches that are connected to a controller inside the block; with `in_a_row`, they are also wired to their neighbors."""
    switches = {dpid: Switch(dpid, port) for dpid in dpids}
    for left, right in pairwise(switches.values()) if in_a_row else ():
        left.wires[RIGHT], right.wires[LEFT] = (right, LEFT), (left, RIGHT)
    for switch in switches.values():
        switch.start()
    try:
        yield switches
    finally:
        for switch in switches.values():
            if switch.is_alive():
                switch.close()
