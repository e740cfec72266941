"""Test the controller's fail-open rules (docs/concepts/fail-open.md)."""

from __future__ import annotations

from controller_fake import C1, E1, E2, WIRES
from controller_lab import HOSTS, MACS
from controller_views import AT_CLIENT, AT_EGRESS, AT_INGRESS, CLIENT, SERVER, changed
from controller_world import World, syn_frame
from sos_controller.core.events import ConfigChanged, EndLeases, Leaving
from sos_controller.core.openflow.pipeline import BARE_SYN, LEASE_S, PORT_CONTROLLER, PORT_NORMAL, Kind, cookie_kind
from sos_controller.core.types import Location, PortNo, parse_address, parse_mac

AGENTS = [parse_address(HOSTS[name][1]) for name in ("agent1", "agent2")]


def test_rule_4_only_punt_entries_are_leases_of_a_reactive_service(world: World) -> None:
    """Only the punt entries of a reactive service need a live controller. They expire, and match only bare SYNs."""
    world.syn(40000)
    entries = [entry for dpid in (E1, E2, C1) for entry in world.network.entries(dpid)]
    punts = [entry for entry in entries if cookie_kind(entry.cookie) == Kind.PUNT]
    assert punts and {(entry.hard_timeout, entry.match.tcp_flags) for entry in punts} == {(LEASE_S, BARE_SYN)}
    assert not any(entry.hard_timeout for entry in entries if entry not in punts)


def test_rule_4_leaving_controller_withdraws_leases_and_releases_delayed_syns(world: World) -> None:
    world.syn(40000)
    (running,) = world.engine.state.sessions
    stays = {entry for dpid in (E1, E2, C1) for entry in world.network.entries(dpid) if not entry.hard_timeout}
    world.agents["agent2"].mode = "silent"
    world.syn(40001)
    assert world.engine.state.sessions.pending == 1
    world.delivered.clear()
    world.do(Leaving())
    assert released(world) == [40001], "the delayed SYN is released"
    assert list(world.engine.state.sessions) == [running]
    world.syn(40002)  # matched the punt entry before its removal
    assert released(world) == [40001, 40002]
    world.do(EndLeases())
    world.do(ConfigChanged(changed(2, ports=(80, 80))))
    world.tick(2 * LEASE_S)
    assert {entry for dpid in (E1, E2, C1) for entry in world.network.entries(dpid)} == stays, "no entry is renewed, planned or removed"
    assert world.engine.state.programmer.is_quiet


def test_rule_4_leaving_controller_sends_retransmitted_syns_to_their_agents(world: World) -> None:
    """If the agent's answer is late, the client retransmits its SYN. If that SYN went plain, the server would answer it, and the agent
    would reset the connection."""
    world.syn(40000)
    opening = world.engine.setup
    assert opening.is_opening(world.now + 1.1) and not opening.is_opening(world.now + 2)
    world.do(Leaving())
    world.delivered.clear()
    world.tick(1.0)
    syn = syn_frame(CLIENT, SERVER, 40000, 5001)
    assert places(world, AT_CLIENT, syn) == {Location(E1, PORT_CONTROLLER)}
    world.syn(40000)
    (repeat,) = world.delivered
    assert repeat.data[:6] == world.agents["agent1"].mac
    world.syn(40001)
    assert released(world) == [40000, 40001], "new connections are plain"
    assert not opening.is_opening(world.now + 1)
    world.do(EndLeases())
    assert places(world, AT_CLIENT, syn) == {Location(E1, PORT_NORMAL)}


def released(world: World) -> list[int]:
    """Return the client ports of the SYNs that were forwarded like traffic outside all services."""
    plain = [out for out in world.delivered if out.data[12:14] == b"\x08\x00" and out.data[23] == 6]
    return [int.from_bytes(out.data[34:36], "big") for out in plain]


def test_rule_6_guards_take_precedence_over_services_of_all_ports(world: World) -> None:
    """Packets from agents and switches, or to or from agents' addresses, are never punted. SYNs of hosts are punted."""
    world.do(ConfigChanged(changed(2, ports=(1, 65535))))
    world.tick(1)
    between = [location for pair in WIRES.items() for location in pair if location.dpid == E1]
    syn = syn_frame(CLIENT, SERVER, 40000, 10000)
    assert places(world, AT_CLIENT, syn) == {Location(E1, PORT_CONTROLLER)}
    for where in (AT_INGRESS, *between):
        assert places(world, where, syn) == {Location(E1, PORT_NORMAL)}, where
    assert places(world, AT_EGRESS, syn) == {Location(E2, PORT_NORMAL)}
    for agent in AGENTS:
        for frame in (syn_frame(agent, SERVER, 40000, 10000), syn_frame(CLIENT, agent, 40000, 10000)):
            assert places(world, AT_CLIENT, frame) == {Location(E1, PORT_NORMAL)}


def test_rule_6_no_host_is_learned_behind_an_agent(world: World) -> None:
    """An agent sends with the addresses of its clients. The clients keep their locations."""
    world.syn(40000)
    world.engine.forwarding.learn(parse_mac(MACS["client"]), CLIENT, AT_INGRESS)
    host = world.engine.state.hosts.by_address(CLIENT)
    assert host is not None
    assert host.location == Location(E1, PortNo(3))


def test_rule_8_entries_of_sessions_have_no_timeout(world: World) -> None:
    """The agents' report of a session's end removes its entries. A long idle time does not."""
    world.syn(40000)
    redirects = [entry for dpid in (E1, E2) for entry in world.network.entries(dpid) if cookie_kind(entry.cookie) == Kind.REDIRECT]
    assert len(redirects) == 2
    assert not any(entry.hard_timeout or entry.idle_timeout for entry in redirects)
    world.tick(700, step=0.5)
    world.network.expire(world.now)
    assert set(redirects) <= {*world.network.entries(E1), *world.network.entries(E2)}


def test_rule_9_sessions_survive_changes_of_services(world: World) -> None:
    """Change a service's ports, remove the service and restore it. A running session keeps all its entries until it ends."""
    world.syn(40000)
    (session,) = world.engine.state.sessions
    entries = session.entries()
    for generation, more in enumerate(({"ports": (80, 80)}, {"services": False}, {}), 2):
        world.do(ConfigChanged(changed(generation, **more)))
        world.tick(20, step=0.1)
        assert [entry in world.network.entries(dpid) for (dpid,), entry in entries] == [True, True]
        assert any(cookie_kind(entry.cookie) == Kind.PATH for entry in world.network.entries(E1))
    world.end(session.uuid)
    world.tick(2)
    assert len(world.engine.state.sessions) == 0


def places(world: World, where: Location, frame: bytes) -> set[Location]:
    """Return the output ports of a frame."""
    return {location for location, _ in world.network.walk(where, frame)}
