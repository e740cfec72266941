"""Send TCP acknowledgements to many addresses and ports at a fixed rate, as `nmap -sA` does. Run inside a host's namespace.

    ack_scan.py INTERFACE TARGET_MAC SOURCE FIRST_TARGET ADDRESSES FIRST_PORT PORTS SECONDS RATE {one|many}

`one` sends all packets from one source port, as scanners do; `many` uses another source port for each packet. The last line is the number
of packets sent.
"""

import contextlib
import socket
import struct
import sys
import time
from ipaddress import IPv4Address

ACK, SOURCE_PORT, FIRST_SOURCE_PORT, SOURCE_PORTS = 0x10, 40_000, 20_000, 30_000
TICK_S = 0.001


def checksum(data: bytes) -> int:
    """Internet checksum of an even number of bytes (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def frame(link: bytes, source: bytes, target: bytes, ports: tuple[int, int]) -> bytes:
    """An Ethernet frame with an acknowledgement of no connection."""
    tcp = struct.pack("!HHIIBBHHH", *ports, 1, 1, 5 << 4, ACK, 64240, 0, 0)
    tcp = tcp[:16] + struct.pack("!H", checksum(source + target + struct.pack("!HH", 6, len(tcp)) + tcp)) + tcp[18:]
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0, source, target)
    return link + ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + tcp


def main(interface: str, mac: str, source: str, first: str, *numbers: str) -> None:
    addresses, first_port, ports = (int(word) for word in numbers[:3])
    seconds, rate, many = float(numbers[3]), int(numbers[4]), numbers[5] == "many"
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    raw.bind((interface, 0))
    link = bytes.fromhex(mac.replace(":", "")) + raw.getsockname()[4] + b"\x08\x00"
    own, base = IPv4Address(source).packed, int(IPv4Address(first))
    began, sent = time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        while sent < now * rate:
            target = IPv4Address(base + sent % addresses).packed
            port = first_port + sent // addresses % ports
            client = FIRST_SOURCE_PORT + sent % SOURCE_PORTS if many else SOURCE_PORT
            with contextlib.suppress(OSError):  # a full queue of the interface: this packet is lost
                raw.send(frame(link, own, target, (client, port)))
            sent += 1
            if sent % 256 == 0 and time.monotonic() - began >= seconds:
                break
        time.sleep(TICK_S)
    print(sent)


main(*sys.argv[1:])
