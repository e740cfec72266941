"""Transfers by unmodified programs, and the capacity of a wire.

curl runs at one host and nginx at the other. SHA-256 compares the bytes, and client and server report their peer's address.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sos_testbed.core.model import Host, LabError, Router, Shape
from sos_testbed.core.web import SOS_PORT
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.lifecycle.runner import run
from sos_testbed.lifecycle.time_factor import limit_s

# A full Ethernet frame: 1500 bytes IP, 14 header, 4 checksum, 20 preamble and gap. A TCP payload with timestamps has 1448 bytes.
FRAME_BYTES = 1538
TCP_PAYLOAD_BYTES = 1448
UDP_PAYLOAD_BYTES = 1472

PROBE_PORT = 8090  # not covered by any service of the examples
PROBE_STREAMS = 32
# A cubic stream at 20 ms and 1 % loss reaches about 9 Mbit/s (thesis table 19): filling a lossy wire takes iperf3's maximum of streams
PROBE_STREAMS_LOSSY = 128
PROBE_WARM_UP_S = 3  # omitted start of a TCP probe: slow start and the first overshoot of the queue, at 164 ms
PROBE_S = 4
FULL_SHARE = 0.975  # share of the calculated rate from which a wire counts as full; TCP never exceeded it in measurements
PROBE_GRACE_S = 10  # extra time for the handshakes of 128 streams on a lossy wire
# iperf3 opens a UDP test with one datagram and never retransmits it: at 1 % loss one run in fifty hangs
PROBE_ATTEMPTS = 4
_LOG_WAIT_S = 10.0
_START_WAIT_S = 5.0
_CURL_TIMED_OUT = 28
_CURL_GRACE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One transfer, from the reports of the client and of the server's log.

    `client_saw` is the server's address and port as the client saw it, `client_address` is the client's own address and port,
    `server_saw` is the client's address and port in the server's log. `complete` is False after a timeout or an error.
    """

    size_bytes: int
    seconds: float
    first_byte_s: float
    status: int
    complete: bool
    client_saw: str
    client_address: str
    server_saw: str
    error: str

    @property
    def mbps(self) -> float:
        """Payload over the whole time, from before the connection to the last byte, in Mbit/s."""
        return self.size_bytes * 8 / self.seconds / 1e6 if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WireLimit:
    """Capacity of a wire in TCP payload, in Mbit/s: calculated, and measured in this run."""

    formula_mbps: float
    udp_mbps: float
    tcp_mbps: float | None
    """None if UDP filled the wire, or filled so little that the caller tries a lower rate."""

    @property
    def mbps(self) -> float:
        """Minimum of the calculated rate and of the better measurement."""
        return min(self.formula_mbps, max(self.tcp_mbps or 0.0, self.udp_mbps))

    def of(self, paths: int) -> WireLimit:
        """Total capacity of several wires of this kind."""
        tcp_mbps = None if self.tcp_mbps is None else self.tcp_mbps * paths
        return WireLimit(formula_mbps=self.formula_mbps * paths, udp_mbps=self.udp_mbps * paths, tcp_mbps=tcp_mbps)

    def __str__(self) -> str:
        tcp = "" if self.tcp_mbps is None else f", TCP {self.tcp_mbps:.0f}"
        return f"{self.mbps:6.0f} Mbit/s (arithmetic {self.formula_mbps:.0f}, UDP {self.udp_mbps:.0f}{tcp})"


def formula_mbps(shape: Shape) -> float:
    """Rate x 1448/1538 x (1 - loss), in Mbit/s."""
    return shape.rate_bps * TCP_PAYLOAD_BYTES / FRAME_BYTES * (1 - shape.loss) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Parameters of a transfer: `path` is below the lab's www folder for a download, any file for an upload. `max_time_s` is multiplied by
    the machine's time factor (`lifecycle.time_factor`)."""

    client: str = "client"
    server: str = "server"
    port: int = SOS_PORT
    path: Path
    max_time_s: float


def download(lab: Lab, request: Request, into: Path) -> Transfer:
    """GET a file of the lab's www folder into `into`."""
    url = f"http://{address(lab, request.server)}:{request.port}/{request.path.name}"
    return _transfer(lab, request, ("-o", str(into), url), upload=False)


def upload(lab: Lab, request: Request, name: str) -> Transfer:
    """PUT a file to the server; it is stored at `received(lab, server, name)`."""
    url = f"http://{address(lab, request.server)}:{request.port}/upload/{name}"
    return _transfer(lab, request, ("-T", str(request.path), "-o", "/dev/null", url), upload=True)


def received(lab: Lab, server: str, name: str) -> Path:
    """Path at which a server stores an upload."""
    return lab.root / server / "upload" / name


def address(lab: Lab, host: str) -> str:
    """A host's address."""
    servers: list[Host | Router] = [*lab.topology.hosts, *lab.topology.routers]
    for candidate in servers:
        if candidate.name == host:
            return str(candidate.address.ip)
    raise LabError(f"no host {host!r}")


def curl_argv(lab: Lab, request: Request, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Command line of a transfer; curl reports as JSON on standard output."""
    # no -f, because callers evaluate the status; -s, because the progress meter would cost a system call per buffer
    command = ("curl", "-sS", "--max-time", f"{limit_s(request.max_time_s):.1f}", "-w", "%{json}", *arguments)
    return lab.exec_argv(request.client, command)


def _transfer(lab: Lab, request: Request, arguments: tuple[str, ...], *, upload: bool) -> Transfer:
    argv = curl_argv(lab, request, arguments)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s(request.max_time_s + _CURL_GRACE_S))
    except subprocess.TimeoutExpired:
        raise LabError(f"curl at {request.client} did not end within its time") from None
    return parse_transfer(lab, request, done.stdout, upload=upload)


def parse_transfer(lab: Lab, request: Request, report: str, *, upload: bool) -> Transfer:
    """curl's JSON report, completed by the server's log."""
    try:
        seen = json.loads(report)
    except ValueError:
        raise LabError(f"curl at {request.client} said {report[:200]!r}") from None
    own = f"{seen['local_ip']}:{seen['local_port']}"
    connected = bool(seen["local_ip"])
    return Transfer(
        size_bytes=int(seen["size_upload" if upload else "size_download"]),
        seconds=float(seen["time_total"]),
        first_byte_s=float(seen["time_starttransfer"]),
        status=int(seen["http_code"]),
        complete=int(seen["exitcode"]) == 0,
        client_saw=f"{seen['remote_ip']}:{seen['remote_port']}",
        client_address=own,
        server_saw=_server_saw(lab, request.server, own) if connected and int(seen["exitcode"]) in {0, _CURL_TIMED_OUT} else "",
        error=str(seen.get("errormsg") or ""),
    )


def _server_saw(lab: Lab, server: str, client_address: str) -> str:
    """Remote address in the server's log line for this client, else in the last line; "" if the log is empty."""
    log = lab.root / server / "access.log"
    deadline = time.monotonic() + limit_s(_LOG_WAIT_S)
    while True:
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        for line in reversed(lines):
            if line.split(" ", 1)[0] == client_address:
                return client_address
        if time.monotonic() > deadline:
            return lines[-1].split(" ", 1)[0] if lines else ""
        time.sleep(0.05)


def sha256(path: Path, size: int | None = None) -> str:
    """SHA-256 of a file, or of its first `size` bytes."""
    digest = hashlib.sha256()
    left = path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while left > 0 and (chunk := file.read(min(left, 1 << 20))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def same_bytes(source: Path, copy: Path, *, complete: bool) -> bool:
    """True if the copy equals the source or, after an incomplete transfer, its beginning."""
    size = copy.stat().st_size
    if complete and size != source.stat().st_size:
        return False
    return sha256(copy) == sha256(source, size)


def wire_limit(lab: Lab, shape: Shape, least_share: float = 0.0) -> WireLimit:
    """Plain capacity of the path towards the client, measured by UDP at the wire's rate. If UDP does not fill the wire, many TCP streams
    are measured, too, unless UDP stays below `least_share` of the calculated rate."""
    arithmetic_mbps = formula_mbps(shape)
    bits = shape.rate_bps * UDP_PAYLOAD_BYTES // FRAME_BYTES
    udp = probe(lab, ("-u", "-w", str(_udp_buffer()), "-b", str(bits), "-l", str(UDP_PAYLOAD_BYTES), "-t", str(PROBE_S)))
    udp_mbps = _udp_received(udp) * TCP_PAYLOAD_BYTES / UDP_PAYLOAD_BYTES / 1e6
    if not least_share * arithmetic_mbps <= udp_mbps < FULL_SHARE * arithmetic_mbps:
        return WireLimit(formula_mbps=arithmetic_mbps, udp_mbps=udp_mbps, tcp_mbps=None)
    streams = PROBE_STREAMS_LOSSY if shape.loss else PROBE_STREAMS
    tcp = probe(lab, ("-P", str(streams), "-O", str(PROBE_WARM_UP_S), "-t", str(PROBE_S)))
    tcp_mbps = tcp["end"]["sum_received"]["bits_per_second"] / 1e6
    return WireLimit(formula_mbps=arithmetic_mbps, udp_mbps=udp_mbps, tcp_mbps=tcp_mbps)


def _udp_buffer() -> int:
    """Receive buffer of iperf3: 2 MB, enough if the receiver gets no CPU for 30 ms. With more than the machine's limit, iperf3 would
    fail."""
    return min(2 << 20, int(Path("/proc/sys/net/core/rmem_max").read_text(encoding="ascii")))


def _udp_received(report: dict[str, dict[str, dict[str, float]]]) -> float:
    total = report["end"]["sum"]
    return total["bits_per_second"] * (1 - total["lost_percent"] / 100)


def probe(lab: Lab, arguments: tuple[str, ...]) -> dict[str, dict[str, dict[str, float]]]:
    """Run iperf3 from server to client and return its JSON report; raise LabError if every attempt fails."""
    for attempt in range(PROBE_ATTEMPTS):
        try:
            return _probe_once(lab, arguments)
        except LabError:
            if attempt == PROBE_ATTEMPTS - 1:
                raise
    raise AssertionError("PROBE_ATTEMPTS is at least 1")


def _probe_once(lab: Lab, arguments: tuple[str, ...]) -> dict[str, dict[str, dict[str, float]]]:
    command = ("iperf3", "-c", address(lab, "server"), "-p", str(PROBE_PORT), "-R", "-J", *arguments)
    with _probe_server(lab):  # a new server for each test: between two tests, an iperf3 server briefly refuses connections
        text = run(lab.exec_argv("client", command), what="iperf3", timeout_s=PROBE_WARM_UP_S + PROBE_S + PROBE_GRACE_S)
    report: dict[str, dict[str, dict[str, float]]] = json.loads(text)
    if "error" in report:  # with JSON output iperf3 exits with status 0 even on failure
        raise LabError(f"iperf3: {report['error']}")
    return report


@contextmanager
def _probe_server(lab: Lab) -> Iterator[None]:
    argv = lab.exec_argv("server", ("iperf3", "-s", "-p", str(PROBE_PORT)))
    server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_listening(lab, "server", PROBE_PORT)
        yield
    finally:
        server.terminate()
        server.wait(timeout=limit_s(10))


def wait_listening(lab: Lab, host: str, port: int) -> None:
    """Wait until a TCP port of a host accepts connections; raise LabError after a few seconds."""
    deadline = time.monotonic() + limit_s(_START_WAIT_S)
    command = lab.exec_argv(host, ("ss", "-Hltn", f"sport = :{port}"))
    while not run(command, what="ss").strip():
        if time.monotonic() > deadline:
            raise LabError(f"nothing listens on port {port} of {host}")
        time.sleep(0.05)
