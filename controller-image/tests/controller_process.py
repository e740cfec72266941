"""Controller process with loopback sockets, and the switch side of the OpenFlow handshake."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controller_lab import SITE_KEYS, TOKEN, document

WAIT_S = 30.0

ECHO_REQUEST, ECHO_REPLY = 2, 3
ANSWERS = {ECHO_REQUEST: ECHO_REPLY, 20: 21}
HELLO = struct.pack("!BBHI", 4, 0, 8, 1)


def wait(what: str, ready: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_S
    while not (got := ready()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return got


class Process:
    def __init__(self, folder: Path, made: dict[str, Any] | None = None, *arguments: str) -> None:
        self.folder = folder
        self.openflow, self.api = _free_port(), _free_port()
        (folder / "keys").mkdir()
        (folder / "keys" / "site-1-1").write_text(SITE_KEYS[1].hex())
        (folder / "token").write_text(TOKEN)
        (folder / "config.json").write_text(json.dumps(made or document()))
        command = [sys.executable, "-m", "sos_controller", "--config", str(folder / "config.json"), "--keys", str(folder / "keys")]
        command += ["--token-file", str(folder / "token"), "--log-format", "json", "--state", str(folder / "state")]
        command += ["--openflow-listen", f"127.0.0.1:{self.openflow}", "--api-listen", f"127.0.0.1:{self.api}", *arguments]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, token: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.api, timeout=WAIT_S)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def up(self) -> bool:
        try:
            return self.ask("/healthz")[0] == 200
        except OSError:
            return False

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in self.ask("/metrics")[1].splitlines() if line.startswith(f"sos_controller_{name}")
        )

    def switch(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.openflow), WAIT_S)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines() if line.startswith("{")]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def receive(sock: socket.socket, kind: int) -> bytes:
    """Return the next message of a type."""
    while True:
        head = read(sock, 8)
        rest = read(sock, struct.unpack_from("!H", head, 2)[0] - 8)
        if head[1] == kind:
            return head + rest


def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        assert chunk, "connection closed"
        data += chunk
    return data


def handshake(process: Process, dpid: int, ports: int = 1, sock: socket.socket | None = None) -> socket.socket:
    sock = sock or process.switch()
    sock.sendall(HELLO)
    request = receive(sock, 5)
    sock.sendall(struct.pack("!BBHIQIBB2xII", 4, 6, 32, struct.unpack_from("!I", request, 4)[0], dpid, 0, 254, 0, 0, 0))
    request = receive(sock, 18)
    body = b"".join(
        struct.pack("!I4x6s2x16sIIIIIIII", n, b"\x02\0\0\0\0\1", b"p%d" % n, 0, 0, 0, 0, 0, 0, 0, 0) for n in range(1, ports + 1)
    )
    sock.sendall(struct.pack("!BBHIHH4x", 4, 19, 16 + len(body), struct.unpack_from("!I", request, 4)[0], 13, 0) + body)
    return sock


def assert_closed(sock: socket.socket) -> None:
    try:
        while sock.recv(65536):
            continue
    except ConnectionResetError:
        return
    finally:
        sock.close()


class Honest:
    """Well-behaved switch: completes the handshake, then answers echoes and barriers on its own thread until it is closed or `silent`."""

    def __init__(self, process: Process, dpid: int, sock: socket.socket | None = None) -> None:
        self.process = process
        self.sock = handshake(process, dpid, sock=sock)
        self.silent = self.closed = False
        self.heard: list[int] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Honest:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_S)
        self.sock.close()

    def serves(self) -> None:
        """Assert that the controller answers both this switch and API requests."""
        before = self.heard.count(ECHO_REPLY)
        self.sock.sendall(struct.pack("!BBHI", 4, ECHO_REQUEST, 8, 99))
        wait("the echo reply to a well-behaved switch", lambda: self.heard.count(ECHO_REPLY) > before)
        assert not self.closed and self.process.up()

    def _serve(self) -> None:
        try:
            while True:
                head = read(self.sock, 8)
                read(self.sock, struct.unpack_from("!H", head, 2)[0] - 8)
                self.heard.append(head[1])
                if not self.silent and head[1] in ANSWERS:
                    self.sock.sendall(struct.pack("!BBH", 4, ANSWERS[head[1]], 8) + head[4:8])
        except (OSError, AssertionError, ValueError):  # ValueError: of a TLS socket that was shut down
            self.closed = True


def connected(process: Process, name: str) -> list[bool]:
    return [d["connected"] for d in json.loads(process.ask("/v1/status")[1])["datapaths"] if d["name"] == name]
