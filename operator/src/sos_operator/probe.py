"""Moves bytes between two hosts of sites and compares plain TCP with a port that a SosService covers: what `helm test` runs.

    python -m sos_operator.probe serve PORT [PORT ...]
    python -m sos_operator.probe compare SERVER --plain-port 18001 [--port 443] [--controller http://...:8080]

The client asks for so many bytes or seconds, whichever ends first; the server says whom it sees, then sends blocks (four bytes of
length, then as many), a length of zero, and the SHA-256 of it all. Nothing but the standard library, so that any Python runs it.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import socket
import struct
import sys
import threading
import time
import urllib.request

from sos_operator.core.comparison import Transfer, compare

BLOCK = os.urandom(256 * 1024)  # random, so that nothing on the way can make it smaller
STALL_S = 30.0  # a connection without a byte for so long has failed
MAX_CONNECTIONS = 16
MAX_LINE = 128
POLL_S = 0.5
ANSWER_MAX_BYTES = 4 * 1024 * 1024

MISSING = """No bytes were moved, nothing was compared: the release has not been told between which sites.
Two SosSites with nodes and a free address at each are needed; `kubectl get sossite` lists the sites there are. Then

    helm upgrade {release} charts/sos -n {namespace} --reuse-values \\
      --set test.client.site=SITE --set test.client.address=ADDRESS/LENGTH \\
      --set test.server.site=SITE --set test.server.address=ADDRESS/LENGTH --set test.port=PORT
    helm test {release} -n {namespace} && kubectl logs job/{job} -n {namespace}
"""


def serve(ports: list[int], host: str = "") -> list[socket.socket]:
    """Listen on every port and answer in threads; returns the listening sockets, whose closing ends it."""
    slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
    listening = [socket.create_server((host, port), backlog=MAX_CONNECTIONS) for port in ports]
    for each in listening:
        threading.Thread(target=_accept, args=(each, slots), daemon=True).start()
    return listening


def _accept(listening: socket.socket, slots: threading.BoundedSemaphore) -> None:
    while True:
        try:
            connection, client = listening.accept()
        except OSError:
            return  # closed
        if not slots.acquire(blocking=False):
            connection.close()
            continue
        threading.Thread(target=_answer, args=(connection, f"{client[0]}:{client[1]}", slots), daemon=True).start()


def _answer(connection: socket.socket, client: str, slots: threading.BoundedSemaphore) -> None:
    try:
        with connection:
            connection.settimeout(STALL_S)
            with connection.makefile("rb") as asked:
                most, seconds = (float(word) for word in asked.readline(MAX_LINE).split())
            connection.sendall(f"{client}\n".encode())
            digest, sent, ends = hashlib.sha256(), 0, time.monotonic() + seconds
            while sent < most and time.monotonic() < ends:
                block = BLOCK[: int(min(len(BLOCK), most - sent))]
                connection.sendall(struct.pack("!I", len(block)) + block)
                digest.update(block)
                sent += len(block)
            connection.sendall(struct.pack("!I", 0) + digest.digest())
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)  # the client closes when it has everything
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{client}: {error}\n")
    finally:
        slots.release()


def fetch(server: str, port: int, most: int, seconds: float, controller: str = "") -> Transfer:
    """Download and check; raises OSError when there is no connection or it breaks."""
    with socket.create_connection((server, port), timeout=STALL_S) as connection:
        address = connection.getsockname()
        own = f"{address[0]}:{address[1]}"
        watch = _Watch(controller, own)
        began = time.monotonic()
        connection.sendall(f"{most} {seconds}\n".encode())
        with connection.makefile("rb") as stream:
            seen = stream.readline(MAX_LINE).decode(errors="replace").strip()
            digest, got = hashlib.sha256(), 0
            while length := struct.unpack("!I", _exactly(stream.read(4), 4))[0]:
                block = _exactly(stream.read(min(length, len(BLOCK))), length)
                digest.update(block)
                got += len(block)
            intact = _exactly(stream.read(32), 32) == digest.digest()
        took = time.monotonic() - began
        return Transfer(port=port, bytes=got, seconds=took, intact=intact, own=own, seen=seen, listed=watch.end())


def _exactly(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise ConnectionError(f"the connection ended early ({len(data)} of {length} bytes)")
    return data


class _Watch:
    """Asks a controller for the session of a connection while it runs."""

    def __init__(self, controller: str, client: str) -> None:
        self._url, self._client = controller, client
        self._listed: bool | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if controller:
            self._thread.start()

    def _run(self) -> None:
        while not self._listed and not self._stop.wait(POLL_S):
            try:
                with urllib.request.urlopen(f"{self._url.rstrip('/')}/v1/sessions?client={self._client}", timeout=2) as answer:  # noqa: S310 - an argument
                    sessions = json.loads(answer.read(ANSWER_MAX_BYTES))["sessions"]
            except (OSError, ValueError, KeyError, http.client.HTTPException):
                continue
            self._listed = any(session.get("client") == self._client for session in sessions)

    def end(self) -> bool | None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        return self._listed


def reachable(server: str, port: int, wait: float) -> str:
    """Wait until the server answers; the last error if it does not in time, empty if it does."""
    ends = time.monotonic() + wait
    while True:
        try:
            fetch(server, port, 1, 1.0)
        except OSError as error:
            if time.monotonic() > ends:
                return str(error)
            time.sleep(1)
        else:
            return ""


def _compare(arguments: argparse.Namespace) -> int:
    error = reachable(arguments.server, arguments.plain_port, arguments.wait)
    if error:
        print(f"wrong: {arguments.server}:{arguments.plain_port} does not answer within {arguments.wait:g} s: {error}\nFAILED")  # noqa: T201
        return 1
    try:
        limits = (arguments.mebibytes * 1024 * 1024, arguments.seconds, arguments.controller)
        plain = fetch(arguments.server, arguments.plain_port, *limits)
        covered = fetch(arguments.server, arguments.port, *limits) if arguments.port else None
    except OSError as error:
        print(f"wrong: a transfer broke: {error}\nFAILED")  # noqa: T201
        return 1
    verdict = compare(plain, covered, arguments.least_gain, asked=bool(arguments.controller))
    print("\n".join(verdict.lines), flush=True)  # noqa: T201
    return 0 if verdict.good else 1


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="sos_operator.probe", description="Move bytes between two hosts and compare.")
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("serve", help="answer on ports until ended")
    server.add_argument("ports", nargs="+", type=int, metavar="PORT")
    missing = commands.add_parser("missing", help="say what a comparison needs, and move nothing")
    missing.add_argument("--release", default="sos")
    missing.add_argument("--namespace", default="sos-system")
    missing.add_argument("--job", default="sos-test")
    client = commands.add_parser("compare", help="download twice; exit code 1 if anything is wrong")
    client.add_argument("server", help="address of the server")
    client.add_argument("--plain-port", type=int, required=True, help="a port that no SosService covers")
    client.add_argument("--port", type=int, default=0, help="a port that a SosService covers (default: none, nothing is compared)")
    client.add_argument("--controller", default="", metavar="URL", help="a controller to ask whether the connection is accelerated")
    client.add_argument("--mebibytes", type=int, default=256, help="end of a transfer (default 256)")
    client.add_argument("--seconds", type=float, default=10.0, help="end of a transfer, whichever is first (default 10)")
    client.add_argument("--least-gain", type=float, default=0.5, help="fail if the service is slower than this times plain (default 0.5)")
    client.add_argument("--wait", type=float, default=60.0, metavar="SECONDS", help="how long to wait for the server (default 60)")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run a command; 0 = good, 1 = something is wrong, 2 = bad usage."""
    arguments = build_parser().parse_args(argv)
    if arguments.command == "compare":
        return _compare(arguments)
    if arguments.command == "missing":
        print(MISSING.format(**vars(arguments)))  # noqa: T201
        return 0
    serve(arguments.ports)
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
