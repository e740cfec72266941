"""Declared tunnels with a real controller and Open vSwitch: BFD reports the underlay's state, also beside a node that does not run BFD.

client -- edge1 ==tunnel== edge2 -- server; the ring of `controller_lab` is the way around the tunnel
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from controller_lab import Lab, document, run, wait
from sos_controller.core.openflow.pipeline import Kind
from sos_controller.files.config import document_hash

SLOW = 30.0
ENDS = {"edge1": "sosvx2", "edge2": "sosvx1"}
"""The tunnel's port on each bridge."""


def declared() -> dict[str, Any]:
    made = document()
    for number, site in enumerate(made["sites"][:2], start=1):
        site["datapaths"][0]["tunnel"] = number
    return {**made, "hash": document_hash({key: value for key, value in made.items() if key != "hash"})}


def add_tunnel(net: Lab) -> None:
    """Create VXLAN devices whose packets cross a wire between two other namespaces."""
    names = [net.namespace(f"u{number}") for number in (1, 2)]
    run("ip", "-n", names[0], "link", "add", "under", "type", "veth", "peer", "name", "under", "netns", names[1])
    for number, (ns, (bridge, port)) in enumerate(zip(names, ENDS.items(), strict=True), start=1):
        run("ip", "-n", ns, "addr", "add", f"192.0.2.{number}/24", "dev", "under")
        run("ip", "-n", ns, "link", "set", "under", "up")
        remote = ("remote", f"192.0.2.{3 - number}", "dstport", "14789", "nolearning")
        run("ip", "-n", ns, "link", "add", port, "type", "vxlan", "id", "7", *remote)
        run("ip", "-n", ns, "link", "set", port, "netns", net.switch_ns)
        run("ip", "-n", net.switch_ns, "link", "set", port, "up")
        net.ovs("ovs-vsctl", "--timeout=30", "add-port", bridge, port)
        guard = f"cookie=0x534f000100000000,table=0,priority=45000,in_port={net.port(bridge, port)},actions=resubmit(,1)"
        net.ovs("ovs-ofctl", "-O", "OpenFlow13", "add-flow", f"unix:{net.folder}/{bridge}.mgmt", guard)
        net.ovs("ovs-ofctl", "-O", "OpenFlow10", "mod-port", f"unix:{net.folder}/{bridge}.mgmt", port, "no-flood")  # the ring has a tree


def watch(net: Lab, bridge: str) -> None:
    """Set a tunnel's port as sos-node does (spec/node-config.md clause 44)."""
    columns = ("enable=true", "min_tx=200", "min_rx=200", "mult=5", 'bfd_local_dst_mac="01:80:c2:00:00:0e"')
    net.ovs("ovs-vsctl", "--timeout=30", "set", "interface", ENDS[bridge], *(f"bfd:{column}" for column in columns))
    net.ovs("ovs-ofctl", "-O", "OpenFlow10", "mod-port", f"unix:{net.folder}/{bridge}.mgmt", ENDS[bridge], "no-packet-in")


def is_live(net: Lab, bridge: str) -> bool:
    shown = net.ovs("ovs-ofctl", "-O", "OpenFlow13", "dump-ports-desc", f"unix:{net.folder}/{bridge}.mgmt")
    return "LIVE" in shown.partition(f"({ENDS[bridge]})")[2].partition("speed:")[0]


def tunnel(net: Lab) -> dict[str, Any] | None:
    """Return the tunnel's link, None if there is none."""
    links = net.get("/v1/topology")["links"]
    return next((link for link in links if {link["a"]["name"], link["b"]["name"]} == set(ENDS.values())), None)


def underlay(net: Lab, state: str) -> None:
    run("ip", "-n", f"{net.tag}-u1", "link", "set", "under", state)


def crossing(net: Lab) -> int:
    """Return the number of path entries on the way around the tunnel."""
    return len(net.ours("core1", Kind.PATH)) + len(net.ours("core2", Kind.PATH))


@pytest.fixture
def net() -> Iterator[Lab]:
    with ExitStack() as stack:
        made = Lab(stack, "Node", "OpenFlow10,OpenFlow13")
        add_tunnel(made)
        made.start_controller(declared(), "--state", str(made.folder / "state"))
        for agent in ("agent1", "agent2"):
            made.start_agent(agent)
        wait("Programmed", SLOW, lambda: made.service_state() == "Programmed/Programmed")
        yield made


def test_tunnel_is_discovered_until_both_ends_run_bfd_and_then_follows_bfd(net: Lab) -> None:
    wait("the tunnel, by probes", SLOW, lambda: (tunnel(net) or {}).get("ageSeconds") is not None)
    wait("the path through the tunnel", SLOW, lambda: crossing(net) == 0)
    watch(net, "edge1")
    wait("missing answers of BFD", SLOW, lambda: not is_live(net, "edge1"))
    wait("another probe", SLOW, lambda: (tunnel(net) or {"ageSeconds": 9.0})["ageSeconds"] < 1.0)
    assert tunnel(net) is not None, "one end that watches the other in vain changes nothing"
    watch(net, "edge2")
    wait("the declared tunnel", SLOW, lambda: (link := tunnel(net)) is not None and link["ageSeconds"] is None)
    assert is_live(net, "edge1") and is_live(net, "edge2")
    wait("the path through the tunnel", SLOW, lambda: crossing(net) == 0)
    underlay(net, "down")
    wait("the loss", SLOW, lambda: tunnel(net) is None)
    assert all(port["up"] for port in ports_of_tunnel(net)), "both devices stay up: only BFD knows"
    wait("the path around the tunnel", SLOW, lambda: crossing(net) > 0 and net.service_state() == "Programmed/Programmed")
    underlay(net, "up")
    wait("the tunnel's return", SLOW, lambda: (link := tunnel(net)) is not None and link["ageSeconds"] is None)
    wait("the path through the tunnel", SLOW, lambda: crossing(net) == 0 and net.service_state() == "Programmed/Programmed")


def ports_of_tunnel(net: Lab) -> list[dict[str, Any]]:
    datapaths = net.get("/v1/topology")["datapaths"]
    return [port for datapath in datapaths for port in datapath["ports"] if port["name"] in ENDS.values()]
