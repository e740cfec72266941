"""TCP server and client that use rare features of TCP. Run inside a host's namespace; each prints its observations as one JSON line.

options.py serve CASE PORT
options.py ask CASE ADDRESS PORT
"""

import json
import socket
import sys
import time
from collections.abc import Callable

PATIENCE_S = 20.0
TCP_INFO, TCP_FASTOPEN, MSG_FASTOPEN = 11, 23, 0x2000_0000
# tcpi_options (linux/tcp.h)
TIMESTAMPS, SACK, WINDOW_SCALE, ECN, SYN_DATA = 1, 2, 4, 8, 32
TCP_REPAIR = 19
COMMON = ["timestamps", "sack", "window scale"]


def bits(host: socket.socket) -> int:
    """Options of a connection as bits of tcpi_options."""
    return host.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 8)[5]


def options(host: socket.socket) -> list[str]:
    """Names of the options that the handshake of a connection negotiated."""
    return [name for name, bit in zip(COMMON, (TIMESTAMPS, SACK, WINDOW_SCALE), strict=True) if bits(host) & bit]


def connect(address: str, port: int) -> socket.socket:
    return socket.create_connection((address, port), PATIENCE_S)


def listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", port))
    listener.settimeout(PATIENCE_S)
    return listener


def accept(port: int) -> socket.socket:
    with listen(port) as listener:
        listener.listen(1)
        host, _ = listener.accept()
    host.settimeout(PATIENCE_S)
    return host


def everything(host: socket.socket) -> str:
    """All received bytes, followed by `eof` or the error's name."""
    heard = b""
    try:
        while piece := host.recv(1 << 16):
            heard += piece
    except OSError as error:
        return heard.decode() + f" {type(error).__name__}"
    return heard.decode() + " eof"


# --- urgent data (MSG_OOB) between other data, read in line as RFC 6093 recommends ---


def serve_urgent(port: int) -> dict[str, object]:
    host = accept(port)
    host.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    heard = everything(host)
    host.sendall(b"done")
    host.close()
    return {"heard": heard}


def ask_urgent(address: str, port: int) -> dict[str, object]:
    host = connect(address, port)
    host.sendall(b"before")
    host.send(b"!", socket.MSG_OOB)
    time.sleep(0.1)
    host.sendall(b"after")
    host.shutdown(socket.SHUT_WR)
    return {"heard": everything(host)}


# --- options of the handshake ---


def serve_handshake(port: int) -> dict[str, object]:
    host = accept(port)
    agreed, heard = options(host), everything(host)
    host.close()
    return {"options": agreed, "heard": heard}


def ask_handshake(address: str, port: int) -> dict[str, object]:
    host = connect(address, port)
    agreed = options(host)
    host.sendall(b"request")
    host.shutdown(socket.SHUT_WR)
    return {"options": agreed, "heard": everything(host)}


# --- TCP Fast Open: the first connection requests a cookie, the second has data in its SYN ---


def serve_fast_open(port: int) -> dict[str, object]:
    heard = []
    with listen(port) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN, 16)
        listener.listen(16)
        for _ in range(2):
            host, _ = listener.accept()
            heard.append(everything(host))
            host.sendall(b"answer")
            host.close()
    return {"heard": heard}


def ask_fast_open(address: str, port: int) -> dict[str, object]:
    heard, syn_data = [], []
    for attempt in range(2):
        host = socket.socket()
        host.sendto(b"in the SYN", MSG_FASTOPEN, (address, port))
        host.settimeout(PATIENCE_S)
        host.sendall(f" and more {attempt}".encode())
        host.shutdown(socket.SHUT_WR)
        heard.append(everything(host))
        syn_data.append(bool(bits(host) & SYN_DATA))
        host.close()
    return {"heard": heard, "syn_data": syn_data}


# --- half-close: the server keeps sending to a half-closed client, which then vanishes, so that later segments draw a reset ---


def vanish(host: socket.socket) -> None:
    """Close without FIN or reset: later segments draw a reset (TCP_REPAIR, linux/tcp.h)."""
    host.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    host.close()


def serve_half_closed(port: int) -> dict[str, object]:
    host = accept(port)
    heard = everything(host)
    error = ""
    try:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            host.sendall(b"x" * 100)
            time.sleep(0.05)
    except OSError as raised:
        error = type(raised).__name__
    return {"heard": heard, "error": error}


def ask_half_closed(address: str, port: int) -> dict[str, object]:
    host = connect(address, port)
    host.sendall(b"request")
    host.shutdown(socket.SHUT_WR)
    first = host.recv(100)
    time.sleep(0.5)
    vanish(host)
    return {"first": len(first) > 0}


# --- ECN: requested by the client; each leg negotiates separately ---


def serve_ecn(port: int) -> dict[str, object]:
    host = accept(port)
    heard, ecn = everything(host), bool(bits(host) & ECN)
    host.close()
    return {"heard": heard, "ecn": ecn}


def ask_ecn(address: str, port: int) -> dict[str, object]:
    host = connect(address, port)
    ecn = bool(bits(host) & ECN)
    host.sendall(b"request")
    host.shutdown(socket.SHUT_WR)
    return {"heard": everything(host), "ecn": ecn}


SERVE: dict[str, Callable[[int], dict[str, object]]] = {
    "urgent": serve_urgent,
    "handshake": serve_handshake,
    "fast-open": serve_fast_open,
    "half-closed": serve_half_closed,
    "ecn": serve_ecn,
}
ASK: dict[str, Callable[[str, int], dict[str, object]]] = {
    "urgent": ask_urgent,
    "handshake": ask_handshake,
    "fast-open": ask_fast_open,
    "half-closed": ask_half_closed,
    "ecn": ask_ecn,
}


def main() -> None:
    role, case, *rest = sys.argv[1:]
    seen = SERVE[case](int(rest[0])) if role == "serve" else ASK[case](rest[0], int(rest[1]))
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
