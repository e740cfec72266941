"""Test balances on a real switch, without agents: a host at edge1, and a router with two links that is also the server.

Checksum offload is off on links whose packets the switch rewrites, so that the router's kernel verifies the checksums that the switch has
updated.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from controller_fake import TPID
from controller_lab import MACS, SWITCHES, Lab, document, document_hash, lab, run, wait
from controller_world import syn_frame
from sos_controller.core.openflow.pipeline import GATEWAY_MAC, Kind
from sos_controller.core.types import parse_address, parse_mac
from sos_controller.core.wire.packets import build_arp_request

SLOW = 30.0
SERVER = "198.51.100.7"
LEGS = {"up1": ("192.0.2.1", "192.0.2.2"), "up2": ("192.0.2.5", "192.0.2.6")}
"""Port of the switch -> address of the router, address of the uplink."""

SERVE = """
import socket, threading
l = socket.create_server(("0.0.0.0", 80), backlog=256)
def answer(c, peer):
    while c.recv(65536): c.sendall(peer[0].encode().ljust(16))
    c.close()
while True: threading.Thread(target=answer, args=l.accept(), daemon=True).start()
"""

ASK = """
import json, socket, sys, time
def say(s):
    s.sendall(b"hello" * 500)
    return s.recv(16).decode().strip()
first, count = int(sys.argv[2]), int(sys.argv[3])
open_ = [socket.create_connection((sys.argv[1], 80), 10, ("", port)) for port in range(first, first + count)]
seen = [(s.getsockname()[1], say(s)) for s in open_]
assert [who for _, who in seen] == [say(s) for s in open_]
print(json.dumps(seen), flush=True)
if len(sys.argv) > 4:
    stay = json.loads(sys.stdin.readline())
    print(json.dumps([(s.getsockname()[1], say(s)) for s in open_ if s.getsockname()[1] in stay]), flush=True)
"""
PORTS = itertools.count(20_000, 300)
"""Client ports, each used once. A switch with its own round robin remembers a port for a minute after the connection's end."""


AGAIN = """
import json, socket, struct, sys
def ask():
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("", 40000))
        s.settimeout(10)
        s.connect((sys.argv[1], 80))
        s.sendall(b"hello")
        return s.recv(16).decode().strip()
print(json.dumps([ask() for _ in range(int(sys.argv[2]))]))
"""
"""Sequential connections from the same port. A reset ends each connection, so that the port is free immediately."""


def config(at: str, weights: tuple[int, int] = (1, 1), generation: int = 1) -> dict[str, Any]:
    made = document(generation)
    made["sites"][0]["gateway"] = "10.0.0.1"
    uplinks = [
        {"name": name, "address": ours, "gateway": theirs, "weight": weight}
        for (name, (theirs, ours)), weight in zip(LEGS.items(), weights, strict=True)
    ]
    entry = {
        **{"id": "default/spread", "priority": 100, "site": "west", "dpid": f"{SWITCHES['edge1']:016x}", "client": "10.0.0.11"},
        **{"to": ["198.51.100.0/24"], "ports": [{"first": 80, "last": 80}], "at": at, "uplinks": uplinks},
    }
    made["services"], made["balances"] = [], [entry]
    del made["hash"]
    return {**made, "hash": document_hash(made)}


@pytest.fixture(scope="module")
def net() -> Iterator[Lab]:
    with lab("Node", tso=False) as made:
        router = made.namespace("router")
        for name, (theirs, _) in LEGS.items():
            run("ip", "-n", made.switch_ns, "link", "add", name, "type", "veth", "peer", "name", name, "netns", router)
            run("ip", "-n", router, "addr", "add", f"{theirs}/30", "dev", name)
            for namespace in (router, made.switch_ns):
                run("ip", "-n", namespace, "link", "set", name, "up")
            made.execute("router", "ethtool", "-K", name, "tx", "off")
            made.ovs("ovs-vsctl", "--timeout=30", "add-port", "edge1", name)
        run("ip", "-n", router, "addr", "add", f"{SERVER}/32", "dev", "lo")
        made.execute("client", "ethtool", "-K", "eth0", "tx", "off")
        run("ip", "-n", made.ns("client"), "route", "add", "default", "via", "10.0.0.1")
        made.spawn("router", sys.executable, "-c", SERVE, log="serve.log")
        made.start_controller(config("Controller"))
        programmed(made)
        yield made


def programmed(net: Lab) -> None:
    def ready() -> bool:
        (row,) = net.get("/v1/status")["services"]
        return row["state"] == "Programmed" and not row["message"]

    wait("Programmed over both uplinks", SLOW, ready)


def change(net: Lab, made: dict[str, Any]) -> None:
    assert net.put_config(made)[0] == 200
    time.sleep(0.5)  # time to replan
    programmed(net)


def ask(net: Lab, count: int) -> Counter[str]:
    """Return the client address that the server saw on each connection.

    Each connection sends two requests. An answer by another uplink would contain another address.
    """
    return Counter(who for _, who in json.loads(net.execute("client", sys.executable, "-c", ASK, SERVER, str(next(PORTS)), str(count))))


def hold(net: Lab, count: int, log: str) -> subprocess.Popen[bytes]:
    """Open connections that stay open until `ask_again`."""
    return net.spawn("client", sys.executable, "-c", ASK, SERVER, str(next(PORTS)), str(count), "hold", log=log)


def told(net: Lab, log: str, line: int) -> list[list[Any]]:
    """Return the host's ports and the client addresses that the server saw; `line` selects the first or second request."""
    lines = wait("connections", SLOW, lambda: (found := (net.folder / log).read_text().splitlines())[line:] and found)
    return list(json.loads(lines[line]))


def ask_again(held: subprocess.Popen[bytes], ports: list[int]) -> None:
    """Send a second request on the given ports, then end the process."""
    assert held.stdin is not None
    held.stdin.write(json.dumps(ports).encode() + b"\n")
    held.stdin.flush()
    assert held.wait(SLOW) == 0


def groups(net: Lab) -> str:
    return net.ovs("ovs-ofctl", "-O", "OpenFlow13", "dump-groups", f"unix:{net.folder}/edge1.mgmt")


def test_controller_alternates_uplinks_with_two_entries_per_connection(net: Lab) -> None:
    before = len(net.ours("edge1", Kind.CONNECTION))
    assert ask(net, 10) == {"192.0.2.2": 5, "192.0.2.6": 5}
    found = net.ours("edge1", Kind.CONNECTION)
    assert len(found) - before == 20
    assert all("fin_timeout(idle_timeout=60)" in entry for entry in found)
    wait("a shorter idle timeout after the FIN", SLOW, lambda: all(map(shortened, net.ours("edge1", Kind.CONNECTION))))
    assert net.get("/v1/status")["services"][0]["sessions"] >= 10


def shortened(entry: str) -> bool:
    return "idle_timeout=60" in entry.split("actions=", maxsplit=1)[0] or "nw_src=10.0.0.11" not in entry


def test_reused_port_gets_the_next_uplink(net: Lab) -> None:
    """The next connection from a port starts while the entries of the previous connection still exist."""
    seen = json.loads(net.execute("client", sys.executable, "-c", AGAIN, SERVER, "10"))
    assert Counter(seen) == {"192.0.2.2": 5, "192.0.2.6": 5}
    assert len([e for e in net.ours("edge1", Kind.CONNECTION) if "tp_src=40000" in e and "nw_src=10.0.0.11" in e]) == 1


def test_the_virtual_gateway_answers(net: Lab) -> None:
    assert GATEWAY_MAC.hex(":") in net.execute("client", "ip", "neigh", "show", "10.0.0.1")


def test_controller_selects_uplinks_by_weight(net: Lab) -> None:
    change(net, config("Controller", (1, 2), generation=2))
    assert ask(net, 12) == {"192.0.2.2": 4, "192.0.2.6": 8}


def test_switch_selects_uplinks_by_weight_without_a_packet_in(net: Lab) -> None:
    change(net, config("Switch", (1, 2), generation=3))
    assert re.search(r"type=select,bucket=[^=]*watch_port:\d+,.*bucket=[^=]*weight:2,watch_port:\d+,", groups(net)), groups(net)
    held, before, asked = net.ours("edge1", Kind.BALANCE), len(net.ours("edge1", Kind.LEARNED)), net.get("/metrics")
    assert ask(net, 300) == {"192.0.2.2": 100, "192.0.2.6": 200}
    assert len(net.ours("edge1", Kind.LEARNED)) == before + 600 + (not before), (
        "two entries for each connection, and one entry with the position of the round robin"
    )
    assert net.ours("edge1", Kind.BALANCE) == held
    assert counted(net.get("/metrics")) == counted(asked)


def test_round_robin_entries_survive_a_reconnection_unchanged(net: Lab) -> None:
    """A controller that reads the entries after a reconnection does not rewrite them."""
    change(net, config("Switch", (1, 2), generation=4))
    before = ages(net)
    (target,) = net.ovs("ovs-vsctl", "--timeout=30", "get-controller", "edge1").split()
    net.ovs(
        "ovs-vsctl", "--timeout=30", "set", "controller", "edge1", f'target="{target[:-1]}4"'
    )  # an unused address; without a controller address, the switch would remove all entries
    wait("the datapath to be gone", SLOW, lambda: net.get("/v1/status")["services"][0]["reason"] == "DatapathDisconnected")
    net.ovs("ovs-vsctl", "--timeout=30", "set", "controller", "edge1", f'target="{target}"')
    programmed(net)
    after = ages(net)
    assert after.keys() == before.keys() and len(after) > 10
    assert not [entry for entry, age in after.items() if age < before[entry]], "entries were rewritten"


def runs(net: Lab) -> set[str]:
    """Return the cookies' leading digits of balance entries: they differ between runs of the controller."""
    return {entry.split("cookie=")[1][:14] for entry in net.ours("edge1", Kind.BALANCE)}


def ages(net: Lab) -> dict[str, float]:
    """Return the age in seconds of a balance's entries, by table, match and actions."""
    dumped = net.ovs("ovs-ofctl", "-O", "OpenFlow13", "dump-flows", f"unix:{net.folder}/edge1.mgmt").splitlines()
    found = [re.match(r" cookie=0x534f010108\w+, duration=([\d.]+)s, (table=\d+), .*?(priority=.*)", line) for line in dumped]
    return {f"{m[2]} {m[3]}": float(m[1]) for m in found if m is not None}


def counted(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(r"sos_controller_(flow_mods|balance)", line)]


def test_connections_and_round_robin_continue_without_a_controller(net: Lab) -> None:
    change(net, config("Controller", generation=5))
    held = hold(net, 6, "held.log")
    first = told(net, "held.log", 0)
    assert Counter(who for _, who in first) == {"192.0.2.2": 3, "192.0.2.6": 3}
    net.kill_all(net.running("sos_controller"))
    wait("the leases to expire", SLOW, lambda: not [e for e in net.ours("edge1", Kind.BALANCE) if "hard_timeout" in e])
    for who in ("client", "router"):  # force the ARP requests that follow half a minute of silence
        net.execute(who, "ip", "neigh", "flush", "all")
    assert ask(net, 40) == {"192.0.2.2": 20, "192.0.2.6": 20}
    earlier = runs(net)
    assert earlier
    net.start_controller(config("Controller", generation=5))
    programmed(net)
    wait("the earlier run's entries to be removed", SLOW, lambda: not earlier & runs(net))
    assert ask(net, 10) == {"192.0.2.2": 5, "192.0.2.6": 5}
    ask_again(held, [port for port, _ in first])
    assert told(net, "held.log", 1) == first, "connections keep their uplink through the restart"


def test_down_uplink_breaks_only_its_own_connections(net: Lab) -> None:
    change(net, config("Switch", generation=6))
    held = hold(net, 16, "down.log")
    first = told(net, "down.log", 0)
    stay = [port for port, who in first if who == "192.0.2.2"]
    assert len(stay) == 8
    run("ip", "-n", net.switch_ns, "link", "set", "up2", "down")
    try:
        wait("the uplink to be excluded", SLOW, lambda: "up2" in net.get("/v1/status")["services"][0]["message"])
        assert set(ask(net, 20)) == {"192.0.2.2"}
        ask_again(held, stay)
        assert told(net, "down.log", 1) == [each for each in first if each[0] in stay]
    finally:
        run("ip", "-n", net.switch_ns, "link", "set", "up2", "up")
    programmed(net)
    assert ask(net, 40) == {"192.0.2.2": 20, "192.0.2.6": 20}


@pytest.mark.parametrize(("at", "generation"), [("Controller", 10), ("Switch", 11)])
def test_tagged_frame_matches_only_entries_of_the_base_table(net: Lab, at: str, generation: int) -> None:
    change(net, config(at, generation=generation))
    assert sum(ask(net, 4).values()) == 4
    client, server, gateway = map(parse_address, ("10.0.0.11", SERVER, "10.0.0.1"))
    kind = Kind.CONNECTION if at == "Controller" else Kind.LEARNED
    entry = next(entry for entry in net.ours("edge1", kind) if f"nw_dst={SERVER}" in entry)
    known = int(re.search(r"tp_src=(\d+)", entry)[1])  # type: ignore[index]
    from_client = [GATEWAY_MAC + syn_frame(client, server, port, 80, flags=flags)[6:] for port, flags in ((known, 0x10), (19_999, 0x10))]
    frames = [("p-client", frame) for frame in (*from_client, build_arp_request(parse_mac(MACS["client"]), client, gateway))]
    for uplink, (theirs, ours) in LEGS.items():
        frames.append((uplink, syn_frame(server, parse_address(ours), 80, known, flags=0x10)))
        router = parse_mac(net.execute("router", "cat", f"/sys/class/net/{uplink}/address").strip())  # traced packets reach the controller
        frames.append((uplink, build_arp_request(router, parse_address(theirs), parse_address(ours))))
    met = [traced(net, port, frame) for port, frame in frames]
    assert "cookie 0x534f0101" in met[0] and sum("cookie 0x534f0101" in found for found in met) >= 4, "untagged frames match"
    for port, frame in frames:
        for tci in (0x0007, 0x6000):  # a priority tag (VLAN id 0) is a tag, too
            found = traced(net, port, frame[:12] + TPID + tci.to_bytes(2, "big") + frame[12:])
            assert "cookie 0x534f0101" not in found and "NORMAL" in found, found


def traced(net: Lab, port: str, frame: bytes) -> str:
    """Return the trace of a frame that enters by a port."""
    target = f"--target={net.folder}/sw.ctl"
    return net.ovs("ovs-appctl", target, "ofproto/trace", "edge1", f"in_port={net.port('edge1', port)}", frame.hex())
