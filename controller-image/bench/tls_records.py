"""CPU time of TLS per record: reads and writes of a switch's socket, plain and with TLS, over loopback.

`python controller-image/bench/tls_records.py`. Without load a record carries one message; under load it carries hundreds.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sos_controller.openflow.tls import TlsChannel

# isort: split
# These come after eventlet's patches.
from sos_compile.certificates import CERTIFICATE_FILE, KEY_FILE, certify_controller, certify_switches, new_ca, tls_files
from sos_controller.files.tls_folder import new_context, read_tls

SIZES = (200, 2_000, 16_000)
"""Bytes of a message of a set-up; of ten; of eighty."""


def write_folder(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def connected(folder: Path) -> tuple[TlsChannel, Callable[[bytes], None], Callable[[int], None]]:
    """Return the controller's end of a TLS connection, and functions by which the switch sends and discards bytes."""
    now = datetime.now(UTC)
    ca = new_ca(now)
    ours = write_folder(folder / "controller", tls_files(certify_controller(ca, "default", now), [ca]))
    theirs = write_folder(folder / "switch", tls_files(certify_switches(ca, "west", now), [ca]))
    near, far = socket.socketpair()
    near.setblocking(False)
    channel = TlsChannel(near, new_context(ours, read_tls(ours)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(theirs / "ca.crt")
    context.load_cert_chain(theirs / CERTIFICATE_FILE, theirs / KEY_FILE)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    switch = context.wrap_bio(incoming, outgoing)
    while True:
        try:
            switch.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        channel.feed(outgoing.read())
        over = channel.advance_handshake()
        incoming.write(channel.replies())
        if done and over:
            break

    def send(data: bytes) -> None:
        switch.write(data)
        far.sendall(outgoing.read())

    def discard(count: int) -> None:
        left = count
        while left:
            incoming.write(far.recv(65_536))
            try:
                while part := switch.read(65_536):
                    left -= len(part)
            except ssl.SSLWantReadError:
                continue

    return channel, send, discard


def measured(operation: Callable[[], object], before: Callable[[], None], after: Callable[[], None], count: int) -> float:
    """CPU time of an operation in microseconds, without what precedes and follows it."""
    total = 0
    for _ in range(count):
        before()
        began = time.thread_time_ns()
        operation()
        total += time.thread_time_ns() - began
        after()
    return total / count / 1_000


def nothing() -> None:
    """Do nothing."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5_000, help="operations of each kind")
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as name:
        channel, send, discard = connected(Path(name))
        near, far = socket.socketpair()
        near.setblocking(False)
        sys.stdout.write("bytes  read: plain  TLS  write: plain  TLS  (us of CPU time)\n")
        for size in SIZES:
            data = bytes(size)
            row = [
                measured(lambda: near.recv(65_536), lambda d=data: far.sendall(d), nothing, count),
                measured(lambda: channel.recv(65_536), lambda d=data: send(d), nothing, count),
                measured(lambda d=data: near.send(d), nothing, lambda: far.recv(65_536), count),
                measured(lambda d=data: channel.send(d), nothing, lambda s=size: discard(s), count),
            ]
            sys.stdout.write(f"{size:5}  {row[0]:11.1f}  {row[1]:3.1f}  {row[2]:12.1f}  {row[3]:3.1f}\n")


if __name__ == "__main__":
    main()
