"""Load generator: a request server and clients with many connections, run inside a namespace. Standard library only.

load_client.py answer PORT                                        answer each request with the requested number of bytes
load_client.py ask ADDRESS PORT BYTES SECONDS --at-once N         short connections of one request each, N concurrently; times as JSON
load_client.py hold ADDRESS PORT COUNT --at-once N                connections of one request, held open until killed; times as JSON
load_client.py talk ADDRESS PORT SECONDS                          one connection with consecutive requests; times as JSON
load_client.py read ADDRESS PORT COUNT SECONDS [--slow BYTES]     COUNT downloads for SECONDS, the first limited to BYTES a second

A request has 1,000 bytes: size of the answer, a flag to close the connection after the answer, and padding.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

REQUEST_BYTES = 1000
HEAD = struct.Struct("!QB")
ENDLESS = 1 << 60
BLOCK_BYTES = 1 << 18
SMALL_BYTES = 1 << 14
BACKLOG = 4096
TIMEOUT_S = 20.0
"""A connection that takes longer than this has failed."""
HOLD_LIMIT_S = 200.0
"""Limit for held connections, so that a killed benchmark does not leave connections behind."""
PAUSE_S = 0.01
"""Pause of `talk` between an answer and the next request."""


def request(size: int, last: bool) -> bytes:
    """Encode a request for `size` bytes; with `last` the server closes the connection after the answer."""
    return HEAD.pack(size, last).ljust(REQUEST_BYTES, b".")


@dataclass(slots=True)
class ServedConnection:
    """Server side of a connection."""

    connection: socket.socket
    request: bytearray = field(default_factory=bytearray)
    to_send: int = 0
    last: bool = False

    def step(self, block: memoryview) -> bool:
        """Receive a request or send its answer as far as the socket allows; False when the connection is finished."""
        if not self.to_send:
            got = self.connection.recv(REQUEST_BYTES - len(self.request))
            self.request += got
            if len(self.request) < REQUEST_BYTES:
                return bool(got)
            self.to_send, last = HEAD.unpack_from(self.request)
            self.last = bool(last)
            self.request.clear()
        self.to_send -= self.connection.send(block[: min(self.to_send, len(block))])
        return bool(self.to_send) or not self.last


def answer(port: int) -> None:
    """Serve requests until killed."""
    block = memoryview(os.urandom(BLOCK_BYTES))
    listener = socket.create_server(("", port), backlog=BACKLOG)
    listener.setblocking(False)
    poll, served = select.epoll(), dict[int, ServedConnection]()
    poll.register(listener, select.EPOLLIN)
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                accept_all(listener, poll, served)
                continue
            client = served[number]
            to_send = bool(client.to_send)
            if not advance(client, block):
                served.pop(number).connection.close()
            elif to_send != bool(client.to_send):
                poll.modify(number, select.EPOLLOUT if client.to_send else select.EPOLLIN)


def accept_all(listener: socket.socket, poll: select.epoll, served: dict[int, ServedConnection]) -> None:
    """Accept all pending connections."""
    with contextlib.suppress(BlockingIOError):
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            served[connection.fileno()] = ServedConnection(connection)
            poll.register(connection, select.EPOLLIN)


def advance(client: ServedConnection, block: memoryview) -> bool:
    """Advance a connection; False if it is finished or broken."""
    try:
        return client.step(block)
    except BlockingIOError:
        return True
    except OSError:
        return False


@dataclass(slots=True)
class ClientConnection:
    """Client side of a connection; times are in seconds from before its connect."""

    connection: socket.socket
    began: float
    received: int = 0
    first_s: float | None = None
    last_s: float | None = None
    error: str = ""


class LoadClient:
    """Client of many connections with one request each; `ended` has the finished connections."""

    def __init__(self, address: str, port: int, size: int, stay: bool) -> None:
        self.to = (address, port)
        self.size = size
        self.stay = stay
        self.ended: list[ClientConnection] = []
        self._request = request(size, last=not stay)
        self._poll = select.epoll()
        self._open: dict[int, ClientConnection] = {}

    def run(self, at_once: int, more: Callable[[int], bool]) -> None:
        """Open connections, `at_once` concurrently, while more(number opened so far) is true; return when all have ended."""
        begun, buffer = 0, bytearray(BLOCK_BYTES if self.size > SMALL_BYTES else SMALL_BYTES)
        while True:
            while len(self._open) < at_once and more(begun):
                begun += 1
                self._begin()
            if not self._open:
                return
            for number, event in self._poll.poll(1.0):
                self._step(self._open[number], event, buffer)
            self._give_up(time.monotonic() - TIMEOUT_S)

    def _begin(self) -> None:
        client = ClientConnection(socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK), time.monotonic())
        if self.stay:
            # close with a reset: otherwise ten thousand connections in TIME-WAIT would disturb the next run
            client.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._open[client.connection.fileno()] = client
        self._poll.register(client.connection, select.EPOLLOUT)
        if (failed := client.connection.connect_ex(self.to)) not in {0, errno.EINPROGRESS}:
            self._end(client, os.strerror(failed))

    def _step(self, client: ClientConnection, event: int, buffer: bytearray) -> None:
        try:
            if event & select.EPOLLOUT and not event & (select.EPOLLERR | select.EPOLLHUP):
                client.connection.send(self._request)
                self._poll.modify(client.connection, select.EPOLLIN)
                return
            self._received(client, client.connection.recv_into(buffer))
        except BlockingIOError:
            pass
        except OSError as failed:
            self._end(client, str(failed))

    def _received(self, client: ClientConnection, got: int) -> None:
        at = time.monotonic() - client.began
        client.received += got
        if got and client.first_s is None:
            client.first_s = at
        if client.received == self.size and client.last_s is None:
            client.last_s = at
        whole = client.last_s is not None
        if whole and self.stay:
            self._end(client, "")
        elif not got:
            self._end(client, "" if whole else f"the server closed it after {client.received} bytes")

    def _give_up(self, before: float) -> None:
        # insertion order: the first open connection is the oldest
        while self._open and (oldest := next(iter(self._open.values()))).began < before:
            self._end(oldest, "timed out")

    def _end(self, client: ClientConnection, error: str) -> None:
        client.error = error
        del self._open[client.connection.fileno()]
        self._poll.unregister(client.connection)
        if error or not self.stay:
            client.connection.close()
        self.ended.append(client)

    def report(self, seconds: float) -> dict[str, object]:
        """Report durations and errors."""
        good = [client for client in self.ended if not client.error]
        errors = sorted({client.error for client in self.ended if client.error})
        return {
            "seconds": seconds,
            "failed": len(self.ended) - len(good),
            "errors": errors[:3],
            "first_ms": [round(1000 * (client.first_s or 0), 2) for client in good],
            "last_ms": [round(1000 * (client.last_s or 0), 2) for client in good],
        }


def ask(address: str, port: int, size: int, seconds: float, at_once: int) -> dict[str, object]:
    """Run short connections for `seconds`."""
    began, load = time.monotonic(), LoadClient(address, port, size, stay=False)
    load.run(at_once, lambda _: time.monotonic() - began < seconds)
    return load.report(time.monotonic() - began)


def hold(address: str, port: int, count: int, at_once: int) -> None:
    """Hold connections open until killed; report when all are open."""
    began, load = time.monotonic(), LoadClient(address, port, 1, stay=True)
    load.run(at_once, lambda begun: begun < count)
    print(json.dumps(load.report(time.monotonic() - began)), flush=True)
    time.sleep(HOLD_LIMIT_S)
    sys.exit(f"connections were held for {HOLD_LIMIT_S:.0f} s and not ended")


def talk(address: str, port: int, seconds: float) -> dict[str, object]:
    """Run consecutive requests on one connection. The first answer does not count, because it may include session set-up."""
    times, asks, end = list[float](), request(REQUEST_BYTES, last=False), time.monotonic() + seconds
    with socket.create_connection((address, port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while time.monotonic() < end:
            began, missing = time.monotonic(), REQUEST_BYTES
            connection.sendall(asks)
            while missing:
                got = len(connection.recv(missing))
                if not got:
                    raise ConnectionError("the server closed the connection")
                missing -= got
            times.append(round(1000 * (time.monotonic() - began), 3))
            time.sleep(PAUSE_S)
    return {"seconds": seconds, "failed": 0, "errors": [], "first_ms": times[1:], "last_ms": times[1:]}


def read(address: str, port: int, count: int, seconds: float, slow: int) -> dict[str, object]:
    """Count the bytes that each connection receives after all connections are open."""
    poll, received, buffer = select.epoll(), dict[int, int](), bytearray(BLOCK_BYTES)
    connections = [socket.create_connection((address, port), TIMEOUT_S) for _ in range(count)]
    for number, connection in enumerate(connections):
        connection.sendall(request(ENDLESS, last=True))
        received[connection.fileno()] = 0
        if number or not slow:
            poll.register(connection, select.EPOLLIN)
    by_number, began, slow_bytes = {each.fileno(): each for each in connections}, time.monotonic(), 0
    while (at := time.monotonic() - began) < seconds:
        for number, _ in poll.poll(0.1):
            got = by_number[number].recv_into(buffer)
            if not got:
                raise ConnectionError("the server closed the connection")
            received[number] += got
        if slow and slow_bytes < slow * at:
            slow_bytes += len(connections[0].recv(max(1, slow // 10)))
    rest = [received[each.fileno()] for each in connections[1 if slow else 0 :]]
    return {"seconds": time.monotonic() - began, "received": rest, "slow": slow_bytes}


def main() -> None:
    """Run a command and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("answer").add_argument("port", type=int)
    for name, words in (("ask", ("size",)), ("hold", ("count",)), ("talk", ()), ("read", ("count",))):
        command = commands.add_parser(name)
        command.add_argument("address")
        command.add_argument("port", type=int)
        for word in words:
            command.add_argument(word, type=int)
        if name != "hold":
            command.add_argument("seconds", type=float)
        if name in {"ask", "hold"}:
            command.add_argument("--at-once", type=int, default=1, dest="at_once")
    commands.choices["read"].add_argument("--slow", type=int, default=0)
    a = vars(parser.parse_args())
    said_by: dict[str, Callable[..., object]] = {"answer": answer, "ask": ask, "hold": hold, "talk": talk, "read": read}
    try:
        said = said_by[a.pop("command")](**a)
    except OSError as failed:
        sys.exit(f"{failed}")
    if said is not None:
        print(json.dumps(said))


if __name__ == "__main__":
    main()
