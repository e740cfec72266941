"""Load runs: start the server and clients of load_client.py over a `Way`, and convert their reports to figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sos_testbed.core.model import LabError

from sos_harness.relays import Way
from sos_harness.results import parse
from sos_harness.results.figures import FAILED, Found, percentile
from sos_harness.results.parse import LoadReport
from sos_harness.site import Site, cpu_s, finish, first_line, stop

T = TypeVar("T")
GRACE_S = 45.0
"""Time limit for a client beyond its run: more than twice its connection timeout."""


@contextmanager
def serving(site: Site, way: Way) -> Iterator[None]:
    """Run the request server of a way during the block."""
    with site.running("answer", *site.load_client("server", "answer", str(way.server_port))):
        site.wait_listening("server", way.server_port, "answer")
        yield


def run_client(site: Site, way: Way, parser: Callable[[str], T], seconds: float, command: str, *words: str) -> T:
    """Run a client that ends by itself after `seconds`, and parse its report."""
    program = site.begin(*site.load_client("client", command, way.address, str(way.port), *words))
    return parser(finish(program, seconds + GRACE_S))


@contextmanager
def holding(site: Site, way: Way, count: int, at_once: int) -> Iterator[LoadReport]:
    """Hold `count` connections open during the block; yield the report of their set-up."""
    words = (str(count), "--at-once", str(at_once))
    program = site.begin(*site.load_client("client", "hold", way.address, str(way.port), *words))
    try:
        yield parse.parse_load(first_line(program, GRACE_S + count / 100))
        if program.poll() is not None:
            raise LabError("the connections ended during the measurement")
    finally:
        stop(program)


@contextmanager
def background_client(site: Site, way: Way, command: str, *words: str) -> Iterator[None]:
    """Run a client in the background and discard its report."""
    with site.running(command, *site.load_client("client", command, way.address, str(way.port), *words)):
        yield


def cpu(way: Way) -> tuple[float, ...]:
    """CPU time so far of each relay of a way."""
    return tuple(cpu_s(pid) for pid in way.relays or ())


def found(report: LoadReport, **more: float | None) -> Found:
    """Figures of connections with one request each."""
    if not report.last_ms:
        return Found(status=f"{FAILED}: none of {report.failed} came through: {', '.join(report.errors)}")
    values: dict[str, float | None] = {
        "connections": len(report.last_ms),
        "failed": report.failed,
        "p50_ms": percentile(report.last_ms, 0.5),
        "p99_ms": percentile(report.last_ms, 0.99),
        "first_byte_p50_ms": percentile(report.first_ms, 0.5),
        "first_byte_p99_ms": percentile(report.first_ms, 0.99),
    }
    return Found(values={**values, **more})


def rates(report: LoadReport, used: tuple[float, ...]) -> dict[str, float | None]:
    """Connections per second, and per CPU second of the busier relay."""
    done = len(report.last_ms)
    busier = max(used, default=0.0)
    return {
        "connections_per_s": round(done / report.seconds, 1),
        "connections_per_cpu_s": round(done / busier, 1) if busier else None,
    }
