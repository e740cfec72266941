"""Accept connections of switches: bounds on their number, TLS or plain TCP by the first byte.

The first byte of a TLS connection is the content type of a handshake record (22; RFC 8446, 5.1), the first byte of a plain one is the
version of OpenFlow (at most 6). So one port serves both.
"""

from __future__ import annotations

import logging
import socket
import ssl
from typing import Any, Protocol

from sos_controller.openflow.connection import SwitchConnection, serve
from sos_controller.openflow.framework import eventlet
from sos_controller.openflow.receiver import Receiver
from sos_controller.openflow.tls import TlsSocket

LOG = logging.getLogger("sos_controller.accept")

FIRST_BYTE_S = 2.0
"""Wait for the first byte. A switch that sends nothing counts as plain: OpenFlow lets it wait for the controller's Hello."""
TLS_HANDSHAKE_S = 5.0
"""Time limit of a TLS handshake, which takes two round trips and milliseconds of CPU time."""
MAX_TLS_HANDSHAKES = 256
"""Maximum number of simultaneous TLS handshakes. Beyond it the oldest is closed, so that stalled handshakes cannot exclude a switch that
completes its handshake promptly."""
_TLS_HANDSHAKE_RECORD = b"\x16"
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL_VERSION_NUMBER")
"""OpenSSL's error reasons for input that is not a TLS record."""


class Owner(Receiver[SwitchConnection], Protocol):
    """Receiver that also knows which connections are admitted."""

    @property
    def admits_plain(self) -> bool:
        """Return whether a switch may connect without TLS."""


class Listener:
    """Accepts connections until the process ends."""

    def __init__(self, owner: Owner, most: int) -> None:
        self.context: ssl.SSLContext | None = None
        """Context of new TLS connections; None: TLS is refused. Established connections keep theirs."""
        self._owner = owner
        self._most = most
        self._open = 0
        self._handshakes: dict[TlsSocket, None] = {}

    def loop(self, sock: Any) -> None:
        """Accept connections."""
        while True:
            try:
                peer, address = sock.accept()
            except OSError as error:
                LOG.warning("accept: %s", error)
                eventlet.sleep(0.1)
                continue
            if self._open >= self._most:
                peer.close()
                self._owner.count("connections_refused")
                continue
            self._open += 1
            eventlet.spawn(self._serve, peer, address)

    def _serve(self, peer: Any, address: Any) -> None:
        try:
            channel, site = self._secured(peer, address)
            if channel is not None:
                serve(channel, address, self._owner, site)
        except Exception:
            self._owner.bug("accept")
        finally:
            self._open -= 1
            peer.close()

    def _secured(self, peer: Any, address: Any) -> tuple[Any, str | None]:
        """Return the socket to use, None if the connection is refused, and the site in the switch's certificate, None without TLS."""
        plain, context = self._owner.admits_plain, self.context
        if plain and (context is None or not _begins_with_tls(peer)):
            return peer, None
        try:
            if context is None:
                raise ConnectionRefusedError("the controller has no certificate")
            secured = self._shake_hands(peer, context)
        except OSError as error:
            LOG.warning("switch at %s refused: TLS handshake: %s", address, _reason(error))
            self._owner.count("tls_refusals")
            return None, None
        return secured, secured.certified_site

    def _shake_hands(self, peer: Any, context: ssl.SSLContext) -> TlsSocket:
        secured = TlsSocket(peer, context)
        self._handshakes[secured] = None
        if len(self._handshakes) > MAX_TLS_HANDSHAKES:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            _abort(oldest)
        try:
            secured.handshake(TLS_HANDSHAKE_S)
        finally:
            self._handshakes.pop(secured, None)
        return secured


def _begins_with_tls(peer: Any) -> bool:
    """Wait for the first byte, and leave it in the socket."""
    peer.settimeout(FIRST_BYTE_S)
    try:
        return bool(peer.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE_RECORD)
    except OSError:
        return False


def _abort(secured: TlsSocket) -> None:
    try:
        secured.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        LOG.debug("shutdown: %s", error)


def _reason(error: OSError) -> str:
    """Return the reason of a failed handshake in the words of OpenSSL, without the location in its source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    reason = getattr(error, "reason", None)
    if reason in _NO_TLS:
        return "the switch does not use TLS, which is required"
    return reason.replace("_", " ").lower() if reason else str(error)
