"""Measure handshakes at the socket API. Run inside a host's namespace; the last line printed is JSON.

handshakes.py serve PORT BACKLOG BUSY_S    listen; accept nothing for BUSY_S after the first connection, then serve all connections
handshakes.py connect ADDRESS PORT COUNT   open COUNT connections simultaneously: [{"error", "errno", "connect_s", "first_byte_s"}, ...]
handshakes.py each ADDRESS PORT COUNT      the same with consecutive connections
handshakes.py scan ADDRESS FIRST LAST      connect to each port: {"open": [...], "refused": count, "other": [...]}
"""

import json
import socket
import sys
import threading
import time

PATIENCE_S = 30.0


def serve(port: int, backlog: int, busy_s: float) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", port))
    listener.listen(backlog)
    while busy_s:
        first, _ = listener.accept()
        if first.recv(2):  # a client that only probes the port sends nothing
            time.sleep(busy_s)
            first.sendall(bytes(1000))
            busy_s = 0
        first.close()
    while True:
        threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()


def answer(connection: socket.socket) -> None:
    with connection:
        try:
            if connection.recv(2):
                connection.sendall(bytes(1000))
        except OSError:
            pass


def connect(address: str, port: int) -> dict:
    seen: dict = {"error": "", "errno": 0, "connect_s": 0.0, "first_byte_s": 0.0}
    # The first call imports the codec of host names, which takes up to 6 ms and must not be measured.
    socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    began = time.monotonic()
    try:
        with socket.create_connection((address, port), PATIENCE_S) as connection:
            seen["connect_s"] = time.monotonic() - began
            connection.sendall(b"hi")
            if not connection.recv(1):
                seen["error"] = "end of file"
    except OSError as error:
        seen["error"], seen["errno"] = type(error).__name__, error.errno
    seen["first_byte_s"] = time.monotonic() - began
    return seen


def at_once(address: str, port: int, count: int) -> list[dict]:
    seen: list[dict] = []
    threads = [threading.Thread(target=lambda: seen.append(connect(address, port))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def scan(address: str, first: int, last: int) -> dict:
    found: dict = {"open": [], "refused": 0, "other": []}
    for port in range(first, last + 1):
        try:
            socket.create_connection((address, port), PATIENCE_S).close()
            found["open"].append(port - first)
        except ConnectionRefusedError:
            found["refused"] += 1
        except OSError as error:
            found["other"].append(type(error).__name__)
    return found


def main(what: str, where: str, *numbers: str) -> None:
    if what == "serve":
        serve(int(where), int(numbers[0]), float(numbers[1]))
    elif what == "scan":
        print(json.dumps(scan(where, int(numbers[0]), int(numbers[1]))))
    elif what == "each":
        print(json.dumps([connect(where, int(numbers[0])) for _ in range(int(numbers[1]))]))
    else:
        print(json.dumps(at_once(where, int(numbers[0]), int(numbers[1]))))


main(*sys.argv[1:])
