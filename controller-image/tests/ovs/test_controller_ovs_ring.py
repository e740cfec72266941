"""Real switches spread a proactive service over three agents, and pass packets on that an agent does not own (docs/adr/0074).

The tests need root, openvswitch-switch and iproute2. `controller_lab` shows the topology.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from controller_lab import HOSTS, MACS, MORE, Lab, document, lab, run, wait
from sos_controller.core.openflow.pipeline import Kind
from sos_controller.core.services.agent_ring import SLOTS
from sos_controller.files.config import document_hash

SLOW = 60.0
FLAGS = {"+syn": 2, "+ack": 0x10, "+syn+ack": 0x12, "+fin+ack": 0x11, "+rst": 4}
EAST_AGENTS, WEST_AGENTS = ("agent2", "agent2b", "agent2c"), ("agent1", "agent1b", "agent1c")


def three_agents() -> dict[str, Any]:
    """Return the lab's configuration with a proactive service and three agents at each site."""
    made = document()
    del made["hash"]
    made["services"] = [{**made["services"][0], "setup": "Proactive"}]
    for site, names in ((made["sites"][0], WEST_AGENTS), (made["sites"][1], EAST_AGENTS)):
        first = site["agents"][0]
        for name in names[1:]:
            _, address, _, number = MORE[name]
            site["agents"].append({**first, "id": first["id"][:28] + f"{number:02x}" + first["id"][30:], "address": address})
    return {**made, "hash": document_hash(made)}


@pytest.fixture(scope="module")
def net() -> Iterator[Lab]:
    with lab() as made:
        for agent in ("agent1", "agent2"):
            made.start_agent(agent)
        made.more_agents()
        made.start_controller(three_agents())
        wait("Programmed", SLOW, lambda: made.service_state() == "Programmed/Programmed")
        wait("three agents in both rings", SLOW, lambda: all(len(chosen(made, edge)) == 3 for edge in ("edge1", "edge2")))
        yield made


def chosen(net: Lab, switch: str) -> Counter[str]:
    """Return how many slots belong to each place."""
    own = (line for line in net.ours(switch, Kind.RING) if "table=6" in line and "tcp" in line)
    return Counter(line.split("actions=")[1] for line in own)


def packet(side: int, port: int, flags: str) -> str:
    """Return a packet of a connection: from its client (side 0), or from its server."""
    ends = [("client", port), ("server", 5001)]
    (source, sport), (target, dport) = ends if side == 0 else ends[::-1]
    ethernet = f"eth_src={MACS[source]},eth_dst={MACS[target]}"
    ip = f"tcp,nw_src={HOSTS[source][1]},nw_dst={HOSTS[target][1]},nw_ttl=64"
    return f"{ethernet},{ip},tp_src={sport},tp_dst={dport},tcp_flags={FLAGS[flags]:#x}"


def goes_to(net: Lab, side: int, of: str, port: int, flags: str) -> str:
    """Return the agent to which the switch sends a packet that comes from a host or agent, "" for plain forwarding."""
    switch, names = ("edge1", WEST_AGENTS) if side == 0 else ("edge2", EAST_AGENTS)
    traced = net.traced(switch, f"in_port={net.port(switch, 'p-' + of)},{packet(side, port, flags)}")
    ports = {net.port(switch, f"p-{name}"): name for name in names}
    outputs = [int(number) for number in re.findall(r"^ +output:(\d+)$", traced, flags=re.MULTILINE)]
    found = [ports[number] for number in outputs if number in ports]
    learned = "pop:NXM_OF_ETH_DST[]"  # the end of the actions by which the switch only learns (docs/adr/0081)
    assert len(found) + ("NORMAL" in traced.rpartition(learned)[2]) == 1, traced
    return found[0] if found else ""


def whole_round(net: Lab, side: int, port: int, flags: str) -> list[str]:
    """Return the agents that a packet passes if none of them owns it."""
    passed, at = [], "client" if side == 0 else "server"
    while at := goes_to(net, side, at, port, flags):
        passed.append(at)
        assert len(passed) <= 3, passed
    return passed


def test_slots_are_shared_evenly(net: Lab) -> None:
    for switch in ("edge1", "edge2"):
        shares = sorted(chosen(net, switch).values())
        assert (sum(shares), shares) == (SLOTS, [21, 21, 22])


@pytest.mark.parametrize("side", [0, 1])
def test_first_agent_is_the_same_for_all_packets_of_a_connection_and_even_over_ports(net: Lab, side: int) -> None:
    of, flags = ("client", ["+syn", "+ack", "+fin+ack"]) if side == 0 else ("server", ["+syn+ack", "+ack", "+rst"])
    taken = Counter[str]()
    for port in range(40_000, 40_024, 2):
        (first,) = {goes_to(net, side, of, port, each) for each in flags}
        assert first == goes_to(net, side, of, port + 1, flags[0]), "the parity of a port does not matter"
        taken[first] += 1
    assert sorted(taken.values()) == [4, 4, 4]


def test_both_sites_derive_the_same_agent(net: Lab) -> None:
    for port in range(40_000, 40_012, 2):
        west, east = goes_to(net, 0, "client", port, "+syn"), goes_to(net, 1, "server", port, "+syn+ack")
        assert WEST_AGENTS.index(west) == EAST_AGENTS.index(east)


@pytest.mark.parametrize(("side", "flags"), [(0, "+ack"), (1, "+syn+ack"), (1, "+rst")])
def test_packet_without_an_owner_passes_each_agent_once(net: Lab, side: int, flags: str) -> None:
    for port in (40_000, 40_002, 40_004):
        assert sorted(whole_round(net, side, port, flags)) == sorted(WEST_AGENTS if side == 0 else EAST_AGENTS)


def test_clients_syn_passes_one_agent(net: Lab) -> None:
    assert len(whole_round(net, 0, 40_000, "+syn")) == 1


def test_agents_own_connections_are_not_redirected(net: Lab) -> None:
    one, other = HOSTS["agent1"][1], HOSTS["agent2"][1]
    own = f"eth_src={MACS['agent1']},eth_dst={MACS['agent2']},tcp,nw_src={one},nw_dst={other},tp_src=40000,tp_dst=5001,tcp_flags=0x10"
    assert "NORMAL" in net.traced("edge1", f"in_port={net.port('edge1', 'p-agent1')},{own}")


def test_switch_skips_a_dead_port_by_itself(net: Lab) -> None:
    first = goes_to(net, 0, "client", 40_000, "+ack")
    run("ip", "-n", net.switch_ns, "link", "set", f"p-{first}", "down")
    wait("another agent", SLOW, lambda: goes_to(net, 0, "client", 40_000, "+ack") not in ("", first))
    assert sorted(whole_round(net, 0, 40_000, "+ack")) == sorted(set(WEST_AGENTS) - {first})
    run("ip", "-n", net.switch_ns, "link", "set", f"p-{first}", "up")
    wait("the agent", SLOW, lambda: goes_to(net, 0, "client", 40_000, "+ack") == first)


def test_new_controller_leaves_every_round_as_it_was(net: Lab) -> None:
    def rounds() -> dict[int, list[str]]:
        return {port: whole_round(net, 0, port, "+ack") for port in (40_000, 40_002, 40_004)}

    def epochs() -> set[str]:
        return {line.split("cookie=0x")[1][10:12] for edge in ("edge1", "edge2") for line in net.ours(edge, Kind.RING)}

    before, epoch = rounds(), epochs()
    net.kill_all(net.running("sos_controller"))
    assert rounds() == before
    net.start_controller(three_agents())
    while epochs() & epoch:
        assert rounds() == before
    wait("Programmed", SLOW, lambda: net.service_state() == "Programmed/Programmed")
    assert rounds() == before


def test_switch_refuses_no_message(net: Lab) -> None:
    assert "sos_controller_rejected_total{" not in str(net.get("/metrics"))
