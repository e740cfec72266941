"""Test the TLS channel in memory: partial writes, records that arrive in pieces, the end of the stream."""

from __future__ import annotations

import contextlib
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from controller_tls import CA, controller_folder, switch_context
from sos_compile.certificates import certify_controller
from sos_controller.files.tls_folder import new_context, read_tls
from sos_controller.openflow.tls import CHUNK_BYTES, TlsChannel


class Wire:
    """Descriptor of a socket whose peer reads `room` bytes at a time."""

    def __init__(self) -> None:
        self.sent, self.arrived, self.room, self.over = b"", b"", 1 << 30, False

    def send(self, data: bytes) -> int:
        if not self.room:
            raise BlockingIOError
        taken = data[: self.room]
        self.sent += taken
        self.room -= len(taken)
        return len(taken)

    def recv(self, count: int) -> bytes:
        if not self.arrived and not self.over:
            raise BlockingIOError
        data, self.arrived = self.arrived[:count], self.arrived[count:]
        return data


class Pair:
    """Channel of the controller, connected to a switch."""

    def __init__(self, folder: Path) -> None:
        tls = controller_folder(folder / "tls")
        self.wire = Wire()
        self.channel = TlsChannel(self.wire, new_context(tls, read_tls(tls)))
        self._to_switch, self._from_switch = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.switch = switch_context(folder / "switch", "west").wrap_bio(self._to_switch, self._from_switch)
        done = False
        while not done:
            with contextlib.suppress(ssl.SSLWantReadError):
                self.switch.do_handshake()
            self.channel.feed(self._from_switch.read())
            done = self.channel.advance_handshake()
            self._to_switch.write(self.channel.replies())

    def from_switch(self, data: bytes) -> bytes:
        """Return the ciphertext of what the switch sends."""
        self.switch.write(data)
        return self._from_switch.read()

    def at_switch(self) -> bytes:
        """Return the bytes that have reached the switch."""
        self._to_switch.write(self.wire.sent)
        self.wire.sent, got = b"", b""
        try:
            while part := self.switch.read(65536):
                got += part
        except ssl.SSLWantReadError:
            pass
        return got


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_site_is_the_common_name_of_the_certificate(pair: Pair) -> None:
    assert pair.channel.common_name() == "west"


@pytest.mark.parametrize("room", [1, 100, 5_000, 100_000])
def test_partial_writes_deliver_every_byte_once_and_in_order(pair: Pair, room: int) -> None:
    data = bytes(i * 7 % 251 for i in range(3 * CHUNK_BYTES + 17))
    queued, got = data, b""
    while queued:
        pair.wire.room = room if room > 1 or len(queued) < 100 else 40_000
        queued = queued[pair.channel.send(queued) :]
        got += pair.at_switch()
    assert got == data


def test_blocked_write_reports_nothing_sent_and_keeps_memory_bounded(pair: Pair) -> None:
    pair.wire.room = 0
    for _ in range(10):
        assert pair.channel.send(bytes(1_000_000)) == 0
    assert len(pair.channel._ciphertext) < CHUNK_BYTES + 1_000


def test_records_in_pieces_are_reassembled_and_several_are_read_at_once(pair: Pair) -> None:
    pair.wire.arrived = pair.from_switch(b"one") + pair.from_switch(b"two") + pair.from_switch(b"three")[:-1]
    last = pair.from_switch(b"four")
    assert pair.channel.recv(65536) == b"onetwo"
    with pytest.raises(BlockingIOError):
        pair.channel.recv(65536)
    assert last


def test_end_of_tcp_and_alert_are_the_end_of_the_stream(tmp_path: Path) -> None:
    for clean in (True, False):
        pair = Pair(tmp_path / str(clean))
        pair.wire.arrived = pair.from_switch(b"last")
        if clean:
            try:
                pair.switch.unwrap()
            except ssl.SSLWantReadError:
                pair.wire.arrived += pair._from_switch.read()
        assert pair.channel.recv(65536) == b"last"
        pair.wire.over = True
        assert pair.channel.recv(65536) == b""


def test_altered_record_is_an_error_of_the_connection(pair: Pair) -> None:
    sent = bytearray(pair.from_switch(b"a message"))
    sent[-1] ^= 1
    pair.wire.arrived = bytes(sent)
    with pytest.raises(OSError, match="BAD_RECORD_MAC"):
        pair.channel.recv(65536)


def test_key_is_in_no_message_about_a_certificate() -> None:
    certified = certify_controller(CA, "default", datetime.now(UTC))
    assert "PRIVATE" not in repr(certified) + str(certified) + f"{certified!r}"
