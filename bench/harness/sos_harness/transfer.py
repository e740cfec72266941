"""Bulk transfers: run and observe the programs of each scheme. With every scheme, the client downloads from the server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sos_testbed.core.model import LabError

from sos_harness import network, relays
from sos_harness.agents import METRICS_PORT
from sos_harness.relays import PLAIN_PORT, NotAvailableError, Way
from sos_harness.results import parse
from sos_harness.results.figures import Found, Outcome, found
from sos_harness.results.parse import Received
from sos_harness.results.run_log import Unit
from sos_harness.scenario import Kind, Scheme
from sos_harness.site import Site, cpu_s, finish, missing, stop

OTHER_PORT, IPERF3_PORT, GRIDFTP_PORT = 8001, 8101, 2811
GRACE_S = 40.0
"""Time limit for a transfer beyond its length: connection set-up, and the stall timeout of the client."""
BETWEEN_S = 2.0
"""Pause between the first and the second transfer of SOS."""
GLOBUS_REPORT_S = 2.0
SPARSE_BYTES = 64 << 30
"""Size of a sparse file, larger than any transfer of the benchmarks."""

Emit = Callable[[str, Found], None]
"""Function that records a label and its figures as a row immediately."""


def measure(site: Site, unit: Unit, seconds: float, emit: Emit) -> None:
    """Run all transfers of one run of a scheme. Raises NotAvailableError, or LabError if its programs do not start."""
    scheme, large = unit.scheme, unit.scheme.large_buffers
    for part in ("client", "server"):
        site.buffers(part, network.LARGE_BUFFERS if large else network.LINUX_BUFFERS)
    site.flush_tcp_metrics("client", "server", "other1", "other2", "near", "far", "hanear", "hafar")
    time.sleep(site.scenario.drain_s)  # drain queues that the previous scheme has filled
    with site.over(scheme.only_path) as check:

        def checked(label: str, measured: Found) -> None:
            check()
            emit(label, measured)

        WAYS[scheme.kind](site, scheme, seconds, checked)


def _sos(site: Site, scheme: Scheme, seconds: float, emit: Emit) -> None:
    with relays.sos(site, scheme) as way, served(site, "server", way.server_port):
        for number, label in enumerate(scheme.labels):
            if number:
                time.sleep(BETWEEN_S)
            with relays.all_accelerated(site, scheme) as check:
                seen = _accelerated(site, way, seconds)
                check(1)
            emit(label, found(seen, seconds))


def _accelerated(site: Site, way: Way, seconds: float) -> Outcome:
    """Run one transfer through the agents, and record the peak of the receiving agent's reorder buffer."""
    url = f"http://127.0.0.1:{METRICS_PORT}/metrics"
    watch = site.begin(*site.transfer_tool("near", "peak", url, "sos_agent_reorder_bytes", str(seconds)))
    try:
        seen = download(site, way, seconds)
        return replace(seen, reorder_peak_bytes=parse.parse_peak(finish(watch, GRACE_S)))
    finally:
        stop(watch)


def _plain(site: Site, scheme: Scheme, seconds: float, emit: Emit) -> None:
    with relays.plain(site, scheme) as way, served(site, "server", way.server_port, "--congestion", scheme.congestion):
        emit(scheme.name, found(download(site, way, seconds), seconds))


def _mptcp(site: Site, scheme: Scheme, seconds: float, emit: Emit) -> None:
    if not Path("/proc/sys/net/mptcp/enabled").exists():
        raise NotAvailableError("this kernel has no MPTCP")
    for part in ("client", "server"):
        site.command(part, "sysctl", "-q", "-w", "net.mptcp.enabled=1")
        site.command(part, "ip", "mptcp", "limits", "set", "subflows", "2", "add_addr_accepted", "2")
    site.command("client", "ip", "mptcp", "endpoint", "flush")
    site.command("client", "ip", "mptcp", "endpoint", "add", network.CLIENT_SECOND, "dev", "eth0", "subflow")
    with served(site, "server", PLAIN_PORT, "--congestion", scheme.congestion, "--mptcp"):
        before = site.joined("client")
        seen = observe(site, seconds, lambda: fetch(site, PLAIN_PORT, seconds, mptcp=True), "server")
        if site.joined("client") == before:
            raise LabError("MPTCP used one path only")
        emit(scheme.name, found(seen, seconds))


def _iperf3(site: Site, scheme: Scheme, seconds: float, emit: Emit) -> None:
    if why := missing("iperf3"):
        raise NotAvailableError(why)
    stay = ("-J", "-i", "0.5", "-t", f"{seconds:g}", "-C", scheme.congestion)
    client = ("iperf3", "-c", network.SERVER, "-p", str(IPERF3_PORT), "-R", "-P", str(scheme.streams), *stay)
    with site.running("iperf3", "server", "iperf3", "-s", "-p", str(IPERF3_PORT)):
        site.wait_listening("server", IPERF3_PORT, "iperf3")
        emit(scheme.name, found(observe(site, seconds, lambda: _collect(site, parse.parse_iperf3, seconds, *client), "server"), seconds))


def _haproxy(site: Site, scheme: Scheme, seconds: float, emit: Emit) -> None:
    with relays.haproxy(site, scheme) as way, served(site, "server", way.server_port):
        emit(scheme.name, found(download(site, way, seconds), seconds))


def _gridftp(site: Site, scheme: Scheme, seconds: float, emit: Emit) -> None:
    if why := missing("globus-gridftp-server", "globus-url-copy"):
        raise NotAvailableError(why)
    source = Path(site.plan.root) / "nothing"
    with source.open("wb") as file:
        file.truncate(SPARSE_BYTES)
    server = ("globus-gridftp-server", "-s", "-aa", "-anonymous-user", "root", "-allow-root", "-p", str(GRIDFTP_PORT))
    url = f"ftp://{network.SERVER}:{GRIDFTP_PORT}{source}"
    client = ("globus-url-copy", "-vb", "-p", str(scheme.streams), url, "file:///dev/null")
    with site.running("gridftp", "server", *server):
        site.wait_listening("server", GRIDFTP_PORT, "gridftp")
        emit(scheme.name, found(observe(site, seconds, lambda: _globus(site, client, seconds), "server"), seconds))


def _globus(site: Site, client: tuple[str, ...], seconds: float) -> Received:
    copy = site.begin("client", *client)
    try:
        time.sleep(seconds + GLOBUS_REPORT_S)
        os.kill(copy.pid, signal.SIGINT)
        return parse.parse_globus(finish(copy, GRACE_S))
    finally:
        stop(copy)


WAYS: dict[Kind, Callable[[Site, Scheme, float, Emit], None]] = {
    Kind.SOS: _sos,
    Kind.PLAIN: _plain,
    Kind.MPTCP: _mptcp,
    Kind.IPERF3: _iperf3,
    Kind.HAPROXY: _haproxy,
    Kind.GRIDFTP: _gridftp,
}


@contextmanager
def served(site: Site, part: str, port: int, *options: str) -> Iterator[None]:
    """Run a server that sends without end, during the block."""
    name = f"{part}-{port}"
    with site.running(name, *site.transfer_tool(part, "serve", str(port), *options)):
        site.wait_listening(part, port, name)
        yield


def fetch(site: Site, port: int, seconds: float, *, address: str = network.SERVER, mptcp: bool = False) -> Received:
    """Receive from a server for `seconds`."""
    options = ("--mptcp",) if mptcp else ()
    return _collect(
        site, parse.parse_fetch, seconds, *site.transfer_tool("client", "fetch", address, str(port), str(seconds), *options)[1:]
    )


def _collect(site: Site, parser: Callable[[str], Received], seconds: float, *client: str) -> Received:
    return parser(finish(site.begin("client", *client), seconds + GRACE_S))


def download(site: Site, way: Way, seconds: float) -> Outcome:
    """Receive over a way for `seconds`."""
    return observe(site, seconds, lambda: fetch(site, way.port, seconds, address=way.address), way.sender, way.relays)


def observe(site: Site, seconds: float, transfer: Callable[[], Received], sender: str, pids: tuple[int, int] | None = None) -> Outcome:
    """Run a transfer; observe retransmissions of its sender and, if `pids` has them, CPU times of the sending and receiving relay."""
    load = os.getloadavg()[0]
    retransmitted, lost = site.retransmitted(sender), site.emulator_lost()
    before = [cpu_s(pid) for pid in pids or ()]
    with _beside(site, seconds) as competitor:
        received = transfer()
    used = [cpu_s(pid) - start for pid, start in zip(pids or (), before, strict=True)]
    return Outcome(
        received=received,
        retransmitted=site.retransmitted(sender) - retransmitted,
        cpu_sender_s=used[0] if used else None,
        cpu_receiver_s=used[1] if used else None,
        competitor=competitor[0] if competitor else None,
        load=round(load, 2),
        emulator_lost=site.emulator_lost() - lost,
    )


@contextmanager
def _beside(site: Site, seconds: float) -> Iterator[list[Received]]:
    """In a shared scenario, run a plain download between two other hosts during the block; yields a list that has its result afterwards."""
    seen: list[Received] = []
    if not site.scenario.shared:
        yield seen
        return
    with served(site, "other2", OTHER_PORT, "--congestion", "cubic"):
        other = site.begin(*site.transfer_tool("other1", "fetch", network.OTHER_SERVER, str(OTHER_PORT), str(seconds)))
        try:
            yield seen
            seen.append(parse.parse_fetch(finish(other, GRACE_S)))
        finally:
            stop(other)
