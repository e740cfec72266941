"""Crowds of connections by a way: the server that answers them, their clients, and the figures of what those say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sos_testbed.model import LabError

from sos_wan import parse
from sos_wan.figures import FAILED, Found, percentile
from sos_wan.parse import Trips
from sos_wan.relays import Way
from sos_wan.site import Site, cpu_s, finish, first_line, stop

T = TypeVar("T")
GRACE_S = 45.0
"""A client may take so much longer than it is meant to: its own patience with a connection, twice."""


@contextmanager
def answered(site: Site, way: Way) -> Iterator[None]:
    """A server at the end of a way that answers requests."""
    with site.running("answer", *site.crowd("server", "answer", str(way.server_port))):
        site.wait_listening("server", way.server_port, "answer")
        yield


def visit(site: Site, way: Way, parser: Callable[[str], T], seconds: float, command: str, *words: str) -> T:
    """What a client says that ends by itself after so many seconds."""
    program = site.begin(*site.crowd("client", command, way.address, str(way.port), *words))
    return parser(finish(program, seconds + GRACE_S))


@contextmanager
def held(site: Site, way: Way, count: int, at_once: int) -> Iterator[Trips]:
    """So many connections while they are open."""
    words = (str(count), "--at-once", str(at_once))
    program = site.begin(*site.crowd("client", "hold", way.address, str(way.port), *words))
    try:
        yield parse.parse_trips(first_line(program, GRACE_S + count / 100))
        if program.poll() is not None:
            raise LabError("the connections ended while they were looked at")
    finally:
        stop(program)


@contextmanager
def visited(site: Site, way: Way, command: str, *words: str) -> Iterator[None]:
    """A client that goes on meanwhile; what it says is not wanted."""
    with site.running(command, *site.crowd("client", command, way.address, str(way.port), *words)):
        yield


def cpu(way: Way) -> tuple[float, ...]:
    """CPU time of a way's relays so far."""
    return tuple(cpu_s(pid) for pid in way.relays or ())


def found(trips: Trips, **more: float | None) -> Found:
    """Figures of connections that ask once."""
    if not trips.last_ms:
        return Found(status=f"{FAILED}: none of {trips.failed} came through: {', '.join(trips.errors)}")
    values: dict[str, float | None] = {
        "connections": len(trips.last_ms),
        "failed": trips.failed,
        "p50_ms": percentile(trips.last_ms, 0.5),
        "p99_ms": percentile(trips.last_ms, 0.99),
        "first_byte_p50_ms": percentile(trips.first_ms, 0.5),
        "first_byte_p99_ms": percentile(trips.first_ms, 0.99),
    }
    return Found(values={**values, **more})


def pace(trips: Trips, used: tuple[float, ...]) -> dict[str, float | None]:
    """Connections per second, and per CPU second of the busier relay."""
    done = len(trips.last_ms)
    busier = max(used, default=0.0)
    return {
        "connections_per_s": round(done / trips.seconds, 1),
        "connections_per_cpu_s": round(done / busier, 1) if busier else None,
    }
