"""Ports of hosts in a VLAN that has no agent, and proof that the connections of these hosts are plain."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from conftest import accepted, eventually, metrics
from sos_testbed.core import realise
from sos_testbed.core.web import PLAIN_PORT, SOS_PORT
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.lifecycle.time_factor import limit_s
from sos_testbed.measurements import measure

COUNTERS_AGE_S = 1.0
"""Maximum age of an agent's counters: it reads nftables at most once a second."""
HUNG_S = 15
"""Limit for a connection to open. A SYN is retransmitted after 1, 3 and 7 s; a client that has not connected by then never connects."""


def vsctl(net: Lab, switch: str, *argv: str) -> None:
    subprocess.run(realise.ovs(net.plan, switch, "ovs-vsctl", *argv), check=True, capture_output=True)


def run(*argv: str, check: bool = True) -> str:
    return subprocess.run(argv, check=check, capture_output=True, text=True, timeout=limit_s(60)).stdout


def fetch(argv_in: tuple[str, ...], url: str) -> str:
    """HTTP status of a download by curl: `200`, or `000` if no connection opens in time."""
    return run(*argv_in, "curl", "-s", "-m", f"{limit_s(HUNG_S):g}", "-o", "/dev/null", "-w", "%{http_code}", url, check=False)


def taken_over(net: Lab) -> int:
    """Number of clients that the ingress agent has accepted, and of SYNs that it has taken from clients without completing the handshake.
    Agents of sites with rewriting count only the former."""
    time.sleep(COUNTERS_AGE_S + 0.1)
    found = re.search(r'^sos_agent_syns_total\{decision="accelerated"\} (\d+)$', metrics(net, "agent1"), flags=re.MULTILINE)
    return accepted(net) + (0 if found is None else int(found[1]))


def passed_by(net: Lab, switch: str) -> bool:
    """True if the base table excludes a port in another VLAN from the service's entries (spec/node-config.md clause 34)."""
    argv = realise.ovs(net.plan, switch, "ovs-ofctl", "-O", "OpenFlow13", "dump-flows", "br-sos")
    return any("priority=65100,in_port=" in line for line in run(*argv).splitlines())


@contextmanager
def tagged_port(net: Lab, switch: str, name: str, **columns: str) -> Iterator[None]:
    """Assign a host's port to a VLAN during the block."""
    vsctl(net, switch, "set", "port", name, *(f"{column}={value}" for column, value in columns.items()))
    try:
        yield
    finally:
        for column in columns:
            vsctl(net, switch, "clear", "port", name, column)


def connect_plainly(net: Lab, **columns: str) -> None:
    """Assert that client and server connect on plain and covered ports while their ports are in another VLAN, without an agent."""
    server = measure.address(net, "server")
    with tagged_port(net, "edge1", "client", **columns), tagged_port(net, "edge2", "server", **columns):
        eventually("sos-node excludes both ports", lambda: passed_by(net, "edge1") and passed_by(net, "edge2"))
        before = taken_over(net)
        for port in (PLAIN_PORT, SOS_PORT, SOS_PORT):
            assert fetch(net.exec_argv("client", ()), f"http://{server}:{port}/small") == "200", port
        assert taken_over(net) == before


def accelerated_again(net: Lab) -> None:
    """Wait until new connections of the client are accelerated."""
    before, url = taken_over(net), f"http://{measure.address(net, 'server')}:{SOS_PORT}/small"
    eventually("accelerated again", lambda: fetch(net.exec_argv("client", ()), url) == "200" and taken_over(net) > before)
