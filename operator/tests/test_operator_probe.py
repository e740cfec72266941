"""What `helm test` runs: it moves bytes, and it can fail."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from operator_kube import free_port
from sos_operator import probe
from sos_operator.core.comparison import Transfer, compare


def transfer(**changed: object) -> Transfer:
    fields = {"port": 5001, "bytes": 1_000_000, "seconds": 1.0, "intact": True, "own": "10.0.0.11:4", "seen": "10.0.0.11:4"}
    return Transfer(**(fields | changed))  # type: ignore[arg-type]


PLAIN = transfer(listed=False)
COVERED = transfer(port=5000, bytes=4_000_000, listed=True)


def test_both_good_passes_and_says_by_how_much() -> None:
    verdict = compare(PLAIN, COVERED, 0.5)
    assert verdict.good
    assert "with the service 4.0 times as fast as plain TCP" in verdict.lines
    assert verdict.lines[-1] == "passed"


@pytest.mark.parametrize(
    ("plain", "covered", "words"),
    [
        (transfer(bytes=0), COVERED, "no bytes arrived"),
        (PLAIN, transfer(intact=False), "not those the server sent"),
        (PLAIN, transfer(seen="10.0.0.126:9", listed=True), "the server saw 10.0.0.126:9, the client is 10.0.0.11:4"),
        (transfer(listed=True), COVERED, "name a port that no SosService covers"),
        (PLAIN, transfer(bytes=4_000_000, listed=False), "was not accelerated"),
        (PLAIN, transfer(bytes=4_000_000, listed=None), "the controller did not answer"),
        (PLAIN, transfer(bytes=100_000, listed=True), "less than 0.5 times"),
    ],
)
def test_whatever_is_wrong_fails(plain: Transfer, covered: Transfer, words: str) -> None:
    verdict = compare(plain, covered, 0.5)
    assert not verdict.good
    assert words in "\n".join(verdict.lines)
    assert verdict.lines[-1] == "FAILED"


def test_what_was_not_tried_is_said() -> None:
    assert any("nothing compared" in line for line in compare(PLAIN, None, 0.5).lines)
    unasked = compare(PLAIN, transfer(listed=None), 0.5, asked=False)
    assert unasked.good
    assert any("no controller was asked" in line for line in unasked.lines)
    assert not compare(transfer(bytes=0), None, 0.5).good


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    made = probe.serve([0, 0], "127.0.0.1")
    yield made[0].getsockname()[1], made[1].getsockname()[1]
    for each in made:
        each.close()


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sos_operator.probe", "compare", "127.0.0.1", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_download_arrives_whole_and_ends_at_either_limit(ports: tuple[int, int]) -> None:
    by_size = probe.fetch("127.0.0.1", ports[0], 1_000_001, 30.0)
    assert (by_size.bytes, by_size.intact) == (1_000_001, True)
    assert by_size.own == by_size.seen
    by_time = probe.fetch("127.0.0.1", ports[0], 1 << 50, 0.3)
    assert by_time.intact
    assert 0.3 <= by_time.seconds < 5


class Sessions(BaseHTTPRequestHandler):
    """A controller that lists whoever is connected to its `accelerated` port."""

    accelerated = 0

    def do_GET(self) -> None:
        table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        peers = [row[1] for row in table if int(row[2].split(":")[1], 16) == self.accelerated and row[3] == "01"]
        found = [f"{socket.inet_ntoa(struct.pack('<I', int(a[:8], 16)))}:{int(a[9:], 16)}" for a in peers]
        body = json.dumps({"sessions": [{"client": each} for each in found]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def controller(ports: tuple[int, int]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Sessions,), {"accelerated": ports[0]}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def test_the_command_compares_and_asks_the_controller(ports: tuple[int, int], controller: str) -> None:
    covered, plain = (str(port) for port in ports)
    limits = ("--seconds", "2", "--mebibytes", "1000000", "--least-gain", "0.1", "--controller", controller)
    good = run("--plain-port", plain, "--port", covered, *limits)
    assert good.returncode == 0, good.stdout + good.stderr
    assert good.stdout.splitlines()[-1] == "passed"
    swapped = run("--plain-port", covered, "--port", plain, *limits)
    assert swapped.returncode == 1
    assert "is accelerated: name a port" in swapped.stdout
    assert "was not accelerated" in swapped.stdout


def test_a_server_that_is_not_there_fails_in_time() -> None:
    done = run("--plain-port", str(free_port()), "--wait", "1")
    assert done.returncode == 1
    assert "does not answer within 1 s" in done.stdout


def test_a_server_that_breaks_off_fails() -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def broken() -> None:
        for answer in (b"x\n" + struct.pack("!I", 0) + bytes(32), b"x\n" + struct.pack("!I", 100) + b"half"):
            connection, _ = listening.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

    threading.Thread(target=broken, daemon=True).start()
    done = run("--plain-port", str(listening.getsockname()[1]), "--wait", "1")
    listening.close()
    assert done.returncode == 1
    assert "a transfer broke: the connection ended early" in done.stdout
