"""The TLS folder: certificate, private key and CA certificates of the controller, read again each second.

The names of the files are those of a Secret of type kubernetes.io/tls with a CA, as cert-manager writes it.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

CERTIFICATE, KEY, CA = "tls.crt", "tls.key", "ca.crt"
MAX_BYTES = 256 * 1024
"""Maximum size of a file: dozens of certificates."""


class TlsFolder(NamedTuple):
    """Contents of a TLS folder, to detect changes."""

    certificate: bytes
    key: bytes
    ca: bytes


def read_tls(folder: Path) -> TlsFolder:
    """Return the contents of a folder. Raise OSError if a file cannot be read, ValueError with the file's name if it is empty or too
    large."""
    return TlsFolder(*(_read(folder / name) for name in (CERTIFICATE, KEY, CA)))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if not data.strip() or len(data) > MAX_BYTES:
        raise ValueError(f"{path}: is {'empty' if not data.strip() else f'larger than {MAX_BYTES} bytes'}")
    return data


def new_context(folder: Path, contents: TlsFolder) -> ssl.SSLContext:
    """Return a server's context that requires TLS 1.2 or later and a client certificate of the CA.

    Raise ValueError with the name of the unusable file; the message contains nothing of a file's contents. `contents` are those that the
    folder had before; if the files have changed meanwhile, the ValueError says so, and the next reading succeeds.
    """
    _check_certificates(folder / CERTIFICATE, contents.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # a switch keeps its connection for weeks: no resumption, so no ticket that outlives a CA
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    try:
        context.load_verify_locations(cadata=contents.ca.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"{folder / CA}: holds no usable CA certificate in PEM") from error
    try:
        # an empty password: an encrypted key is an error, not a prompt
        context.load_cert_chain(folder / CERTIFICATE, folder / KEY, password=lambda: b"")
    except (ssl.SSLError, ValueError) as error:
        mismatch = getattr(error, "reason", "") == "KEY_VALUES_MISMATCH"
        what = f"does not match {CERTIFICATE}" if mismatch else "holds no usable private key in PEM without a password"
        raise ValueError(f"{folder / KEY}: {what}") from error
    if read_tls(folder) != contents:
        raise ValueError(f"{folder}: changed while it was read")
    return context


def _check_certificates(path: Path, data: bytes) -> None:
    """Parse a certificate file by itself: `load_cert_chain` does not tell which of its two files it cannot use."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=data.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"{path}: holds no usable certificate in PEM") from error
