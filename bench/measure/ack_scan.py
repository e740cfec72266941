"""Effect of a port scan on others: pings of a neighbour that are lost while a host sends acknowledgements to 1,000 ports of 120 addresses.

    bench/measure/ack_scan.py [--rounds 5] [--rate 24000] [--source-ports one] [--check] [--out out/bench]
                                              (root; from the top of the repository, with .venv/bin/python)

Two labs are alike, but only one has a service that covers the scanned ports; rounds alternate between the labs. Acknowledgements of no
connection reach no agent; each combination of fields that a switch examines takes one look-up in its tables (docs/adr/0020), by the thread
that forwards all traffic. With --check, the program fails if the share of lost pings with the service is more than twice the share without.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any, NamedTuple

from sos_testbed.core import realise, topology
from sos_testbed.core.model import Host, Topology
from sos_testbed.core.topology import PathOptions
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab, Options
from sos_testbed.measurements import measure

TOP = Path(__file__).resolve().parents[2]
PROGRAM = TOP / "testbed" / "tests" / "scenarios" / "programs" / "ack_scan.py"
PATH = PathOptions(rate_bps=100_000_000, rtt_us=10_000)
NEIGHBOUR = Host(name="neighbour", switch="edge1", address=IPv4Interface("10.0.0.12/24"))
FIRST_TARGET, ADDRESSES, FIRST_PORT, PORTS = "10.0.0.130", 120, 5000, 1000
SCAN_S, PING_EVERY_S, PING_WAIT_S = 5.0, 0.02, 0.5
MOST = 2.0
"""Allowed ratio of the shares of lost pings, with the service to without."""
SLACK = 0.01
"""Share of lost pings that is allowed in any case: 1 % of a round is two or three pings."""
END_S = 60.0


class Round(NamedTuple):
    """One scan: share of lost pings, megaflows at the scanner's switch afterwards, packets sent."""

    lost: float
    megaflows: int
    sent: int


def neighbours(path1: PathOptions, path2: PathOptions) -> Topology:
    """figure8 with a second host at the scanner's switch."""
    plain = topology.figure8(path1, path2)
    return replace(plain, name="neighbours", hosts=(*plain.hosts, NEIGHBOUR))


@contextmanager
def raised(name: str, *, services: bool) -> Iterator[Lab]:
    """A lab with this name, during the block."""
    lab = labs.up(Options(topology="neighbours", examples=(TOP / "examples" / "01-two-sites",), name=name, services=services), print)
    try:
        labs.wait_ready(lab, lab.documents)
        if services:
            wait_armed(lab)
        yield lab
    finally:
        lab.down()


def mac_of(lab: Lab, host: str) -> str:
    """Address of a host's interface."""
    argv = ("ip", "-n", lab.plan.netns(host), "-j", "link", "show", "eth0")
    return str(json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)[0]["address"])


def wait_armed(lab: Lab) -> None:
    """Wait until the scanner's switch sends SYNs of the service to the controller. Until then, it has no entries of the service."""
    dump = realise.ovs(lab.plan, "edge1", "ovs-ofctl", "dump-flows", "br-sos", "table=0")
    deadline = time.monotonic() + END_S
    while not re.search(r"tp_dst=.*CONTROLLER", subprocess.run(dump, capture_output=True, text=True, check=True).stdout):
        if time.monotonic() > deadline:
            raise SystemExit(f"the service has no entries at edge1 after {END_S:g} s")
        time.sleep(0.5)


def megaflows(lab: Lab) -> int:
    """Number of cached decisions at the scanner's switch."""
    show = realise.ovs(lab.plan, "edge1", "ovs-appctl", "dpctl/show")
    found = re.search(r"flows: (\d+)", subprocess.run(show, capture_output=True, text=True, check=True).stdout)
    if found is None:
        raise SystemExit("dpctl/show reports no number of flows")
    return int(found[1])


def scan(lab: Lab, rate: int, source_ports: str) -> Round:
    """Run one scan, with pings of the neighbour beside it."""
    source = next(host.address.ip for host in lab.topology.hosts if host.name == "client")
    words = ("eth0", mac_of(lab, "server"), source, FIRST_TARGET, ADDRESSES, FIRST_PORT, PORTS, SCAN_S, rate, source_ports)
    count = int(SCAN_S / PING_EVERY_S)
    pinging = ("ping", "-q", "-i", str(PING_EVERY_S), "-c", str(count), "-W", str(PING_WAIT_S), measure.address(lab, "server"))
    scanner = subprocess.Popen(lab.exec_argv("client", (sys.executable, str(PROGRAM), *map(str, words))), stdout=subprocess.PIPE, text=True)
    try:
        said = subprocess.run(lab.exec_argv("neighbour", pinging), capture_output=True, text=True, check=False, timeout=END_S).stdout
        flows = megaflows(lab)
    finally:
        sent = scanner.communicate(timeout=END_S)[0]
    found = re.search(r"(\d+) packets transmitted, (\d+) received", said)
    if scanner.returncode or found is None:
        raise SystemExit(f"the scan or its pings failed: {said.strip() or 'no report of ping'}")
    return Round(1 - int(found[2]) / int(found[1]), flows, int(sent))


def main() -> None:
    """Measure, print the shares, write ack-scan.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="scans of each lab (default 5)")
    parser.add_argument("--rate", type=int, default=24_000, help="packets per second (default 24,000: all ports and addresses in 5 s)")
    parser.add_argument("--source-ports", choices=("one", "many"), default="one", help="source ports of the scan (default one)")
    parser.add_argument("--check", action="store_true", help=f"fail beyond {MOST:g} times the share without the service")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    arguments = parser.parse_args()
    if not 1 <= arguments.rounds <= 100:
        parser.error("--rounds: 1 to 100")
    topology.BUILDERS["neighbours"] = topology.Builder(build=neighbours, path1=PATH, path2=PATH)
    rounds: dict[str, list[Round]] = {"with": [], "without": []}
    with ExitStack() as stack:
        built = {kind: stack.enter_context(raised(f"scan-{kind}", services=kind == "with")) for kind in rounds}
        for number in range(arguments.rounds):
            for kind, lab in built.items():
                rounds[kind].append(scan(lab, arguments.rate, arguments.source_ports))
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"rate": arguments.rate, "sourcePorts": arguments.source_ports}
    result |= {kind: [one._asdict() for one in seen] for kind, seen in rounds.items()}
    (arguments.out / "ack-scan.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    medians = {kind: statistics.median(one.lost for one in seen) for kind, seen in rounds.items()}
    for kind, seen in rounds.items():
        lost, flows, sent = zip(*seen, strict=True)
        spread = f"{min(lost):.1%} to {max(lost):.1%}"
        sizes = f"{statistics.median(flows):.0f} megaflows, {statistics.median(sent):.0f} packets"
        print(f"{kind} the service: {medians[kind]:.1%} of the pings lost ({spread}), {sizes}")
    if arguments.check and medians["with"] > max(MOST * medians["without"], SLACK):
        raise SystemExit(f"the scan costs others more than {MOST:g} times as many pings with the service")


if __name__ == "__main__":
    main()
