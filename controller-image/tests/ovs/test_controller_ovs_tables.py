"""Real switches with small tables (`Flow_Table`, ovs-vswitchd.conf.db(5)): services that fit are programmed, others are TableFull.

The tests need root, openvswitch-switch and iproute2. `controller_lab` shows the topology.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from controller_lab import HOSTS, Lab, document, lab, wait
from sos_controller.core.openflow.pipeline import Kind
from sos_controller.files.config import document_hash

SLOW = 60.0
SIZE = 100
"""Entries of each bounded table."""
MANY = 10_000
"""Made-up hosts."""

SEND = """
import socket, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(("eth0", 0))
for number, line in enumerate(sys.stdin):
    s.send(bytes.fromhex(line))
    if number % 20 == 19: time.sleep(0.02)
"""

CONNECT = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
print(s.getsockname()[1])
"""


def services(count: int, forwarding: str) -> dict[str, Any]:
    """Return a configuration with services of two ports each; the first one covers port 5001."""
    made = document(forwarding=forwarding)
    del made["hash"]
    bulk = made["services"][0]
    first = [5001 + 4 * i for i in range(count)]
    made["services"] = [
        {**bulk, "id": f"default/s{i:03}", "ports": [{"first": port, "last": port}, {"first": port + 2, "last": port + 2}]}
        for i, port in enumerate(first)
    ]
    return {**made, "hash": document_hash(made)}


def bound(net: Lab, switch: str, table: int) -> None:
    """Let a table of a switch refuse more than SIZE entries."""
    net.ovs(
        *("ovs-vsctl", "--timeout=30", "--", "--id=@t", "create", "Flow_Table", f"flow_limit={SIZE}", "overflow_policy=refuse"),
        *("--", "set", "Bridge", switch, f"flow_tables:{table}=@t"),
    )


def start(net: Lab, config: dict[str, Any]) -> None:
    net.start_controller(config)
    for agent in ("agent1", "agent2"):
        net.start_agent(agent)


def rows(net: Lab) -> list[dict[str, Any]]:
    return list(net.get("/v1/status")["services"])


def reasons(net: Lab) -> Counter[str]:
    return Counter(row["reason"] for row in rows(net))


def metric(net: Lab, name: str) -> float:
    lines = [line for line in net.get("/metrics").splitlines() if line.split("{")[0].split(" ")[0] == f"sos_controller_{name}"]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def arp(number: int) -> bytes:
    mac = b"\x02\x10" + number.to_bytes(4, "big")
    ends = mac + (10 << 24 | 140 + number % 100).to_bytes(4, "big") + bytes(6) + (10 << 24 | 77).to_bytes(4, "big")
    return b"\xff" * 6 + mac + b"\x08\x06" + struct.pack("!HHBBH", 1, 0x800, 6, 4, 1) + ends


def is_redirected(net: Lab, port: int) -> bool:
    """Open a connection; return whether it is redirected to the agents at both ends."""
    client = net.execute("client", sys.executable, "-c", CONNECT, HOSTS["server"][1], str(port)).strip()
    return any(f"tp_src={client}" in e for e in net.ours("edge1", Kind.REDIRECT)) and any(
        f"tp_dst={client}" in e for e in net.ours("edge2", Kind.REDIRECT)
    )


@pytest.fixture(scope="module")
def external() -> Iterator[Lab]:
    with lab("Controller") as made:
        for table in (0, 1):
            bound(made, "edge1", table)
        start(made, services(60, "Controller"))
        wait("services", SLOW, lambda: reasons(made).keys() == {"Programmed", "TableFull"})
        yield made


def test_announced_size_bounds_services_before_anything_is_refused(external: Lab) -> None:
    found = [row["reason"] for row in rows(external)]
    full = found.count("TableFull")
    assert found == ["Programmed"] * (60 - full) + ["TableFull"] * full and 10 < full < 50
    message = rows(external)[-1]["message"]
    assert message.startswith(f"datapath edge1: table 0 takes {SIZE} entries, "), message
    assert metric(external, "rejected_total") == 0
    assert is_redirected(external, 5001)


def test_ten_thousand_hosts_cost_no_service_and_are_flooded_beyond_the_table(external: Lab) -> None:
    before = reasons(external)
    sender = external.spawn("server", sys.executable, "-c", SEND, log="send.log")
    sender.communicate("".join(f"{arp(number).hex()}\n" for number in range(MANY)).encode(), timeout=SLOW)
    wait("hosts", SLOW, lambda: metric(external, "hosts") >= MANY)
    assert reasons(external) == before and metric(external, "rejected_total") == 0
    assert metric(external, "hosts_flooded") > MANY - SIZE
    assert len([entry for entry in external.ours("edge1", Kind.FORWARD) if "table=1" in entry]) <= SIZE
    assert is_redirected(external, 5001), "new connections are accelerated"


def test_refusal_of_a_bridge_teaches_its_limit_while_connections_are_accelerated() -> None:
    with lab("Node") as made:
        bound(made, "edge1", 0)
        start(made, services(60, "Node"))
        wait("services", SLOW, lambda: reasons(made).keys() == {"Programmed", "TableFull"})
        refused = metric(made, "rejected_total")
        assert refused > 0 and "(learned from a refusal)" in rows(made)[-1]["message"]
        assert is_redirected(made, 5001)
        states = [reasons(made) for _ in range(20)]
        assert states == states[:1] * 20 and metric(made, "rejected_total") == refused, "a known limit is not tried again"
