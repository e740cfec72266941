"""Many connections at once: their server and their clients, as programs for a namespace. Standard library only.

crowd.py answer PORT                                        answer each request with as many bytes as it asks for
crowd.py ask ADDRESS PORT BYTES SECONDS --at-once N         connections that ask once and end, again and again; times as JSON
crowd.py hold ADDRESS PORT COUNT --at-once N                connections that ask for a byte and stay until killed; times as JSON
crowd.py talk ADDRESS PORT SECONDS                          one connection that asks again and again; times as JSON
crowd.py read ADDRESS PORT COUNT SECONDS [--slow BYTES]     connections that receive for so long, the first at most so much a second

A request has a kilobyte: how many bytes to answer with, whether to end the connection then, and padding.
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
PATIENCE_S = 20.0
"""A connection that has not ended after so long has failed."""
HELD_S = 200.0
"""Connections that stay do so no longer, so that nothing is left of a bench that was killed."""
PAUSE_S = 0.01
"""Between an answer and the next request of one that talks."""


def request(size: int, last: bool) -> bytes:
    """Ask for so many bytes; `last`: and for the end of the connection."""
    return HEAD.pack(size, last).ljust(REQUEST_BYTES, b".")


@dataclass(slots=True)
class Guest:
    """A connection as the server sees it."""

    connection: socket.socket
    asked: bytearray = field(default_factory=bytearray)
    owed: int = 0
    last: bool = False

    def step(self, block: memoryview) -> bool:
        """Take or give what can be taken or given; False at the end."""
        if not self.owed:
            got = self.connection.recv(REQUEST_BYTES - len(self.asked))
            self.asked += got
            if len(self.asked) < REQUEST_BYTES:
                return bool(got)
            self.owed, last = HEAD.unpack_from(self.asked)
            self.last = bool(last)
            self.asked.clear()
        self.owed -= self.connection.send(block[: min(self.owed, len(block))])
        return bool(self.owed) or not self.last


def answer(port: int) -> None:
    """Serve until killed."""
    block = memoryview(os.urandom(BLOCK_BYTES))
    listener = socket.create_server(("", port), backlog=BACKLOG)
    listener.setblocking(False)
    poll, guests = select.epoll(), dict[int, Guest]()
    poll.register(listener, select.EPOLLIN)
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                welcome(listener, poll, guests)
                continue
            guest = guests[number]
            owed = bool(guest.owed)
            if not stepped(guest, block):
                guests.pop(number).connection.close()
            elif owed != bool(guest.owed):
                poll.modify(number, select.EPOLLOUT if guest.owed else select.EPOLLIN)


def welcome(listener: socket.socket, poll: select.epoll, guests: dict[int, Guest]) -> None:
    """Take all connections that wait."""
    with contextlib.suppress(BlockingIOError):
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            guests[connection.fileno()] = Guest(connection)
            poll.register(connection, select.EPOLLIN)


def stepped(guest: Guest, block: memoryview) -> bool:
    """A step; False also where the connection has broken."""
    try:
        return guest.step(block)
    except BlockingIOError:
        return True
    except OSError:
        return False


@dataclass(slots=True)
class Trip:
    """A connection as its client sees it; times in seconds since its beginning, before the connect."""

    connection: socket.socket
    began: float
    received: int = 0
    first_s: float | None = None
    last_s: float | None = None
    error: str = ""


class Crowd:
    """Connections of one client, each of which asks once; `ended` has those that are through."""

    def __init__(self, address: str, port: int, size: int, stay: bool) -> None:
        self.to = (address, port)
        self.size = size
        self.stay = stay
        self.ended: list[Trip] = []
        self._asks = request(size, last=not stay)
        self._poll = select.epoll()
        self._under_way: dict[int, Trip] = {}

    def run(self, at_once: int, more: Callable[[int], bool]) -> None:
        """Begin connections, so many at a time, while more(begun so far) says so; until all have ended."""
        begun, buffer = 0, bytearray(BLOCK_BYTES if self.size > SMALL_BYTES else SMALL_BYTES)
        while True:
            while len(self._under_way) < at_once and more(begun):
                begun += 1
                self._begin()
            if not self._under_way:
                return
            for number, event in self._poll.poll(1.0):
                self._step(self._under_way[number], event, buffer)
            self._give_up(time.monotonic() - PATIENCE_S)

    def _begin(self) -> None:
        trip = Trip(socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK), time.monotonic())
        if self.stay:
            # ends with a reset: what is left of ten thousand that end at one instant would be in the way of the next ones
            trip.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._under_way[trip.connection.fileno()] = trip
        self._poll.register(trip.connection, select.EPOLLOUT)
        if (failed := trip.connection.connect_ex(self.to)) not in {0, errno.EINPROGRESS}:
            self._end(trip, os.strerror(failed))

    def _step(self, trip: Trip, event: int, buffer: bytearray) -> None:
        try:
            if event & select.EPOLLOUT and not event & (select.EPOLLERR | select.EPOLLHUP):
                trip.connection.send(self._asks)
                self._poll.modify(trip.connection, select.EPOLLIN)
                return
            self._take(trip, trip.connection.recv_into(buffer))
        except BlockingIOError:
            pass
        except OSError as failed:
            self._end(trip, str(failed))

    def _take(self, trip: Trip, got: int) -> None:
        at = time.monotonic() - trip.began
        trip.received += got
        if got and trip.first_s is None:
            trip.first_s = at
        if trip.received == self.size and trip.last_s is None:
            trip.last_s = at
        whole = trip.last_s is not None
        if whole and self.stay:
            self._end(trip, "")
        elif not got:
            self._end(trip, "" if whole else f"the server ended it after {trip.received} bytes")

    def _give_up(self, before: float) -> None:
        # of those under way the first is the oldest: nothing is looked at twice
        while self._under_way and (oldest := next(iter(self._under_way.values()))).began < before:
            self._end(oldest, "timed out")

    def _end(self, trip: Trip, error: str) -> None:
        trip.error = error
        del self._under_way[trip.connection.fileno()]
        self._poll.unregister(trip.connection)
        if error or not self.stay:
            trip.connection.close()
        self.ended.append(trip)

    def report(self, seconds: float) -> dict[str, object]:
        """What became of them."""
        good = [trip for trip in self.ended if not trip.error]
        errors = sorted({trip.error for trip in self.ended if trip.error})
        return {
            "seconds": seconds,
            "failed": len(self.ended) - len(good),
            "errors": errors[:3],
            "first_ms": [round(1000 * (trip.first_s or 0), 2) for trip in good],
            "last_ms": [round(1000 * (trip.last_s or 0), 2) for trip in good],
        }


def ask(address: str, port: int, size: int, seconds: float, at_once: int) -> dict[str, object]:
    """Short connections for so long."""
    began, crowd = time.monotonic(), Crowd(address, port, size, stay=False)
    crowd.run(at_once, lambda _: time.monotonic() - began < seconds)
    return crowd.report(time.monotonic() - began)


def hold(address: str, port: int, count: int, at_once: int) -> None:
    """Connections that stay until this is ended: said when they are there."""
    began, crowd = time.monotonic(), Crowd(address, port, 1, stay=True)
    crowd.run(at_once, lambda begun: begun < count)
    print(json.dumps(crowd.report(time.monotonic() - began)), flush=True)
    time.sleep(HELD_S)
    sys.exit(f"nobody ended connections that stay within {HELD_S:.0f} s")


def talk(address: str, port: int, seconds: float) -> dict[str, object]:
    """One connection: the first answer is not counted, which has its set-up in it."""
    times, asks, end = list[float](), request(REQUEST_BYTES, last=False), time.monotonic() + seconds
    with socket.create_connection((address, port), PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while time.monotonic() < end:
            began, missing = time.monotonic(), REQUEST_BYTES
            connection.sendall(asks)
            while missing:
                got = len(connection.recv(missing))
                if not got:
                    raise ConnectionError("the server ended it")
                missing -= got
            times.append(round(1000 * (time.monotonic() - began), 3))
            time.sleep(PAUSE_S)
    return {"seconds": seconds, "failed": 0, "errors": [], "first_ms": times[1:], "last_ms": times[1:]}


def read(address: str, port: int, count: int, seconds: float, slow: int) -> dict[str, object]:
    """Bytes that each has received in the time from when all were connected."""
    poll, received, buffer = select.epoll(), dict[int, int](), bytearray(BLOCK_BYTES)
    connections = [socket.create_connection((address, port), PATIENCE_S) for _ in range(count)]
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
                raise ConnectionError("the server ended it")
            received[number] += got
        if slow and slow_bytes < slow * at:
            slow_bytes += len(connections[0].recv(max(1, slow // 10)))
    rest = [received[each.fileno()] for each in connections[1 if slow else 0 :]]
    return {"seconds": time.monotonic() - began, "received": rest, "slow": slow_bytes}


def main() -> None:
    """Arguments in, one line of JSON out."""
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
