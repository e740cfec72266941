"""Measure TCP at an interface by packet capture. Run inside a namespace; prints one JSON line when its input closes.

    meter.py INTERFACE

`flows`: payload bytes of each direction of a connection per tenth of a second since the epoch (each byte once, by sequence numbers).
`round_trips`: by local port (source port of outgoing packets), a pair for each segment that was acknowledged completely: arrival time of
the acknowledgement, and milliseconds since the segment was sent. Retransmitted segments are excluded (Karn).
"""

import json
import socket
import struct
import sys
from typing import Any

from sos_testbed.measurements.capture import passing

SO_TIMESTAMPNS, OUTGOING = 35, 4
MODULUS = 1 << 32
MAX_WAITING = 4096
LAST_LOOK_S = 0.2


class Segment:
    """The TCP segment in a frame."""

    def __init__(self, frame: bytes) -> None:
        tcp = 14 + (frame[14] & 15) * 4
        self.flow = (socket.inet_ntoa(frame[26:30]), *struct.unpack_from("!H", frame, tcp), socket.inet_ntoa(frame[30:34]))
        self.flow += struct.unpack_from("!H", frame, tcp + 2)
        self.seq, self.ack = struct.unpack_from("!II", frame, tcp + 4)
        self.flags = frame[tcp + 13]
        self.size = int.from_bytes(frame[16:18], "big") - (tcp - 14) - (frame[tcp + 12] >> 4) * 4

    @property
    def back(self) -> tuple:
        """Key of the opposite direction."""
        return (*self.flow[2:], *self.flow[:2])


class Meter:
    """Byte counts and round trips of all packets so far."""

    def __init__(self) -> None:
        self.next: dict[tuple, int] = {}
        self.bytes: dict[tuple, dict[int, int]] = {}
        self.waiting: dict[tuple, list[tuple[int, float]]] = {}
        self.round_trips: dict[str, list[tuple[float, float]]] = {}

    def see(self, segment: Segment, at: float, outgoing: bool) -> None:
        """Count a segment with this time stamp."""
        if segment.size:
            self._count(segment, at, outgoing)
        if segment.flags & 16 and not outgoing:
            self._acknowledge(segment, at)

    def _count(self, segment: Segment, at: float, outgoing: bool) -> None:
        end = (segment.seq + segment.size) % MODULUS
        expected = self.next.get(segment.flow, segment.seq)
        new = (end - expected) % MODULUS
        if new == 0 or new >= MODULUS // 2:
            self.waiting.pop(segment.flow, None)  # retransmitted: the acknowledgement is ambiguous (Karn)
            return
        self.next[segment.flow] = end
        tenths = self.bytes.setdefault(segment.flow, {})
        tenths[int(at * 10)] = tenths.get(int(at * 10), 0) + new
        waiting = self.waiting.setdefault(segment.flow, [])
        if outgoing and len(waiting) < MAX_WAITING:
            waiting.append((end, at))

    def _acknowledge(self, segment: Segment, at: float) -> None:
        waiting = self.waiting.get(segment.back, [])
        found = self.round_trips.setdefault(str(segment.back[1]), [])
        while waiting and (segment.ack - waiting[0][0]) % MODULUS < MODULUS // 2:
            found.append((at, (at - waiting.pop(0)[1]) * 1000))


def timestamp(ancillary: list[tuple[int, int, bytes]]) -> float:
    """Kernel timestamp of a packet."""
    seconds, nanoseconds = struct.unpack("qq", next(data for _, kind, data in ancillary if kind == SO_TIMESTAMPNS)[:16])
    return seconds + nanoseconds / 1e9


def main() -> None:
    """See the module's docstring."""
    meter = Meter()
    for tap in passing(sys.argv[1], (socket.SOL_SOCKET, SO_TIMESTAMPNS), last_look_s=LAST_LOOK_S):
        frame, ancillary, _, address = tap.recvmsg(128, 256)
        if len(frame) >= 54 and frame[12:14] == b"\x08\x00" and frame[23] == 6:
            meter.see(Segment(frame), timestamp(ancillary), address[2] == OUTGOING)
    flows: dict[str, Any] = {f"{a}:{b} {c}:{d}": tenths for (a, b, c, d), tenths in meter.bytes.items()}
    print(json.dumps({"flows": flows, "round_trips": meter.round_trips}), flush=True)


if __name__ == "__main__":
    main()
