"""The process itself over loopback sockets: what hostile switches may do to it, the event stream, keys and tokens that change, its end."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from controller_lab import SITE_KEYS, TOKEN, document

WAIT_S = 30.0

HELLO = struct.pack("!BBHI", 4, 0, 8, 1)


def wait(what: str, ready: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_S
    while not (got := ready()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return got


class Process:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.openflow, self.api = _free_port(), _free_port()
        (folder / "keys").mkdir()
        (folder / "keys" / "site-1-1").write_text(SITE_KEYS[1].hex())
        (folder / "token").write_text(TOKEN)
        (folder / "config.json").write_text(json.dumps(document()))
        command = [sys.executable, "-m", "sos_controller", "--config", str(folder / "config.json"), "--keys", str(folder / "keys")]
        command += ["--token-file", str(folder / "token"), "--log-format", "json", "--state", str(folder / "state")]
        command += ["--openflow-listen", f"127.0.0.1:{self.openflow}", "--api-listen", f"127.0.0.1:{self.api}"]
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

    def switch(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.openflow), WAIT_S)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines() if line.startswith("{")]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    made = Process(tmp_path_factory.mktemp("controller"))
    try:
        wait("the controller", made.up)
        yield made
    finally:
        made.process.kill()
        made.process.wait(WAIT_S)


def receive(sock: socket.socket, kind: int) -> bytes:
    """The next message of a type."""
    while True:
        head = read(sock, 8)
        rest = read(sock, struct.unpack_from("!H", head, 2)[0] - 8)
        if head[1] == kind:
            return head + rest


def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        assert chunk, "closed"
        data += chunk
    return data


def handshake(process: Process, dpid: int, ports: int = 1) -> socket.socket:
    sock = process.switch()
    sock.sendall(HELLO)
    request = receive(sock, 5)
    sock.sendall(struct.pack("!BBHIQIBB2xII", 4, 6, 32, struct.unpack_from("!I", request, 4)[0], dpid, 0, 254, 0, 0, 0))
    request = receive(sock, 18)
    body = b"".join(
        struct.pack("!I4x6s2x16sIIIIIIII", n, b"\x02\0\0\0\0\1", b"p%d" % n, 0, 0, 0, 0, 0, 0, 0, 0) for n in range(1, ports + 1)
    )
    sock.sendall(struct.pack("!BBHIHH4x", 4, 19, 16 + len(body), struct.unpack_from("!I", request, 4)[0], 13, 0) + body)
    return sock


@pytest.mark.parametrize(
    "message",
    [
        struct.pack("!BBHI", 4, 0, 0, 1),
        struct.pack("!BBHI", 4, 0, 7, 1),
        struct.pack("!BBHIHH", 4, 0, 12, 1, 1, 0),
        struct.pack("!BBHI", 9, 0, 8, 1),
        HELLO + struct.pack("!BBHI", 4, 6, 8, 1),
        HELLO + struct.pack("!BBHI", 4, 19, 8, 1),
        HELLO + struct.pack("!BBHIHH4x", 4, 19, 17, 1, 13, 0) + b"\0",
        HELLO + struct.pack("!BBHIHH", 4, 1, 12, 1, 0, 0),
        bytes(64),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_nonsense_in_the_handshake_ends_that_connection_only(process: Process, message: bytes) -> None:
    sock = process.switch()
    sock.settimeout(WAIT_S)
    sock.sendall(message)
    assert_closed(sock)
    assert process.up()


@pytest.mark.parametrize(
    "message",
    [
        struct.pack("!BBHI", 4, 10, 12, 0) + bytes(4),
        struct.pack("!BBHIIHBBQHH", 4, 10, 28, 0, 0, 0, 0, 0, 0, 1, 0) + bytes(8),
        struct.pack("!BBHI", 4, 12, 8, 0),
        struct.pack("!BBHI", 4, 1, 8, 0),
        struct.pack("!BBHI", 4, 19, 8, 0),
        struct.pack("!BBHI", 4, 10, 0, 0),
    ],
)
def test_nonsense_from_a_connected_switch_ends_that_connection_only(process: Process, message: bytes) -> None:
    sock = handshake(process, 0x1000000000001)
    receive(sock, 18)
    sock.sendall(message)
    assert_closed(sock)
    assert process.up()


def test_zero_lengths_in_the_entries_a_switch_tells_do_not_hang(process: Process) -> None:
    sock = handshake(process, 0x1000000000001)
    request = receive(sock, 18)
    body = bytes(64)
    sock.sendall(struct.pack("!BBHIHH4x", 4, 19, 16 + len(body), struct.unpack_from("!I", request, 4)[0], 1, 0) + body)
    assert_closed(sock)
    assert process.up()


def assert_closed(sock: socket.socket) -> None:
    try:
        while sock.recv(65536):
            continue
    except ConnectionResetError:
        return
    finally:
        sock.close()


def test_a_newer_connection_of_a_datapath_replaces_the_older(process: Process) -> None:
    one = handshake(process, 0x2000000000002)
    receive(one, 18)
    other = handshake(process, 0x2000000000002)
    receive(other, 18)
    assert_closed(one)
    assert connected(process, "edge2") == [True]
    other.close()
    wait(
        "edge2 to be gone",
        lambda: not any(d["connected"] for d in json.loads(process.ask("/v1/status")[1])["datapaths"] if d["name"] == "edge2"),
    )


def connected(process: Process, name: str) -> list[bool]:
    return [d["connected"] for d in json.loads(process.ask("/v1/status")[1])["datapaths"] if d["name"] == name]


def test_unclaimed_datapaths_are_listed_and_sent_nothing(process: Process) -> None:
    sock = handshake(process, 0xFF)
    wait("the stranger", lambda: json.loads(process.ask("/v1/status")[1])["unclaimed"] == ["00000000000000ff"])
    sock.settimeout(3)
    kinds = set()
    try:
        while True:
            head = read(sock, 8)
            kinds.add(head[1])
            read(sock, struct.unpack_from("!H", head, 2)[0] - 8)
    except TimeoutError:
        assert kinds <= {2, 9}, "an echo or the switch configuration at most"
    sock.close()


def test_events_are_streamed(process: Process) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", process.api, timeout=WAIT_S)
    connection.request("GET", "/v1/events")
    answer = connection.getresponse()
    assert answer.status == 200 and answer.readline() == b"\n"
    sock = handshake(process, 0x3000000000003)
    line = json.loads(answer.readline())
    assert line["kind"] == "datapath" and line["state"] == "connected" and line["dpid"] == "0003000000000003"
    sock.close()
    connection.close()
    wait("the reader to be forgotten", process.up)


def test_tokens_and_keys_are_read_again(process: Process) -> None:
    body = json.dumps(document(2)).encode()
    assert process.ask("/v1/config", "PUT", body, "another")[0] == 401
    (process.folder / "token").write_text("another\n")
    wait("the new token", lambda: process.ask("/v1/config", "PUT", body, "another")[0] == 200)
    assert process.ask("/v1/config", "PUT", body, TOKEN)[0] == 401
    (process.folder / "keys" / "site-2-1").write_text("nonsense")
    wait("the complaint", lambda: [line for line in process.log() if "keeping the last good" in line["message"]])
    (process.folder / "keys" / "site-2-1").write_text(SITE_KEYS[2].hex())
    wait("the new key", lambda: [line for line in process.log() if line["message"] == "keys of 2 sites"])


def test_logs_hold_no_secrets_and_no_bugs(process: Process) -> None:
    text = (process.folder / "log").read_text()
    assert TOKEN not in text and SITE_KEYS[1].hex() not in text and "another" not in text
    assert not [line for line in process.log() if "exception" in line or "bug:" in line["message"]]
    assert "Traceback" not in text


def test_it_ends_when_told_to(process: Process) -> None:
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(WAIT_S) == 0
