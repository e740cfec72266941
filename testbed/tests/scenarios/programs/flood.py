"""Send frames at a rate. Run inside a host's namespace; the last line printed is the number of frames.

flood.py syn RATE SECONDS SERVER MAC PORT   SYNs to a port of a server, at this MAC address, from random ports of a hundred made-up clients
flood.py macs RATE COUNT                    broadcasts from COUNT made-up MAC addresses
"""

import random
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

CLIENTS = struct.unpack("!I", socket.inet_aton("10.0.0.16"))[0]
STEP_S = 0.002


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def syn(server: bytes, ether: bytes, port: int) -> bytes:
    """Return a SYN from a made-up client, as an Ethernet frame."""
    client = struct.pack("!I", CLIENTS + random.randrange(100))
    tcp = bytearray(struct.pack("!HHIIBBHHH", random.randrange(1024, 65536), port, random.getrandbits(32), 0, 0x50, 2, 65535, 0, 0))
    tcp[16:18] = struct.pack("!H", checksum(client + server + struct.pack("!HH", 6, len(tcp)) + tcp))
    ip = bytearray(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0, client, server))
    ip[10:12] = struct.pack("!H", checksum(bytes(ip)))
    return ether + b"\x08\x00" + bytes(ip) + bytes(tcp)


def macs(count: int) -> Iterator[bytes]:
    """Yield a broadcast of an unused EtherType (0x88b5, IEEE 802 local experimental) from each MAC address."""
    for number in range(count):
        yield b"\xff" * 6 + b"\x06\x66" + struct.pack("!I", number) + b"\x88\xb5" + bytes(46)


def send(frames: list[bytes], rate: float, count: int) -> int:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind(("eth0", 0))
        began, sent = time.monotonic(), 0
        while sent < count:
            due = min(count, int((time.monotonic() - began) * rate))
            while sent < due:
                out.send(frames[sent % len(frames)])
                sent += 1
            time.sleep(STEP_S)
    return sent


def main(kind: str, *arguments: str) -> int:
    if kind == "macs":
        frames = list(macs(int(arguments[1])))
        return send(frames, float(arguments[0]), len(frames))
    rate, seconds, server, mac, port = arguments
    own = Path("/sys/class/net/eth0/address").read_text().strip()
    ether = bytes.fromhex(mac.replace(":", "") + own.replace(":", ""))
    frames = [syn(socket.inet_aton(server), ether, int(port)) for _ in range(20_000)]
    return send(frames, float(rate), int(float(rate) * float(seconds)))


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
