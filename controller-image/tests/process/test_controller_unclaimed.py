"""Open unclaimed connections to port 6653 of a running controller. The controller must keep serving a well-behaved switch."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from controller_process import HELLO, WAIT_S, Honest, Process, assert_closed, connected, handshake, receive, wait
from sos_controller.app import MAX_UNCLAIMED

EDGE1, EDGE2, STRANGER = 0x1000000000001, 0x2000000000002, 0xFF


@pytest.fixture(scope="module")
def honest(process: Process) -> Iterator[Honest]:
    with Honest(process, EDGE1) as made:
        wait("the well-behaved switch", lambda: connected(process, "edge1") == [True])
        yield made


def payloads() -> Iterator[bytes]:
    """Yield random bytes, truncated OpenFlow messages, and messages with wrong lengths."""
    chance = random.Random(6653)
    for _ in range(40):
        yield chance.randbytes(chance.choice((1, 7, 8, 100, 5_000)))
    hello = struct.pack("!BBHIHHI", 4, 0, 16, 1, 1, 8, 0x10)
    for at in range(1, len(hello)):
        yield hello[:at]
    for _ in range(40):
        kind, length = chance.randrange(32), chance.choice((0, 1, 7, 8, 9, 16, 65_535))
        yield HELLO + struct.pack("!BBHI", 4, kind, length, 1) + chance.randbytes(chance.randrange(200))
    yield struct.pack("!BBHI", 4, 0, 65_528, 1) + struct.pack("!HH", 1, 65_520) + b"\xff" * 65_516
    yield struct.pack("!BBHIHHB3xHH4x", 4, 0, 24, 1, 2, 5, 0, 2, 8)  # an element that needs padding; Ryu would read a length of 0 after it
    yield HELLO * 10_000


def test_malformed_input_does_not_affect_a_well_behaved_switch(process: Process, honest: Honest) -> None:
    for payload in payloads():
        with process.switch() as sock:
            try:
                sock.sendall(payload)
            except OSError:
                continue  # the controller closed the connection early
    honest.serves()
    assert process.metric("bugs_total") == 0


def test_slow_incomplete_message_ends_its_connection(process: Process, honest: Honest) -> None:
    with process.switch() as sock:
        sock.sendall(struct.pack("!BBHI", 4, 0, 65_535, 1))
        sock.settimeout(0.5)
        end = time.monotonic() + WAIT_S
        try:
            while time.monotonic() < end:
                sock.sendall(b"x")
                try:
                    if not sock.recv(4096):
                        break
                except TimeoutError:
                    continue
            else:
                raise AssertionError("still connected")
        except (ConnectionResetError, BrokenPipeError):
            pass
    honest.serves()


def test_unclaimed_connections_do_not_block_claimed_switches(process: Process, honest: Honest) -> None:
    crowd: list[socket.socket] = []
    try:
        for _ in range(MAX_UNCLAIMED + 100):
            crowd.append(process.switch())
            crowd[-1].sendall(HELLO[:5])
        wait("the oldest connections to be refused", lambda: process.metric("connections_refused_total") >= 100)
        with Honest(process, EDGE2) as another:
            wait("the new switch", lambda: connected(process, "edge2") == [True])
            another.serves()
        honest.serves()
    finally:
        for sock in crowd:
            sock.close()


def test_unclaimed_switches_after_their_handshake_count_against_the_same_limit(process: Process, honest: Honest) -> None:
    crowd = [handshake(process, 0x1000 + n) for n in range(MAX_UNCLAIMED + 20)]
    try:
        wait("at most the permitted number of unclaimed datapaths", lambda: 0 < process.metric("datapaths_unclaimed") <= MAX_UNCLAIMED)
        honest.serves()
    finally:
        for sock in crowd:
            sock.close()


def test_responsive_switch_keeps_its_datapath_id(process: Process, honest: Honest) -> None:
    for _ in range(3):
        assert_closed(handshake(process, EDGE1))
    honest.serves()
    assert connected(process, "edge1") == [True]


def test_silent_switch_loses_its_datapath_id_to_the_next_connection(process: Process) -> None:
    with Honest(process, EDGE2) as old:
        wait("the old switch", lambda: connected(process, "edge2") == [True])
        old.silent = True
        assert_closed(handshake(process, EDGE2))
        wait("the old switch to be disconnected", lambda: old.closed)
        with Honest(process, EDGE2) as new:
            wait("the second switch", lambda: connected(process, "edge2") == [True])
            new.serves()
    wait("edge2 to be gone", lambda: connected(process, "edge2") == [False])


def test_unclaimed_switch_that_does_not_read_is_disconnected(process: Process, honest: Honest) -> None:
    sock = handshake(process, STRANGER)
    sock.settimeout(WAIT_S)
    echo = struct.pack("!BBHI", 4, 2, 60_000, 1) + bytes(59_992)
    with pytest.raises(OSError), sock:
        for _ in range(2_000):
            sock.sendall(echo)
    honest.serves()


def test_switch_without_ports_is_accepted(process: Process, honest: Honest) -> None:
    sock = handshake(process, EDGE2, ports=0)
    receive(sock, 18)
    assert connected(process, "edge2") == [True]
    sock.close()
    honest.serves()


def test_undefined_error_codes_share_a_counter(process: Process) -> None:
    with Honest(process, EDGE2) as switch:
        for kind, code in ((1, 2), (999, 1), (998, 2), (3, 999)):
            switch.sock.sendall(struct.pack("!BBHIHH", 4, 1, 12, 5, kind, code))
        wait("the errors", lambda: process.metric('switch_errors_total{error="other"}') == 3)
        assert process.metric('switch_errors_total{error="1-2"}') == 1
        switch.serves()


def test_controller_has_counted_no_bug(process: Process) -> None:
    assert process.metric("bugs_total") == 0
    assert "Traceback" not in (process.folder / "log").read_text()
