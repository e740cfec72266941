"""Transfer tool: server and client of a bulk transfer, and a watcher of one metric, run inside a namespace. Standard library only.

transfer_tool.py serve PORT [--congestion NAME] [--mptcp] [--rate BYTES] [--text]
                                send random bytes (--text: source code) to each client until it closes, at most BYTES a second
transfer_tool.py fetch ADDRESS PORT SECONDS [--mptcp]
                                receive for SECONDS, counted from before the connect; samples as JSON
transfer_tool.py peak URL METRIC SECONDS
                                highest sampled value of a metric, as JSON
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

IPPROTO_MPTCP = 262  # linux/in.h; Python 3.11 does not name it
SO_MAX_PACING_RATE = 47  # asm-generic/socket.h; Python 3.11 does not name it
BLOCK_BYTES = 1 << 20
TEXT_BYTES = 8 << 20
SAMPLE_S = 0.1
WATCH_S = 0.25
STALL_S = 15.0
"""A transfer without a byte for this time has failed, because no path of the benchmarks takes longer to recover."""


def tcp_socket(mptcp: bool) -> socket.socket:
    """A TCP or MPTCP socket."""
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP if mptcp else 0)


def source_code() -> bytes:
    """Compressible data: Python's standard modules, ordered by name, up to TEXT_BYTES."""
    block = b""
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        block += path.read_bytes()
        if len(block) >= TEXT_BYTES:
            break
    return block[:TEXT_BYTES]


def serve(port: int, congestion: str, mptcp: bool, rate: int, block: bytes) -> None:
    """Serve until killed."""
    listener = tcp_socket(mptcp)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", port))
    listener.listen(16)
    while True:
        connection, _ = listener.accept()
        if congestion:  # on accept, a route's congestion control replaces a setting of the listener, so set it on the connection
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        if rate:
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
        threading.Thread(target=send_forever, args=(connection, block), daemon=True).start()


def send_forever(connection: socket.socket, block: bytes) -> None:
    """Send until the client closes the connection."""
    with connection, contextlib.suppress(OSError):
        while True:
            connection.sendall(block)


def fetch(address: str, port: int, seconds: float, mptcp: bool) -> dict[str, object]:
    """Sample time and received bytes; time 0 is before the connect. `error` has the reason of an early end."""
    began = time.monotonic()
    samples, error = [(0.0, 0)], ""
    try:
        with tcp_socket(mptcp) as connection:
            connection.settimeout(STALL_S)
            connection.connect((address, port))
            for at, received in receive(connection, began, seconds):
                samples.append((round(at, 4), received))
    except OSError as failed:
        error = str(failed) or type(failed).__name__
    if not error and samples[-1][0] < seconds:
        error = "the server closed the connection"
    return {"samples": samples, "error": error}


def receive(connection: socket.socket, began: float, seconds: float) -> Iterator[tuple[float, int]]:
    """Yield one sample for the first bytes, one every SAMPLE_S, and one at the end."""
    buffer, received, due = bytearray(BLOCK_BYTES), 0, 0.0
    while got := connection.recv_into(buffer):
        received += got
        at = time.monotonic() - began
        if at >= due or at >= seconds:
            yield at, received
            due = at + SAMPLE_S
        if at >= seconds:
            return


def peak(url: str, metric: str, seconds: float) -> dict[str, float]:
    """Poll a metric and keep its highest value."""
    highest, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            with urllib.request.urlopen(url, timeout=2) as answer:
                page = answer.read().decode()
            highest = max([highest, *(float(line.split()[1]) for line in page.splitlines() if line.split(" ")[0] == metric)])
        time.sleep(WATCH_S)
    return {"peak": highest}


def main() -> None:
    """Run a command; print one line of JSON, if it has a result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("serve")
    server.add_argument("port", type=int)
    server.add_argument("--congestion", default="")
    server.add_argument("--rate", type=int, default=0)
    server.add_argument("--text", action="store_true")
    client = commands.add_parser("fetch")
    client.add_argument("address")
    client.add_argument("port", type=int)
    client.add_argument("seconds", type=float)
    for end in (server, client):
        end.add_argument("--mptcp", action="store_true")
    watch = commands.add_parser("peak")
    watch.add_argument("url")
    watch.add_argument("metric")
    watch.add_argument("seconds", type=float)
    a = parser.parse_args()
    if a.command == "serve":
        serve(a.port, a.congestion, a.mptcp, a.rate, source_code() if a.text else os.urandom(BLOCK_BYTES))
    elif a.command == "fetch":
        print(json.dumps(fetch(a.address, a.port, a.seconds, a.mptcp)))
    else:
        print(json.dumps(peak(a.url, a.metric, a.seconds)))


if __name__ == "__main__":
    main()
