"""Test proactive services in a simulated world: order of installation, constancy, withdrawal and adoption.

Test packets also check the resulting tables and the switch's own bypass of a dead agent.
"""

from __future__ import annotations

from typing import Any

import pytest
from controller_fake import E1, E2, FakeNetwork
from controller_lab import AGENTS, MACS, SWITCHES, document
from controller_world import World, encode, syn_frame
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sos_controller.core import snapshot
from sos_controller.core.events import ConfigChanged
from sos_controller.core.openflow.flow_entries import Match
from sos_controller.core.openflow.pipeline import PORT_NORMAL, UNARMED_MAC, Kind, cookie_kind
from sos_controller.core.services import proactive
from sos_controller.core.tables.policies import Policies, Policy, redirect_matches, why_not_proactive
from sos_controller.core.types import AgentId, DatapathId, Location, PortNo, flow_key, parse_address, parse_mac
from sos_controller.core.wire import order
from sos_controller.files.config import document_hash, parse

CLIENT, SERVER = parse_address("10.0.0.11"), parse_address("10.0.0.139")
AT_CLIENT, AT_SERVER = Location(E1, PortNo(3)), Location(E2, PortNo(3))
AT_INGRESS, AT_EGRESS = Location(E1, PortNo(4)), Location(E2, PortNo(4))
INGRESS, EGRESS = AgentId(AGENTS["agent1"][2]), AgentId(AGENTS["agent2"][2])
SYN = syn_frame(CLIENT, SERVER, 40000, 5001)
BACK = parse_mac(MACS["client"]) + parse_mac(MACS["server"]) + syn_frame(SERVER, CLIENT, 5001, 40000, flags=0x12)[12:]
PLAIN = Location(E1, PORT_NORMAL)


def proactively(generation: int = 1, services: list[dict[str, Any]] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the lab's document with a proactive service."""
    made = document(generation)
    del made["hash"]
    bulk = {**made["services"][0], "setup": "Proactive", **changes}
    made["services"] = [bulk] if services is None else services
    return {**made, "hash": document_hash(made)}


@pytest.fixture
def world() -> World:
    made = World(proactively())
    made.converge()
    made.tick(proactive.UNARMED_S + 1)
    assert made.service() == "Programmed/Programmed"
    return made


def configure(world: World, made: dict[str, Any]) -> None:
    world.do(ConfigChanged(parse(encode(made))))


def service_entries(network: FakeNetwork, dpid: DatapathId) -> list[Any]:
    return [e for e in network.entries(dpid) if cookie_kind(e.cookie) == Kind.SERVICE]


def begin(world: World, *numbers: int) -> None:
    """Let the agents report sessions that they have started themselves."""
    for name, role, peer in (("agent1", order.Role.INGRESS, EGRESS), ("agent2", order.Role.EGRESS, INGRESS)):
        world.agents[name].flows = tuple(
            order.ReportedFlow(n.to_bytes(16, "big"), role, flow_key(CLIENT, SERVER, 40000 + n, 5001), peer) for n in numbers
        )


def redirected(mac: str, frame: bytes) -> bytes:
    return parse_mac(MACS[mac]) + frame[6:]


def test_both_directions_reach_the_agents_without_the_controller(world: World) -> None:
    world.delivered.clear()
    for frame in (SYN, syn_frame(CLIENT, SERVER, 40000, 5001, flags=0x10)):
        assert world.network.walk(AT_CLIENT, frame) == [(AT_INGRESS, redirected("agent1", frame))]
    assert world.network.walk(AT_SERVER, BACK) == [(AT_EGRESS, redirected("agent2", BACK))]
    for elsewhere in (syn_frame(CLIENT, SERVER, 40000, 6000), syn_frame(SERVER, CLIENT, 40000, 5001)):
        assert all(port == PORT_NORMAL for (_, port), _ in world.network.walk(AT_CLIENT, elsewhere))
    assert not world.delivered
    assert all(cookie_kind(e.cookie) != Kind.PUNT for dpid in SWITCHES.values() for e in world.network.entries(DatapathId(dpid)))


def test_packets_from_agents_are_never_redirected(world: World) -> None:
    assert world.network.walk(AT_INGRESS, BACK) == [(PLAIN, BACK)]
    assert world.network.walk(AT_EGRESS, SYN) == [(Location(E2, PORT_NORMAL), SYN)]


def test_egress_entries_come_first_then_unarmed_then_armed_entries() -> None:
    world = World(proactively())
    world.connect()
    seen: list[tuple[int, str, bool]] = []
    for _ in range(400):
        world.tick(0.025)
        egress = len(service_entries(world.network, E2))
        ((_, frame),) = world.network.walk(AT_CLIENT, SYN)
        ingress = "plain" if frame == SYN else "unarmed" if frame[6:12] == UNARMED_MAC else "armed"
        programmed = world.service() == "Programmed/Programmed"
        if not seen or seen[-1] != (egress, ingress, programmed):
            seen.append((egress, ingress, programmed))
    egress = 9 + 1 + 3  # blocks of ports, fragments, kinds of ICMP errors
    assert seen == [(egress, "plain", False), (egress, "unarmed", False), (egress, "armed", True)]


def test_ingress_entries_wait_for_the_barrier_of_the_egress_site() -> None:
    world = World(proactively())
    world.mute.add(E2)
    world.connect()
    world.tick(20.0)
    assert service_entries(world.network, E2)
    assert not service_entries(world.network, E1)
    assert world.service() == "Pending/Programming"


@given(st.integers(0, 60))
def test_entries_are_the_same_for_any_number_of_sessions(count: int) -> None:
    world = World(proactively())
    world.converge()
    world.tick(proactive.UNARMED_S + 1)
    before = {dpid: dict(table) for dpid, table in world.network.tables.items()}
    begin(world, *range(count))
    world.tick(3.0)
    assert {dpid: dict(table) for dpid, table in world.network.tables.items()} == before
    status = snapshot.status(world.engine, "", "")
    assert (status["sessions"], status["services"][0]["sessions"]) == (count, count)


def test_sessions_are_listed_as_reported_by_agents(world: World) -> None:
    begin(world, 1)
    world.tick(2.0)
    (shown,) = snapshot.sessions(world.engine)["sessions"]
    assert (shown["service"], shown["state"], shown["client"], shown["server"]) == (
        "default/bulk",
        "Active",
        "10.0.0.11:40001",
        "10.0.0.139:5001",
    )
    assert (shown["ingress"], shown["egress"]) == (INGRESS.hex(), EGRESS.hex())
    begin(world)
    world.tick(2.0)
    assert snapshot.sessions(world.engine)["total"] == 0


def test_dead_agent_loses_its_sessions_and_the_switch_bypasses_it(world: World) -> None:
    begin(world, 1, 2)
    world.tick(2.0)
    before = service_entries(world.network, E1)
    for agent in world.agents.values():
        agent.mode = "dead"
    world.tick(10.0)
    assert snapshot.sessions(world.engine)["total"] == 0
    assert world.service() == "Pending/NoAgents"
    assert service_entries(world.network, E1) == before, "the controller may be wrong about an agent; the switch watches its port"
    world.network.down.update((AT_INGRESS, AT_EGRESS))
    assert world.network.walk(AT_CLIENT, SYN) == [(PLAIN, SYN)]
    assert world.network.walk(AT_SERVER, BACK) == [(Location(E2, PORT_NORMAL), BACK)]


def test_group_follows_an_agent_that_restarts_at_another_port(world: World) -> None:
    agent = world.agents["agent1"]
    agent.where, agent.boot = Location(E1, PortNo(5)), agent.boot + 1
    world.tick(2.0)
    assert world.network.walk(AT_CLIENT, SYN) == [(agent.where, redirected("agent1", SYN))]


def test_deleted_service_takes_no_new_sessions_and_stays_for_the_last(world: World) -> None:
    begin(world, 1)
    world.tick(2.0)
    configure(world, proactively(2, services=[]))
    world.tick(60.0)
    ((_, frame),) = world.network.walk(AT_CLIENT, SYN)
    assert frame[6:12] == UNARMED_MAC, "the ingress agent forwards the SYN and records it"
    assert world.network.walk(AT_SERVER, BACK) == [(AT_EGRESS, redirected("agent2", BACK))]
    begin(world)
    world.tick(3.0)
    assert not service_entries(world.network, E1) + service_entries(world.network, E2)
    assert not world.network.failovers


def test_undeclared_agents_keep_their_paths_for_their_last_session(world: World) -> None:
    begin(world, 1)
    world.tick(2.0)
    paths = {dpid: [e for e in world.network.entries(dpid) if cookie_kind(e.cookie) == Kind.PATH] for dpid in (E1, E2)}
    made = proactively(2)
    del made["hash"]
    made["sites"] = [{**site, "agents": []} for site in made["sites"]]
    configure(world, {**made, "hash": document_hash(made)})
    world.tick(10.0)
    for dpid, entries in paths.items():
        assert entries
        assert {e.key for e in entries} <= {e.key for e in world.network.entries(dpid)}
    begin(world)
    world.tick(3.0)
    assert not [e for dpid in (E1, E2) for e in world.network.entries(dpid) if cookie_kind(e.cookie) == Kind.PATH]


def test_deleted_service_waits_for_recent_reports(world: World) -> None:
    for agent in world.agents.values():
        agent.report = lambda wall_ms: []  # type: ignore[method-assign]
    configure(world, proactively(2, services=[]))
    world.tick(120.0)
    assert service_entries(world.network, E1), "no report confirms that sessions have ended"


def test_changed_ports_preserve_sessions_of_the_old_ports(world: World) -> None:
    begin(world, 1)
    world.tick(2.0)
    configure(world, proactively(2, ports=[{"first": 5001, "last": 5001}, {"first": 80, "last": 80}]))
    world.tick(60.0)
    assert world.network.walk(AT_CLIENT, SYN) == [(AT_INGRESS, redirected("agent1", SYN))]
    begin(world)
    world.tick(3.0)
    assert len(service_entries(world.network, E1)) == len(service_entries(world.network, E2)) == 2 + 1 + 3


def test_changes_without_effect_on_forwarding_change_no_entry(world: World) -> None:
    before = {dpid: dict(table) for dpid, table in world.network.tables.items()}
    transport = {"streams": 4, "blockBytes": 0, "queueBytes": 0, "congestionControl": "Reno"}
    configure(world, proactively(2, priority=7, transport=transport))
    world.tick(10.0)
    assert {dpid: dict(table) for dpid, table in world.network.tables.items()} == before


def test_new_controller_takes_over_without_plain_connections(world: World) -> None:
    begin(world, 1)
    later = World(proactively(), world.network, epoch=2, now=world.now + 60)
    for name, agent in world.agents.items():
        later.agents[name] = agent
    later.connect()
    for _ in range(800):
        later.tick(0.025)
        assert later.network.walk(AT_CLIENT, SYN) == [(AT_INGRESS, redirected("agent1", SYN))]
        assert later.network.walk(AT_SERVER, BACK) == [(AT_EGRESS, redirected("agent2", BACK))]
    assert later.service() == "Programmed/Programmed"
    assert {e.cookie >> 16 & 0xFF for e in service_entries(later.network, E1)} == {2}
    assert snapshot.sessions(later.engine)["total"] == 1


def test_new_controller_without_the_service_waits_for_its_sessions(world: World) -> None:
    begin(world, 1)
    later = World(proactively(2, services=[]), world.network, epoch=2, now=world.now + 60)
    for name, agent in world.agents.items():
        later.agents[name] = agent
    later.connect()
    later.tick(60.0)
    assert service_entries(later.network, E1)
    begin(later)
    later.tick(3.0)
    assert not service_entries(later.network, E1) + service_entries(later.network, E2)
    assert not later.network.failovers


def test_empty_reconnecting_switch_gets_groups_before_entries(world: World) -> None:
    world.disconnect("edge1")
    world.network.tables[E1] = {}
    world.network.failovers = {key: group for key, group in world.network.failovers.items() if key[0] != E1}
    world.connect(["edge1"])
    world.tick(5.0)
    assert world.network.walk(AT_CLIENT, SYN) == [(AT_INGRESS, redirected("agent1", SYN))]


def policies(*services: dict[str, Any]) -> tuple[list[Policy], dict[str, Any]]:
    config = parse(encode(proactively(services=list(services))))
    return Policies(config.services).by_site["west"], {site.name: site for site in config.sites}


def test_service_that_cannot_be_proactive_names_the_reason() -> None:
    bulk = proactively()["services"][0]
    (policy,), sites = policies(bulk)
    assert why_not_proactive(policy, (), sites) == ""
    (half,), _ = policies({**bulk, "percent": 50})
    assert "percent" in why_not_proactive(half, (), sites)
    (first, second), _ = policies({**bulk, "id": "default/first", "mode": "Observe", "ports": [{"first": 5500, "last": 6500}]}, bulk)
    assert "default/first" in why_not_proactive(second, (first,), sites)
    west = sites["west"]
    other = replace(west.datapaths[0], dpid=f"{7:016x}")
    assert "2 datapaths" in why_not_proactive(policy, (), {**sites, "west": replace(west, datapaths=[*west.datapaths, other])})
    hardware = replace(west.datapaths[0], forwarding="Controller")
    assert "Open vSwitch" in why_not_proactive(policy, (), {**sites, "west": replace(west, datapaths=[hardware])})


def test_service_that_falls_back_to_reactive_reports_the_reason() -> None:
    world = World(proactively(percent=50))
    world.converge()
    assert world.service() == "Programmed/Programmed"
    assert not service_entries(world.network, E1)
    assert Kind.PUNT in {cookie_kind(e.cookie) for e in world.network.entries(E1)}
    (shown,) = snapshot.status(world.engine, "", "")["services"]
    assert shown["message"].startswith("set up reactively: ")


a_range = st.tuples(st.integers(1, 65535), st.integers(0, 300)).map(lambda r: (r[0], min(r[0] + r[1], 65535)))
ranges = st.lists(a_range, min_size=1, max_size=4)


@given(ranges, st.integers(1, 65535))
def test_entries_match_exactly_the_ports_of_the_service(given_ranges: list[tuple[int, int]], port: int) -> None:
    bulk = proactively()["services"][0]
    (policy,), _ = policies({**bulk, "ports": [{"first": a, "last": b} for a, b in given_ranges]})
    wanted = any(a <= port <= b for a, b in given_ranges)

    def hit(matches: list[Match], field: str) -> bool:
        return any(port & getattr(m, field)[1] == getattr(m, field)[0] for m in matches)

    assert hit(redirect_matches(policy, ingress=True), "tcp_dst") == wanted
    assert hit(redirect_matches(policy, ingress=False), "tcp_src") == wanted


def test_site_without_a_live_agent_is_reported_although_one_is_declared() -> None:
    made = proactively()
    del made["hash"]
    second = {**made["sites"][0]["agents"][0], "id": "ff" * 16, "address": "10.0.0.125"}
    made["sites"][0]["agents"].append(second)
    world = World({**made, "hash": document_hash(made)})
    world.converge()
    world.tick(proactive.UNARMED_S + 1)
    (shown,) = snapshot.status(world.engine, "", "")["services"]
    assert (shown["state"], shown["message"]) == ("Programmed", "")
    world.agents["agent1"].mode = "dead"
    world.tick(10.0)
    assert world.service() == "Pending/NoAgents"


def test_reports_about_unknown_agents_create_no_pairs(world: World) -> None:
    before = set(world.engine.plan.pairs)
    key = flow_key(CLIENT, SERVER, 1, 2)
    world.agents["agent1"].flows = (order.ReportedFlow(bytes(16), order.Role.INGRESS, key, AgentId(b"\xee" * 16)),)
    world.tick(2.0)
    assert len(world.engine.state.agent_sessions) == 1
    assert set(world.engine.plan.pairs) == before == world.engine.plan.wanted
