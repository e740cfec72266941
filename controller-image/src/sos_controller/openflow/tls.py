"""Switch's socket over TLS, with the methods of eventlet's socket that `connection` uses.

TLS runs in memory (`ssl.SSLObject`), so that one system call carries many records, and the hub can read without blocking: like plain
bytes, each read takes everything that has arrived.
"""

from __future__ import annotations

import ssl
import time
from typing import Any

from sos_controller.openflow.framework import eventlet

CHUNK_BYTES = 65_536
"""Maximum number of bytes encrypted while earlier ciphertext is unwritten: bounds the memory for a slow switch."""


class TlsChannel:
    """Server's end of a TLS connection over a socket that does not block."""

    def __init__(self, fd: Any, context: ssl.SSLContext) -> None:
        self._fd = fd
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._ciphertext = b""
        self._chunk = 0

    def advance_handshake(self) -> bool:
        """Continue the handshake with the bytes fed so far; return whether it is done. Raise ssl.SSLError if it has failed."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def replies(self) -> bytes:
        """Return the messages of the handshake that are to be sent, or the alert that tells the switch why it has failed."""
        return self._outgoing.read()

    def feed(self, data: bytes) -> None:
        """Add received bytes; b"" marks the end of the stream."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def decrypt(self, count: int) -> bytes | None:
        """Return the contents of all complete records, b"" at the end of the stream, None if no record is complete."""
        parts: list[bytes] = []
        try:
            while part := self._tls.read(count):
                parts.append(part)
        except ssl.SSLWantReadError:
            self._write()  # the answer to a key update, if there is one
            if not parts:
                return None
        except ssl.SSLEOFError:
            pass  # TCP ended without an alert: harmless, because OpenFlow messages have lengths
        return b"".join(parts)

    def common_name(self) -> str:
        """Return the common name in the switch's certificate, empty if it has none."""
        subject: Any = (self._tls.getpeercert() or {}).get("subject", ())
        return next((value for part in subject for name, value in part if name == "commonName"), "")

    def recv(self, count: int) -> bytes:
        """Return the bytes that have arrived, b"" at the end of the stream. Raise BlockingIOError if no record is complete."""
        self.feed(self._fd.recv(count))
        data = self.decrypt(count)
        if data is None:
            raise BlockingIOError
        return data

    def send(self, data: bytes) -> int:
        """Send without blocking; return the number of bytes sent.

        As with SSL_write of OpenSSL, the next call has to begin with the bytes that were not sent: a part of them is encrypted already.
        """
        sent = 0
        while self._write():
            sent += self._chunk
            self._chunk = 0
            if sent >= len(data):
                break
            self._chunk = self._tls.write(memoryview(data)[sent : sent + CHUNK_BYTES])
        return sent

    def _write(self) -> bool:
        """Write ciphertext; return whether all of it is written."""
        self._ciphertext += self._outgoing.read()
        while self._ciphertext:
            try:
                self._ciphertext = self._ciphertext[self._fd.send(self._ciphertext) :]
            except BlockingIOError:
                return False
        return True


class TlsSocket:
    """Green socket over TLS: methods wait by switching to other green threads, those of `fd` never wait."""

    def __init__(self, sock: Any, context: ssl.SSLContext) -> None:
        self._sock = sock
        self._wait_s: float | None = None
        self.fd = TlsChannel(sock.fd, context)

    def handshake(self, within_s: float) -> None:
        """Carry out the handshake. Raise OSError if it fails (ssl.SSLError), ends early, or takes too long (TimeoutError)."""
        deadline = time.monotonic() + within_s
        try:
            while not self.fd.advance_handshake():
                self._exchange(deadline)
        finally:
            self._sock.sendall(self.fd.replies())

    def _exchange(self, deadline: float) -> None:
        self._sock.sendall(self.fd.replies())
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)
        data = self._sock.recv(CHUNK_BYTES)
        if not data:
            raise ConnectionResetError("closed by the switch")
        self.fd.feed(data)

    @property
    def certified_site(self) -> str:
        """Return the name of the site in the switch's certificate."""
        return self.fd.common_name()

    def recv(self, count: int) -> bytes:
        """Wait for bytes; return b"" at the end of the stream. Raise TimeoutError."""
        while (data := self.fd.decrypt(count)) is None:
            self.fd.feed(self._sock.recv(count))
        return data

    def sendall(self, data: bytes) -> None:
        """Send everything. Raise TimeoutError if the switch accepts no bytes for the time limit of the socket."""
        sent = self.fd.send(data)
        while sent < len(data):
            eventlet.hubs.trampoline(self.fileno(), write=True, timeout=self._wait_s, timeout_exc=TimeoutError)
            sent += self.fd.send(data[sent:])

    def settimeout(self, seconds: float) -> None:
        """Set the time limit of `recv` and `sendall`."""
        self._wait_s = seconds
        self._sock.settimeout(seconds)

    def setsockopt(self, *option: Any) -> None:
        """Set an option of the TCP socket."""
        self._sock.setsockopt(*option)

    def fileno(self) -> int:
        """Return the descriptor of the TCP socket."""
        return int(self._sock.fileno())

    def shutdown(self, how: int) -> None:
        """End the TCP connection."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """Close the TCP socket."""
        self._sock.close()
