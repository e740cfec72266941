"""Programs for address conflict detection (RFC 5227): `connect` connects to an address; `probe` probes the address and prints the MAC
addresses of conflicting senders.
"""

import contextlib
import socket
import sys
import time

ARP = 0x0806
FRAME = b"\x08\x06\0\1\x08\0\6\4\0\1"


def connect(address: str, port: int) -> None:
    for _ in range(20):
        with socket.socket() as client, contextlib.suppress(OSError):
            client.settimeout(0.4)
            client.connect((address, port))
        time.sleep(0.2)


def probe(address: str) -> None:
    """Send three ARP probes one second apart, and listen for five seconds in total."""
    taken = socket.inet_aton(address)
    end, following, sent = time.monotonic() + 5, time.monotonic(), 0
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ARP)) as raw:
        raw.bind(("eth0", ARP))
        me = raw.getsockname()[4]
        while time.monotonic() < end:
            if sent < 3 and time.monotonic() >= following:
                raw.send(b"\xff" * 6 + me + FRAME + me + bytes(10) + taken)
                sent, following = sent + 1, time.monotonic() + 1
            raw.settimeout(0.05)
            try:
                frame = raw.recv(99)
            except OSError:
                continue
            who, sender, target = frame[22:28], frame[28:32], frame[38:42]
            if who != me and (sender == taken or (frame[20:22] == b"\0\1" and sender == bytes(4) and target == taken)):
                print(who.hex(":"), flush=True)


if sys.argv[1] == "connect":
    connect(sys.argv[2], int(sys.argv[3]))
else:
    probe(sys.argv[2])
