"""Forward connections to a controller, with TLS on the controller's side if folders of certificates are given.

`python bench/controller/forward.py LISTEN_PORT CONTROLLER_PORT [FOLDER...]`: connection number i uses FOLDER number i. The rows of `run.py
--tls` measure the controller behind this program with and without TLS, so that the sizes of its reads are alike.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading
from pathlib import Path

CHUNK = 262_144


def copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until one of the connections ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            socket.socket.shutdown(end, socket.SHUT_RDWR)


def connect(port: int, folder: Path | None) -> socket.socket:
    """Connect to the controller."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if folder is None:
        return sock
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # as Open vSwitch
    context.load_verify_locations(folder / "ca.crt")
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context.wrap_socket(sock)


def main() -> None:
    """Forward until the process ends."""
    listen, controller, *folders = sys.argv[1:]
    with socket.create_server(("127.0.0.1", int(listen)), backlog=128) as server:
        number = 0
        while True:
            switch, _ = server.accept()
            switch.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far = connect(int(controller), Path(folders[number % len(folders)]) if folders else None)
            number += 1
            for ends in ((switch, far), (far, switch)):
                threading.Thread(target=copy, args=ends, daemon=True).start()


if __name__ == "__main__":
    main()
