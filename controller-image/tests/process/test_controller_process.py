"""Test the process over loopback sockets: hostile switches, the event stream, changed keys and tokens, and shutdown."""

from __future__ import annotations

import http.client
import json
import signal
import struct

import pytest
from controller_lab import SITE_KEYS, TOKEN, document
from controller_process import HELLO, WAIT_S, Process, assert_closed, handshake, read, receive, wait


@pytest.mark.parametrize(
    "message",
    [
        struct.pack("!BBHI", 4, 0, 0, 1),
        struct.pack("!BBHI", 4, 0, 7, 1),
        struct.pack("!BBHIHH", 4, 0, 12, 1, 1, 0),
        struct.pack("!BBHI", 3, 0, 8, 1),
        HELLO + struct.pack("!BBHI", 4, 6, 8, 1),
        HELLO + struct.pack("!BBHI", 4, 19, 8, 1),
        HELLO + struct.pack("!BBHIHH4x", 4, 19, 17, 1, 13, 0) + b"\0",
        HELLO + struct.pack("!BBHIHH", 4, 1, 12, 1, 0, 0),
        bytes(64),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_malformed_handshake_ends_only_its_connection(process: Process, message: bytes) -> None:
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
def test_malformed_message_of_a_connected_switch_ends_only_its_connection(process: Process, message: bytes) -> None:
    sock = handshake(process, 0x1000000000001)
    receive(sock, 18)
    sock.sendall(message)
    assert_closed(sock)
    assert process.up()


def test_zero_lengths_in_reported_entries_do_not_hang_the_controller(process: Process) -> None:
    sock = handshake(process, 0x1000000000001)
    request = receive(sock, 18)
    body = bytes(64)
    sock.sendall(struct.pack("!BBHIHH4x", 4, 19, 16 + len(body), struct.unpack_from("!I", request, 4)[0], 1, 0) + body)
    assert_closed(sock)
    assert process.up()


def test_unclaimed_datapaths_are_listed_but_not_programmed(process: Process) -> None:
    sock = handshake(process, 0xFF)
    wait("the unclaimed switch", lambda: json.loads(process.ask("/v1/status")[1])["unclaimed"] == ["00000000000000ff"])
    sock.settimeout(3)
    kinds = set()
    try:
        while True:
            head = read(sock, 8)
            kinds.add(head[1])
            read(sock, struct.unpack_from("!H", head, 2)[0] - 8)
    except TimeoutError:
        assert kinds <= {2, 9}, "only echoes and the switch configuration are allowed"
    sock.close()
    wait("the unclaimed switch to disconnect", lambda: json.loads(process.ask("/v1/status")[1])["unclaimed"] == [])


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
    wait("the event reader to be closed", process.up)


def test_changed_tokens_and_keys_are_reloaded(process: Process) -> None:
    body = json.dumps(document(2)).encode()
    assert process.ask("/v1/config", "PUT", body, "a-later-token")[0] == 401
    (process.folder / "token").write_text("a-later-token\n")
    wait("the new token", lambda: process.ask("/v1/config", "PUT", body, "a-later-token")[0] == 200)
    assert process.ask("/v1/config", "PUT", body, TOKEN)[0] == 401
    (process.folder / "keys" / "site-2-1").write_text("nonsense")
    wait("the log line about the invalid key", lambda: [line for line in process.log() if "keeping the last good" in line["message"]])
    (process.folder / "keys" / "site-2-1").write_text(SITE_KEYS[2].hex())
    wait("the new key", lambda: [line for line in process.log() if line["message"] == "keys of 2 sites"])


def test_logs_contain_no_secrets_and_no_exceptions(process: Process) -> None:
    text = (process.folder / "log").read_text()
    assert TOKEN not in text and SITE_KEYS[1].hex() not in text and "a-later-token" not in text
    assert not [line for line in process.log() if "exception" in line or "bug:" in line["message"]]
    assert "Traceback" not in text


def test_sigterm_ends_the_process(process: Process) -> None:
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(WAIT_S) == 0
