"""TCP server and client that change DSCP and TTL during the connection. Run inside a host's namespace; prints one JSON line:
the marks of received segments.

    marks.py serve PORT
    marks.py ask ADDRESS PORT
"""

import json
import socket
import struct
import sys

INTERFACE = "eth0"
ETH_P_IP = 0x0800
PATIENCE_S = 20.0
# Messages of each host with DSCP and TTL. The client sends first, and its FIN has different marks (LAST).
CLIENT = [(b"as the SYN", 16, 70), (b"another DSCP", 46, 70), (b"another TTL", 46, 200), (b"the first again", 16, 70)]
SERVER = [(b"its own", 10, 128), (b"its own still", 10, 128), (b"as the client", 46, 70), (b"none", 0, 64)]
LAST = (8, 99)


def mark(host: socket.socket, dscp: int, ttl: int) -> None:
    host.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
    host.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)


def hear(host: socket.socket, words: bytes) -> None:
    host.settimeout(PATIENCE_S)
    heard = b""
    while len(heard) < len(words):
        piece = host.recv(len(words) - len(heard))
        if not piece:
            break
        heard += piece
    assert heard == words, heard


def serve(port: int) -> socket.socket:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        listener.listen(1)
        listener.settimeout(PATIENCE_S)
        host, _ = listener.accept()
    for (asked, _, _), (words, dscp, ttl) in zip(CLIENT, SERVER, strict=True):
        mark(host, dscp, ttl)
        hear(host, asked)
        host.sendall(words)
    hear(host, b"")
    assert host.recv(1) == b""
    return host


def ask(address: str, port: int) -> socket.socket:
    host = socket.socket()
    mark(host, *CLIENT[0][1:])
    host.connect((address, port))
    for (words, dscp, ttl), (answer, _, _) in zip(CLIENT, SERVER, strict=True):
        mark(host, dscp, ttl)
        host.sendall(words)
        hear(host, answer)
    mark(host, *LAST)
    host.shutdown(socket.SHUT_WR)
    host.settimeout(PATIENCE_S)
    assert host.recv(1) == b""
    return host


def marks(frame: bytes, port: int) -> tuple[str, int, int] | None:
    """Message and marks of a segment of the connection; None for bare acknowledgements and for other packets."""
    l4 = 14 + (frame[14] & 15) * 4
    if frame[23] != socket.IPPROTO_TCP or port not in struct.unpack_from("!HH", frame, l4):
        return None
    payload = frame[l4 + (frame[l4 + 12] >> 4) * 4 : 14 + int.from_bytes(frame[16:18], "big")]
    said = payload.decode() if payload else "SYN" if frame[l4 + 13] & 0x02 else "FIN" if frame[l4 + 13] & 0x01 else ""
    return (said, frame[15] >> 2, frame[22]) if said else None


def main() -> None:
    port = int(sys.argv[-1])
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP)) as tap:
        tap.bind((INTERFACE, ETH_P_IP))
        tap.setblocking(False)
        host = serve(port) if sys.argv[1] == "serve" else ask(sys.argv[2], port)
        seen = {}
        while True:
            try:
                frame, (*_, kind, _, _) = tap.recvfrom(1 << 16)
            except BlockingIOError:
                break
            found = marks(frame, port) if kind != socket.PACKET_OUTGOING else None
            if found is not None:
                seen[found[0]] = found[1:]
        host.close()
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
