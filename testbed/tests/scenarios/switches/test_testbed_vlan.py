"""Hosts in VLANs without agents connect plainly, and address probes (RFC 5227) detect no conflict caused by agents.

client -- edge1 ======= core1 ------- edge2 -- server
            |  ======== core2 --------  |
         agent1                      agent2
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from conftest import PROGRAMS, eventually, with_service
from sos_testbed.core.web import SOS_PORT
from sos_testbed.lifecycle import declare
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import PROACTIVE, Lab
from vlans import accelerated_again, connect_plainly, fetch, run, taken_over, vsctl

PROBER = PROGRAMS / "prober.py"
VLAN = 7
SERVER = "10.0.0.139"
TAGGED_SERVER = "10.0.0.156"
PLAIN, COVERED = 6061, 5061
COLUMNS = {"access": {"tag": "100"}, "native": {"tag": "100", "vlan_mode": "native-untagged"}}

SERVE = """
import socket, sys, threading
def run(port):
    listener = socket.create_server(("", port))
    while True:
        there, _ = listener.accept()
        there.recv(9999); there.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nhello\\n"); there.close()
for port in sys.argv[1:]: threading.Thread(target=run, args=(int(port),)).start()
"""


@pytest.fixture(autouse=True)
def small(net: Lab) -> None:
    labs.make_payload(net.root / "www" / "small", 200_000)


@pytest.mark.parametrize(
    ("columns", "setup"), [("access", "reactive"), ("access", "proactive"), ("access", "observe"), ("native", "reactive")]
)
def test_hosts_in_another_vlan_connect_plainly(net: Lab, columns: str, setup: str) -> None:
    objects = net.objects
    changed = {"proactive": lambda: declare.load((PROACTIVE,)), "observe": lambda: with_service(objects, mode="Observe")}
    if setup in changed:
        net.declare(changed[setup]())
        labs.wait_ready(net, net.documents)
    connect_plainly(net, **COLUMNS[columns])
    if setup != "observe":
        accelerated_again(net)


@contextmanager
def trunk(net: Lab, name: str, switch: str, address: str) -> Iterator[tuple[str, ...]]:
    """Add a host whose frames arrive tagged on a trunk. A second bridge adds the tag, because the kernel may lack 8021q."""
    host, ns = f"{net.name}-{name}", net.plan.netns(switch)
    with ExitStack() as stack:
        run("ip", "netns", "add", host)
        stack.callback(run, "ip", "netns", "del", host, check=False)
        for near, far, where in ((name, "eth0", host), ("t0", "t1", ns)):
            run("ip", "-n", ns, "link", "add", near, "type", "veth", "peer", "name", far, "netns", where)
            stack.callback(run, "ip", "-n", ns, "link", "del", near, check=False)
            for end, place in ((near, ns), (far, where)):
                run("ip", "-n", place, "link", "set", end, "addrgenmode", "none", "up")
        run("ip", "-n", host, "address", "add", address, "dev", "eth0")
        bridge = ("add-br", "br-t", "--", "set", "bridge", "br-t", "datapath_type=netdev", "--", "add-port", "br-t", name, f"tag={VLAN}")
        vsctl(net, switch, *bridge, "--", "add-port", "br-t", "t0", "--", "add-port", "br-sos", "t1")
        stack.callback(vsctl, net, switch, "--if-exists", "del-port", "br-sos", "t1", "--", "--if-exists", "del-br", "br-t")
        yield ("ip", "netns", "exec", host)


def test_tagged_hosts_connect_plainly_in_both_set_ups(net: Lab) -> None:
    objects = net.objects
    with trunk(net, "c6", "edge1", "10.0.0.26/24") as client, trunk(net, "s6", "edge2", f"{TAGGED_SERVER}/24") as server:
        serving = subprocess.Popen((*server, sys.executable, "-c", SERVE, str(PLAIN), str(COVERED)))
        try:
            eventually("a server", lambda: fetch(client, f"http://{TAGGED_SERVER}:{PLAIN}/") == "200")
            for setup in ("reactive", "proactive"):
                before = taken_over(net)
                for port in (PLAIN, COVERED, COVERED):
                    assert fetch(client, f"http://{TAGGED_SERVER}:{port}/") == "200", (setup, port)
                assert taken_over(net) == before
                if setup == "reactive":
                    net.declare(declare.load((PROACTIVE,)))
                    labs.wait_ready(net, net.documents)
            eventually(
                "untagged hosts are accelerated",
                lambda: fetch(net.exec_argv("client", ()), f"http://{SERVER}:{SOS_PORT}/small") == "200" and taken_over(net) > before,
            )
        finally:
            serving.kill()
            serving.wait()
            net.declare(objects)
    labs.wait_ready(net, net.documents)
    accelerated_again(net)  # an agent that is not armed again yet would make connections of the next test plain


@contextmanager
def host_without_address(net: Lab, name: str, switch: str) -> Iterator[tuple[str, ...]]:
    host, ns = f"{net.name}-{name}", net.plan.netns(switch)
    run("ip", "netns", "add", host)
    try:
        run("ip", "-n", ns, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", host)
        run("ip", "-n", ns, "link", "set", name, "up")
        run("ip", "-n", host, "link", "set", "eth0", "addrgenmode", "none", "up")
        vsctl(net, switch, "add-port", "br-sos", name)
        yield ("ip", "netns", "exec", host)
    finally:
        vsctl(net, switch, "--if-exists", "del-port", "br-sos", name)
        run("ip", "netns", "del", host, check=False)


def test_an_address_probe_sees_no_conflict_while_a_client_connects(net: Lab) -> None:
    """Probe an address as in RFC 5227, 2.1.1: only the host itself sends ARP probes for the address, and no sender claims it."""
    with host_without_address(net, "h19", "edge2") as host:
        mac = json.loads(run(*host, "ip", "-j", "link", "show", "eth0"))[0]["address"]
        for port, address in ((PLAIN, "10.0.0.150"), (COVERED, "10.0.0.141")):
            run(*net.exec_argv("client", ("ip", "neigh", "replace", address, "lladdr", mac, "dev", "eth0", "nud", "reachable")))
            connecting = subprocess.Popen(net.exec_argv("client", (sys.executable, str(PROBER), "connect", address, str(port))))
            try:
                assert run(*host, sys.executable, str(PROBER), "probe", address).split() == [], port
            finally:
                connecting.kill()
                connecting.wait()
