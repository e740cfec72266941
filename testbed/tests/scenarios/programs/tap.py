"""Check TCP packets at an interface after simulated checksum offload. Run inside a namespace; prints one JSON line when its input closes.

    tap.py INTERFACE

With checksum offload, the checksum field contains only the sum of the pseudo header, and the packet's virtio-net header has the start
of the rest and the position of the field. The tap completes such checksums as a network card does, and then verifies every IPv4 and TCP
checksum like a receiver. Receivers on the same machine do not verify checksums, so an error of a switch would appear only on a real link.
"""

import collections
import json
import socket
import struct
import sys

from sos_testbed.measurements.capture import passing

SOL_PACKET, PACKET_VNET_HDR = 263, 15
NEEDS_CSUM = 1
VNET = struct.Struct("=BBHHHH")
MAX_WRONG_SHOWN = 5
LAST_LOOK_S = 0.5


def total(data: bytes) -> int:
    """One's complement sum of 16-bit words (RFC 1071): the data as a number modulo 0xFFFF, with 0xFFFF for remainder 0 of nonzero data."""
    number = int.from_bytes(data + bytes(len(data) & 1), "big")
    return (number - 1) % 0xFFFF + 1 if number else 0


def completed(header: bytes, frame: bytes) -> bytes:
    """Frame after checksum offload by a network card."""
    flags, _, _, _, start, offset = VNET.unpack(header)
    if not flags & NEEDS_CSUM:
        return frame
    at = start + offset
    end = 14 + int.from_bytes(frame[16:18], "big")
    return frame[:at] + struct.pack("!H", ~total(frame[start:end]) & 0xFFFF) + frame[at + 2 :]


def judge(frame: bytes) -> tuple[str, str, str] | None:
    """Sender, kind and checksum errors of a TCP packet; None if the packet is not TCP."""
    if frame[12:14] != b"\x08\x00" or frame[23] != 6:
        return None
    l4 = 14 + (frame[14] & 15) * 4
    end = 14 + int.from_bytes(frame[16:18], "big")
    segment = frame[l4:end]
    wrong = "" if total(frame[14:l4]) == 0xFFFF else "IP"
    if total(frame[26:34] + struct.pack("!HH", 6, len(segment)) + segment) != 0xFFFF:
        wrong += "TCP"
    flags, payload = segment[13], len(segment) - (segment[12] >> 4) * 4
    kind = "syn" if flags & 2 else "data" if payload else "ack"
    return socket.inet_ntoa(frame[26:30]), kind, wrong


def main() -> None:
    seen: collections.Counter[tuple[str, str]] = collections.Counter()
    partial, wrong = 0, []
    for tap in passing(sys.argv[1], (SOL_PACKET, PACKET_VNET_HDR), last_look_s=LAST_LOOK_S):
        data = tap.recv(1 << 17)
        header, frame = data[: VNET.size], data[VNET.size :]
        found = judge(completed(header, frame)) if len(frame) >= 54 else None
        if found is None:
            continue
        seen[found[0], found[1]] += 1
        partial += header[0] & NEEDS_CSUM
        if found[2]:
            wrong.append(f"{found}: {header.hex()} {frame[:74].hex()}")
    result = {f"{source} {kind}": count for (source, kind), count in sorted(seen.items())}
    print(json.dumps({"seen": result, "partial": partial, "wrong": len(wrong), "examples": wrong[:MAX_WRONG_SHOWN]}), flush=True)


if __name__ == "__main__":
    main()
