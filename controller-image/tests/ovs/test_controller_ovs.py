"""Test a real controller process with Open vSwitch instances in namespaces. Agents speak the real protocol through the switches.

The tests need root, openvswitch-switch and iproute2. `controller_lab` shows the topology.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest
from controller_lab import HOSTS, MACS, Lab, document, lab, run, wait
from sos_controller.core.openflow.flow_entries import (
    AnswerArp,
    DecTtl,
    FinTimeout,
    FlowEntry,
    ForgetPort,
    Goto,
    LearnSource,
    Match,
    Output,
    SetEthDst,
    SetEthSrc,
    SetIpv4Dst,
    SetIpv4Src,
    SetTcpDst,
    SetTcpSrc,
    TellApart,
    order,
)
from sos_controller.core.openflow.pipeline import (
    ARP_REQUEST,
    BARE_SYN,
    ETH_ARP,
    ETH_IPV4,
    FRAGMENT,
    PORT_IN_PORT,
    PORT_LOCAL,
    PORT_NORMAL,
    PROTO_ICMP,
    PROTO_TCP,
    Kind,
)
from sos_controller.core.types import PortNo, parse_address, parse_mac
from sos_controller.openflow import ofp

SLOW = 30.0
"""Bound of every wait in seconds. The tests do not check durations."""

CONNECT = """
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
print(s.getsockname()[1], flush=True)
s.send(sys.argv[3].encode())
try:
    s.settimeout(1); s.recv(1)
except OSError: pass
"""

SERVE = """
import socket, sys, threading
l = socket.create_server(("0.0.0.0", int(sys.argv[1])), backlog=64)
def echo(c):
    while (d := c.recv(65536)): c.sendall(d.upper())
    c.close()
while True: threading.Thread(target=echo, args=(l.accept()[0],), daemon=True).start()
"""

ECHO = """
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
s.sendall(b"hello"); print(s.recv(100).decode())
"""


def programmed(net: Lab) -> None:
    wait("Programmed", SLOW, lambda: net.service_state() == "Programmed/Programmed")


def connect(net: Lab, port: int, text: str = "hello") -> int:
    """Open a client's connection, which the ingress agent answers. Return the client's port."""
    return int(net.execute("client", sys.executable, "-c", CONNECT, HOSTS["server"][1], str(port), text))


def echo(net: Lab, port: int) -> str:
    return net.execute("client", sys.executable, "-c", ECHO, HOSTS["server"][1], str(port)).strip()


@pytest.fixture(scope="module")
def net() -> Iterator[Lab]:
    with lab("Node") as made:
        made.start_controller(document(), "--state", str(made.folder / "state"))
        for agent in ("agent1", "agent2"):
            made.start_agent(agent)
        programmed(made)
        yield made


def test_datapaths_links_and_agents_are_discovered_and_entries_acknowledged(net: Lab) -> None:
    status = net.get("/v1/status")
    assert all(d["connected"] for d in status["datapaths"]) and status["links"] == 4 and len(status["agents"]) == 2
    (service,) = status["services"]
    assert service["needed"] == service["acknowledged"]
    names = {(link["a"]["name"], link["b"]["name"]) for link in net.get("/v1/topology")["links"]}
    assert ("edge1-core1", "core1-edge1") in names
    assert len(net.ours("core1", Kind.PATH)) + len(net.ours("core2", Kind.PATH)) == 2
    punts = net.ours("edge1", Kind.PUNT)
    assert punts and all("tcp_flags=-fin+syn-rst-ack" in p and "hard_timeout=5" in p for p in punts)
    assert not net.ours("edge2", Kind.PUNT)


def test_switches_hold_the_entries_that_the_controller_records(net: Lab) -> None:
    for name, dpid in (("edge1", "0001000000000001"), ("core1", "0003000000000003"), ("edge2", "0002000000000002")):
        assert len(net.ours(name)) == len(net.get(f"/v1/entries?dpid={dpid}")["entries"])


def test_megaflows_of_a_service_match_one_client_port_and_one_server(net: Lab) -> None:
    """A megaflow of another connection must never forward a new connection, whatever the history of the tables (docs/adr/0020)."""
    client, server = HOSTS["client"][1], HOSTS["server"][1]
    for switch, source, target, ports, told, left in (
        ("edge1", client, server, (40000, 5001), "tp_src=40000", "tp_dst=5001"),
        ("edge2", server, client, (5001, 40000), "tp_dst=40000", "tp_src=5001"),
    ):
        hosts = f"nw_src={source},nw_dst={target}"
        cached = net.cached(switch, f"tcp,{hosts},tp_src={ports[0]},tp_dst={ports[1]},tcp_flags=ack,nw_ttl=64").split(",")
        assert {*hosts.split(","), told} <= set(cached)
        assert left not in cached, "otherwise each port of a port scan would cost an upcall"
    other = net.cached("edge1", f"tcp,nw_src={client},nw_dst={server},tp_src=40000,tp_dst=8080,tcp_flags=ack,nw_ttl=64")
    assert "tp_src=40000" not in other, "connections outside all services share megaflows"


def test_open_vswitch_reports_entries_as_they_were_added(net: Lab) -> None:
    """The controller keeps entries of an earlier run as read from the switch. A field reported under another name would be lost."""
    cookie, mac, address = 0x7E57, parse_mac(MACS["client"]), parse_address("10.0.0.11")
    arp = Match(eth_type=ETH_ARP, arp_op=ARP_REQUEST, arp_sender=(address, 0xFFFFFFFF), arp_target=(address & 0xFFFFFF00, 0xFFFFFF00))
    tcp = Match(
        in_port=PortNo(3), eth_type=ETH_IPV4, ip_proto=PROTO_TCP, ipv4_src=(address, 0xFFFFFFFF), tcp_dst=(80, 0xFFFF), tcp_flags=BARE_SYN
    )
    addressed = Match(eth_type=ETH_IPV4, ipv4_dst=(address & 0xFFFFFF00, 0xFFFFFF00))
    macs = (SetEthSrc(mac), SetEthDst(mac))
    told = [
        FlowEntry(0, 7, arp, (AnswerArp(mac), Output(PORT_IN_PORT)), cookie),
        FlowEntry(0, 8, tcp, (FinTimeout(60), *macs, SetIpv4Src(address), SetIpv4Dst(address), Output(PORT_NORMAL)), cookie, 60, 30),
        FlowEntry(0, 9, tcp, (DecTtl(), SetTcpSrc(1), SetTcpDst(2), Goto(1)), cookie),
        FlowEntry(0, 10, msgspec.structs.replace(tcp, reg0=0), (TellApart("both"),), cookie),
        FlowEntry(0, 12, msgspec.structs.replace(tcp, reg0=0), (TellApart("source"),), cookie),
        FlowEntry(0, 13, msgspec.structs.replace(tcp, reg0=0), (TellApart("target"),), cookie),
        FlowEntry(0, 14, msgspec.structs.replace(tcp, reg0=0), (TellApart("both"), Output(PortNo(0xFFFFFFFD))), cookie),
        FlowEntry(0, 15, msgspec.structs.replace(addressed, ip_proto=PROTO_ICMP, icmp_type=3), (Goto(1),), cookie),
        FlowEntry(0, 16, msgspec.structs.replace(addressed, ip_proto=PROTO_TCP, ip_frag=FRAGMENT), (Goto(1),), cookie),
        FlowEntry(0, 11, Match(eth_src=mac), (ForgetPort(), Output(PortNo(2))), cookie),
        FlowEntry(0, 17, tcp, (LearnSource(), SetEthDst(mac), Output(PortNo(2))), cookie),
        FlowEntry(1, 10, Match(eth_dst=mac), (), cookie),
    ]
    with socket.socket(socket.AF_UNIX) as switch:
        switch.settimeout(SLOW)
        switch.connect(f"{net.folder}/core1.mgmt")
        switch.sendall(ofp.PLAIN_HELLO + b"".join(ofp.flow_mod(e, ofp.ADD, 0) for e in told) + ofp.flow_stats_request(5, cookie, 2**64 - 1))
        assert sorted(_entries(switch), key=order) == sorted(told, key=order)
        switch.sendall(b"".join(ofp.flow_mod(e, ofp.DELETE_STRICT, 0) for e in told) + ofp.flow_stats_request(5, cookie, 2**64 - 1))
        assert _entries(switch) == []


def test_redirecting_entry_learns_the_port_of_the_sender(net: Lab) -> None:
    """The switch forwards the agent's packets to the port where it has learned the host, which may move without an announcement."""
    host, router, agent = (f"02:aa:00:00:00:0{i}" for i in (1, 2, 3))
    ports = [net.port("core1", port) for port in ("core1-edge1", "core1-edge2")]
    actions = (LearnSource(), SetEthDst(parse_mac(agent)), Output(PORT_LOCAL))
    added = ofp.flow_mod(FlowEntry(0, 60000, Match(eth_src=parse_mac(host)), actions, 0x7E59), ofp.ADD, 0) + ofp.barrier_request(1)
    with socket.socket(socket.AF_UNIX) as switch:
        switch.settimeout(SLOW)
        switch.connect(f"{net.folder}/core1.mgmt")
        switch.sendall(ofp.PLAIN_HELLO + added)
        _until(switch, ofp.BARRIER_REPLY)
    try:
        for port in ports:
            sent = net.traced("core1", f"in_port={port},tcp,dl_src={host},dl_dst={router}", "-generate")
            assert f"Final flow: tcp,in_port={port},vlan_tci=0x0000,dl_src={host},dl_dst={agent}" in sent
            assert "Datapath actions: set(eth(dst=" in sent, "exactly one output"
            learned = net.ovs("ovs-appctl", f"--target={net.folder}/sw.ctl", "fdb/show", "core1")
            assert [line.split()[0] for line in learned.splitlines() if host in line] == [str(port)]
        (text,) = [found for found in net.flows("core1") if "cookie=0x7e59" in found]
        restored = f"cookie=0x7e59,table=0,priority=60000,dl_src={host},vlan_tci=0/0x1fff actions={text.split('actions=')[1]}"
        net.ovs("ovs-ofctl", "-OOpenFlow13", "add-flow", f"unix:{net.folder}/core1.mgmt", restored)
        with socket.socket(socket.AF_UNIX) as switch:
            switch.settimeout(SLOW)
            switch.connect(f"{net.folder}/core1.mgmt")
            switch.sendall(ofp.PLAIN_HELLO + ofp.flow_stats_request(5, 0x7E59, 2**64 - 1))
            assert [entry.actions for entry in _entries(switch)] == [actions], "the entry is recognized if a node restores it from text"
    finally:
        net.ovs("ovs-ofctl", "-OOpenFlow13", "del-flows", f"unix:{net.folder}/core1.mgmt", f"cookie={0x7E59}/-1")


def test_labelled_path_connects_two_protected_ports(net: Lab) -> None:
    """Path entries forward between protected ports, such as a node's tunnels (spec/node-config.md clause 7). Other traffic is dropped."""
    ports = ("core1-edge1", "core1-edge2")
    numbers = [net.port("core1", port) for port in ports]
    flow = f"in_port={numbers[0]},dl_src=02:53:01:00:00:00,dl_dst=02:53:01:00:00:01,dl_type=0x1234"
    for port in ports:
        net.ovs("ovs-vsctl", "set", "port", port, "protected=true")
    try:
        for actions, passes in (((Output(numbers[1]),), False), ((ForgetPort(), Output(numbers[1])), True)):
            told = ofp.flow_mod(FlowEntry(0, 60000, Match(eth_type=0x1234), actions, 0x7E58), ofp.ADD, 0) + ofp.barrier_request(1)
            with socket.socket(socket.AF_UNIX) as switch:
                switch.settimeout(SLOW)
                switch.connect(f"{net.folder}/core1.mgmt")
                switch.sendall(ofp.PLAIN_HELLO + told)
                _until(switch, ofp.BARRIER_REPLY)
            traced = net.traced("core1", flow)
            assert ("Datapath actions: drop" not in traced) == passes, traced
    finally:
        for port in ports:
            net.ovs("ovs-vsctl", "set", "port", port, "protected=false")
        net.ovs("ovs-ofctl", "-OOpenFlow13", "del-flows", f"unix:{net.folder}/core1.mgmt", f"cookie={0x7E58}/-1")


def _entries(switch: socket.socket) -> list[FlowEntry]:
    """Return the entries of the first reply to a request for entries."""
    return ofp.parse_flow_stats(_until(switch, ofp.MULTIPART_REPLY)[8:])


def _until(switch: socket.socket, kind: int) -> bytes:
    """Return the first message of a kind."""
    with switch.makefile("rb", buffering=0) as stream:
        while True:
            head = stream.read(8)
            body = stream.read(int.from_bytes(head[2:4], "big") - 8) if head[3] > 8 else b""
            assert head[1] != ofp.ERROR, body.hex()
            if head[1] == kind:
                return body


def test_connection_is_prepared_and_redirected_to_the_agents(net: Lab) -> None:
    port = connect(net, 5001)
    prepared = [
        wait("Prepare", SLOW, lambda a=a: [p for p in net.heard(a, "prepare") if p["client_port"] == port]) for a in ("agent1", "agent2")
    ]
    assert [p[-1]["role"] for p in prepared] == [1, 2] and prepared[0][-1]["uuid"] == prepared[1][-1]["uuid"]
    seen = wait("data", SLOW, lambda: [t for t in net.heard("agent1", "tcp") if t["sport"] == port and t["payload"] == "hello"])
    assert seen[0]["source"] == HOSTS["client"][1] and seen[0]["target"] == HOSTS["server"][1]
    packets = [t for t in net.heard("agent1", "tcp") if t["sport"] == port]
    assert packets[0]["flags"] & 0x17 == 2 and packets[0]["checksum"], "the controller completes the checksum of packets that it forwards"
    assert any(f"tp_src={port}" in e and "tcp_flags=-syn" in e for e in net.ours("edge1", Kind.REDIRECT))
    assert any(f"tp_dst={port}" in e for e in net.ours("edge2", Kind.REDIRECT))
    uuid = prepared[0][-1]["uuid"]
    assert uuid in {s["uuid"] for s in net.get("/v1/sessions")["sessions"] if s["state"] == "Active"}


def test_packets_of_the_server_reach_the_egress_agent(net: Lab) -> None:
    port = connect(net, 5003)
    send = (
        "import socket,struct,sys\n"
        "s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW); s.bind(('eth0',0))\n"
        "b=bytes.fromhex(sys.argv[1])\n"
        "s.send(b)\n"
    )
    ip = bytes([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 139, 10, 0, 0, 11])
    tcp = (5003).to_bytes(2, "big") + port.to_bytes(2, "big") + bytes(8) + bytes([0x50, 0x12, 0, 0, 0, 0, 0, 0])
    frame = bytes.fromhex(MACS["client"].replace(":", "") + MACS["server"].replace(":", "")) + b"\x08\x00" + ip + tcp
    net.execute("server", sys.executable, "-c", send, frame.hex())
    got = wait("the server's packet", SLOW, lambda: [t for t in net.heard("agent2", "tcp") if t["dport"] == port])
    assert got[0]["source"] == HOSTS["server"][1] and got[0]["target"] == HOSTS["client"][1]


def test_changed_service_leaves_plain_ports_plain(net: Lab) -> None:
    for port in (80, 8080):
        net.spawn("server", sys.executable, "-c", SERVE, str(port), log=f"serve{port}.log")
        wait("the server", SLOW, lambda p=port: f":{p} " in net.execute("server", "ss", "-ltn"))
    assert echo(net, 80) == "HELLO"
    made = document(2, ports=(81, 5999))
    assert net.put_config(made)[0] == 200
    programmed(net)
    assert connect(net, 5900)
    assert echo(net, 8080) == "HELLO"


def test_malformed_syn_does_not_hang_the_controller(net: Lab) -> None:
    """A host sends a SYN with malformed options and payload to port 6653, and the switch punts it (CVE-2024-28732 family)."""
    made = document(3, ports=(1, 65535))
    assert net.put_config(made)[0] == 200
    programmed(net)
    before = net.get("/metrics")
    send = (
        "import socket,sys\n"
        "s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW); s.bind(('eth0',0))\n"
        "for line in sys.argv[1:]: s.send(bytes.fromhex(line))\n"
    )
    head = bytes.fromhex(MACS["server"].replace(":", "") + MACS["client"].replace(":", "")) + b"\x08\x00"
    frames = []
    for options, payload in (
        (b"", b"\x04\x13\x00\x00" + bytes(12)),
        (bytes([8, 0] * 4), b"\x04\x00\x00\x08\0\0\0\0"),
        (bytes([1, 1, 1, 200]), b""),
    ):
        tcp = (
            (41000).to_bytes(2, "big")
            + (6653).to_bytes(2, "big")
            + bytes(8)
            + bytes([(20 + len(options)) << 2, 2, 0, 0, 0, 0, 0, 0])
            + options
            + payload
        )
        total = 20 + len(tcp)
        ip = bytes([0x45, 0, total >> 8, total & 255, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 11, 10, 0, 0, 139])
        frames.append((head + ip + tcp).hex())
    net.execute("client", sys.executable, "-c", send, *frames)
    counted = lambda text: sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("sos_controller_syns_total"))  # noqa: E731
    wait("the SYNs", SLOW, lambda: counted(net.get("/metrics")) > counted(before))
    assert net.get("/healthz") == {"status": "ok"} and net.service_state().startswith("Programmed")
    assert net.put_config(document(4))[0] == 200
    programmed(net)


def test_ended_orders_of_agents_remove_session_entries(net: Lab) -> None:
    connect(net, 5010)
    assert net.ours("edge1", Kind.REDIRECT) and net.ours("edge2", Kind.REDIRECT)
    for agent in net.agents():
        assert agent.stdin is not None
        agent.stdin.write(b"end\n")
        agent.stdin.flush()
    wait("clean tables", SLOW, lambda: not net.ours("edge1", Kind.REDIRECT) and not net.ours("edge2", Kind.REDIRECT))
    assert net.get("/v1/sessions")["total"] == 0 and net.heard("agent1", "ended-ack") and net.heard("agent2", "ended-ack")
    assert net.ours("edge1", Kind.PUNT) and net.ours("core1", Kind.PATH) + net.ours("core2", Kind.PATH)


def test_leases_expire_after_a_kill_and_a_new_controller_adopts_sessions(net: Lab) -> None:
    port = connect(net, 5020)
    before = {e for e in net.ours("edge1", Kind.REDIRECT) if f"tp_src={port}" in e}
    assert before
    controller = wait("the controller's process", 1, lambda: controllers(net))
    net.kill_all(controller)
    wait("the lease to expire", SLOW, lambda: not net.ours("edge1", Kind.PUNT))
    assert net.ours("edge1", Kind.REDIRECT) and net.ours("edge1", Kind.PATH), "all other entries stay"
    net.spawn("server", sys.executable, "-c", SERVE, "5025", log="serve5025.log")
    wait("the server", SLOW, lambda: ":5025 " in net.execute("server", "ss", "-ltn"))
    assert echo(net, 5025) == "HELLO", "plain without a controller"
    net.start_controller(document(5), "--state", str(net.folder / "state"))
    programmed(net)
    adopted = [s for s in net.get("/v1/sessions")["sessions"] if s["adopted"]]
    assert f"{HOSTS['client'][1]}:{port}" in {s["client"] for s in adopted}
    assert {e for e in net.ours("edge1", Kind.REDIRECT) if f"tp_src={port}" in e} == before
    wait("old entries to be removed", SLOW, lambda: len({e.split("cookie=")[1][:14] for e in net.ours("edge1", Kind.GUARD)}) == 1)
    time.sleep(11)  # a report without a session ends the session only at an age of 10 s or more
    assert f"{HOSTS['client'][1]}:{port}" in {s["client"] for s in net.get("/v1/sessions")["sessions"]}, "the reported session stays"


def test_stopping_controller_makes_new_connections_plain_before_it_exits(net: Lab) -> None:
    port = connect(net, 5021)
    net.spawn("server", sys.executable, "-c", SERVE, "5026", log="serve5026.log")
    wait("the server", SLOW, lambda: ":5026 " in net.execute("server", "ss", "-ltn"))
    (controller,) = controllers(net)
    controller.terminate()
    assert controller.wait(SLOW) == 0
    assert not net.ours("edge1", Kind.PUNT), "the controller removed the punt entries before their timeout"
    assert any(f"tp_src={port}" in entry for entry in net.ours("edge1", Kind.REDIRECT)), "running sessions continue"
    assert echo(net, 5026) == "HELLO"
    net.start_controller(document(6), "--state", str(net.folder / "state"))
    programmed(net)


def test_dead_agents_leave_only_guard_entries(net: Lab) -> None:
    net.kill_all(net.agents())
    wait(
        "clean tables",
        SLOW,
        lambda: all(not net.ours(s, k) for s in ("edge1", "edge2", "core1", "core2") for k in (Kind.PUNT, Kind.REDIRECT, Kind.PATH)),
    )
    assert net.get("/v1/status")["sessions"] == 0 and net.service_state() == "Pending/NoAgents"
    assert "1 received" in net.execute("client", "ping", "-c1", "-W5", HOSTS["server"][1])
    for agent in ("agent1", "agent2"):
        net.start_agent(agent)
    programmed(net)


def test_refusing_and_silent_agents_make_connections_plain() -> None:
    for word in ("--refuse", "--silent"):
        with lab("Node") as made:
            made.start_controller(document())
            made.start_agent("agent1")
            made.start_agent("agent2", word)
            programmed(made)
            made.spawn("server", sys.executable, "-c", SERVE, "5001", log="serve.log")
            wait("the server", SLOW, lambda: ":5001 " in made.execute("server", "ss", "-ltn"))
            assert echo(made, 5001) == "HELLO"
            assert not made.ours("edge1", Kind.REDIRECT) and not made.ours("edge2", Kind.REDIRECT)
            assert made.heard("agent1", "release")


def test_ring_of_external_switches_forwards_without_storms() -> None:
    with lab("Controller") as made:
        made.start_controller(document(forwarding="Controller"))
        for agent in ("agent1", "agent2"):
            made.start_agent(agent)
        programmed(made)
        ping = ("ping", "-c1", "-W2", HOSTS["server"][1])
        wait("ports to settle", SLOW, lambda: "1 received" in made.execute("client", *ping, check=False))
        assert "3 received" in made.execute("client", "ping", "-c3", "-i0.2", "-W10", HOSTS["server"][1])
        one = packets_on(made, "core1-edge2") + packets_on(made, "core2-edge2")
        time.sleep(3)
        other = packets_on(made, "core1-edge2") + packets_on(made, "core2-edge2")
        assert other - one < 200, f"{other - one} packets in 3 idle seconds"
        hosts = {h["address"] for h in made.get("/v1/topology")["hosts"]}
        assert {HOSTS["client"][1], HOSTS["server"][1]} <= hosts and HOSTS["agent1"][1] not in hosts
        assert any(MACS["server"] in e for e in made.ours("edge1", Kind.FORWARD))
        port = connect(made, 5001)
        assert any(f"tp_src={port}" in e for e in made.ours("edge1", Kind.REDIRECT))
        cut = "core1" if any("output:1" in e and MACS["server"] in e for e in made.ours("edge1", Kind.FORWARD)) else "core2"
        run("ip", "-n", made.switch_ns, "link", "set", f"edge1-{cut}", "down")
        wait("the link to be removed", SLOW, lambda: len(made.get("/v1/topology")["links"]) == 3)
        wait("a ping over the other core", SLOW, lambda: "1 received" in made.execute("client", *ping, check=False))


def packets_on(net: Lab, device: str) -> int:
    return int(json.loads(run("ip", "-n", net.switch_ns, "-j", "-s", "link", "show", device))[0]["stats64"]["tx"]["packets"])


def controllers(net: Lab) -> list:
    return net.running("sos_controller")
