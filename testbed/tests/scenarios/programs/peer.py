"""TCP server and client that report the end of a connection. Run inside a host's namespace; prints one JSON line.

    peer.py serve PORT BYTES [RATE]   send BYTES (RATE bytes a second, 0 = unlimited) to one client, then close
    peer.py noise PORT BYTES          the same with incompressible bytes and without a rate
    peer.py steady PORT RATE SECONDS  send RATE bytes a second to one client, evenly
    peer.py fetch ADDRESS PORT        read until the end of the stream
    peer.py echo PORT                 receive until the client has finished sending, then send the same number of bytes
    peer.py ask ADDRESS PORT BYTES    send BYTES, finish sending, read the answer
    peer.py many ADDRESS PORT PATH COUNT HOLD
                                      open COUNT connections, request PATH from the web server on each, keep all open for HOLD seconds

`end` is `eof` (the peer closed cleanly), `reset`, or the error's name.
"""

import hashlib
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable

CHUNK = 65536


def pattern(offset: int, size: int) -> bytes:
    """Bytes that depend on their offset, so that the digest reveals loss and duplication."""
    return (hashlib.sha256((offset // CHUNK).to_bytes(8)).digest() * (CHUNK // 32))[:size]


def noise(_offset: int, size: int) -> bytes:
    """Incompressible bytes."""
    return os.urandom(size)


def send(connection: socket.socket, total: int, rate: int, content: Callable[[int, int], bytes] = pattern) -> dict:
    """Send `total` bytes of this content; returns the outcome."""
    sent, started = 0, time.monotonic()
    try:
        while sent < total:
            chunk = content(sent, min(CHUNK, total - sent))
            connection.sendall(chunk)
            sent += len(chunk)
            if rate:
                time.sleep(max(0.0, started + sent / rate - time.monotonic()))
        return {"sent": sent, "send_end": "ok"}
    except OSError as error:
        return {"sent": sent, "send_end": name(error)}


def steady(connection: socket.socket, rate: int, seconds: float) -> dict:
    """Send small pieces at a constant rate, so that each second carries equally many bytes."""
    sent, started = 0, time.monotonic()
    try:
        while (now := time.monotonic() - started) < seconds:
            due = int(now * rate) - sent
            connection.sendall(bytes(due))
            sent += due
            time.sleep(0.01)
        return {"sent": sent, "send_end": "ok"}
    except OSError as error:
        return {"sent": sent, "send_end": name(error)}


def receive(connection: socket.socket) -> dict:
    """Read to the end; returns number of bytes, digest, kind of end, and longest pause."""
    got, digest, pause, last = 0, hashlib.sha256(), 0.0, 0.0
    while True:
        try:
            data, end = connection.recv(1 << 20), "eof"
        except OSError as error:
            data, end = b"", name(error)
        now = time.monotonic()
        if not data:
            return {"bytes": got, "end": end, "sha256": digest.hexdigest(), "pause_s": round(pause, 3)}
        pause, last = max(pause, now - last if last else 0.0), now
        got += len(data)
        digest.update(data)


def endpoint(address: tuple) -> str:
    """Address and port as text, such as `10.0.0.11:40000`."""
    return f"{address[0]}:{address[1]}"


def name(error: OSError) -> str:
    """Report name of an error; `reset` for the errors that a killed peer causes."""
    return "reset" if isinstance(error, ConnectionResetError | BrokenPipeError) else type(error).__name__


def accept(port: int) -> tuple[socket.socket, tuple]:
    """Accept one client on a new listener."""
    with socket.create_server(("0.0.0.0", port)) as listener:
        listener.settimeout(60)
        return listener.accept()


def fetch(address: str, port: int) -> dict:
    """Connect and read to the end."""
    try:
        connection = socket.create_connection((address, port), timeout=60)
    except OSError as error:  # including a reset before the first read
        return {"own": "", "bytes": 0, "end": name(error)}
    return {"own": endpoint(connection.getsockname()), **receive(connection)}


def many(address: str, port: int, path: str, count: int, hold_s: float) -> dict:
    """Request a path on many simultaneous connections; returns the most frequent answer and its count."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 256, max(count + 256, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    connections, answers = [], {}
    for _ in range(count):
        connections.append(socket.create_connection((address, port), timeout=60))
        connections[-1].sendall(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    for connection in connections:
        body = ask_body(connection)
        answers[body] = answers.get(body, 0) + 1
    time.sleep(hold_s)
    for connection in connections:
        connection.close()
    (body, right), *_ = sorted(answers.items(), key=lambda item: -item[1])
    return {"right": right, "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}


def ask_body(connection: socket.socket) -> bytes:
    """Body of one HTTP response with a Content-Length; the error's name if the connection broke."""
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            data += connection.recv(65536) or b"\r\n\r\n"
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        while len(body) < int(lengths[0] if lengths else 0) and (more := connection.recv(65536)):
            body += more
    except OSError as error:
        return name(error).encode()
    return body


def main() -> None:
    """See the module's docstring."""
    command, *rest = sys.argv[1:]
    if command == "serve":
        connection, client = accept(int(rest[0]))
        result = {"client": endpoint(client), **send(connection, int(rest[1]), int(rest[2]) if len(rest) > 2 else 0)}
    elif command == "noise":
        connection, client = accept(int(rest[0]))
        result = {"client": endpoint(client), **send(connection, int(rest[1]), 0, noise)}
    elif command == "steady":
        connection, client = accept(int(rest[0]))
        result = {"client": endpoint(client), **steady(connection, int(rest[1]), float(rest[2]))}
    elif command == "echo":
        connection, client = accept(int(rest[0]))
        result = {"client": endpoint(client), **receive(connection)}
        result |= send(connection, result["bytes"], 0)
    elif command == "fetch":
        result = fetch(rest[0], int(rest[1]))
    elif command == "many":
        result = many(rest[0], int(rest[1]), rest[2], int(rest[3]), float(rest[4]))
    elif command == "ask":
        connection = socket.create_connection((rest[0], int(rest[1])), timeout=60)
        result = send(connection, int(rest[2]), 0)
        connection.shutdown(socket.SHUT_WR)
        result |= receive(connection)
    else:
        sys.exit(f"unknown: {command}")
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
