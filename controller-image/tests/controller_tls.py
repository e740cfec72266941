"""Certificates for tests, and switches that connect with TLS."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime
from pathlib import Path

from controller_process import WAIT_S, Process
from sos_compile.certificates import Certified, certify_controller, certify_switches, new_ca, tls_files

CA, OTHER_CA = (new_ca(datetime.now(UTC)) for _ in range(2))


def write_folder(folder: Path, certified: Certified, authorities: list[Certified]) -> Path:
    """Replace the contents of a TLS folder at once, as a kubelet does: its files lead through a symbolic link `..data`."""
    folder.mkdir(parents=True, exist_ok=True)
    version = folder / f"..{os.urandom(4).hex()}"
    version.mkdir()
    for name, text in tls_files(certified, authorities).items():
        (version / name).write_text(text)
        if not (folder / name).exists():
            (folder / name).symlink_to(f"..data/{name}")
    link = folder / "..data.new"
    link.symlink_to(version.name)
    link.replace(folder / "..data")
    return folder


def controller_folder(folder: Path, ca: Certified = CA, *trusted: Certified) -> Path:
    return write_folder(folder, certify_controller(ca, "default", datetime.now(UTC)), [ca, *trusted])


def switch_context(folder: Path, site: str, ca: Certified = CA, trusted: Certified | None = None) -> ssl.SSLContext:
    """Context of a switch with a certificate for a site."""
    return client_context(folder, certify_switches(ca, site, datetime.now(UTC)), trusted or ca)


def client_context(folder: Path, certified: Certified | None, trusted: Certified) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # as Open vSwitch
    context.load_verify_locations(cadata=trusted.certificate)
    if certified is not None:
        files = write_folder(folder, certified, [trusted])
        context.load_cert_chain(files / "tls.crt", files / "tls.key")
    return context


def connect(process: Process, context: ssl.SSLContext) -> ssl.SSLSocket:
    sock = process.switch()
    sock.settimeout(WAIT_S)
    return context.wrap_socket(sock)
