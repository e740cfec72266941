"""Test that every packet of a session reaches the session's agent, however the agents of a datapath change.

The agents are simulated as their kernels act: an agent takes the packets of its own sessions, and forwards all others from its port.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from controller_fake import E1, E2
from controller_lab import MACS, SITE_KEYS, document
from controller_world import FakeAgent, World, encode, syn_frame
from hypothesis import given, settings
from hypothesis import strategies as st
from sos_controller.core import snapshot
from sos_controller.core.events import ConfigChanged
from sos_controller.core.openflow.pipeline import PORT_NORMAL, RING_PLACES, UNARMED_MAC, Kind, cookie_kind
from sos_controller.core.services import proactive
from sos_controller.core.services.agent_ring import SLOTS, owners, place_for, slot_of
from sos_controller.core.types import AgentId, Location, PortNo, parse_address, parse_mac
from sos_controller.core.wire import beacon, keys
from sos_controller.core.wire.packets import UdpTemplate
from sos_controller.files.config import document_hash, parse

ROOT = Path(__file__).resolve().parents[3]
CLIENT, SERVER = parse_address("10.0.0.11"), parse_address("10.0.0.139")
AT_CLIENT, AT_SERVER = Location(E1, PortNo(3)), Location(E2, PortNo(3))
FIRST_PORT = 4
SETTLE_S = 30.0
"""Time after which agents of the other site use a new agent (spec/node-config.md 11)."""
MIDDLE, ANSWER = 0x10, 0x12  # flags ACK; SYN and ACK


def agent_id(side: int, number: int) -> AgentId:
    """Return the id of the agent `number` (0 = the lab's own) of the site `side` (0 = west)."""
    return AgentId(bytes(14) + bytes((number, side + 1)))


def extra_agent(side: int, number: int) -> FakeAgent:
    """Return a further agent, with its own address, at the same switch as the lab's agent and the next ports."""
    made = FakeAgent(("agent1", "agent2")[side], 1_700_000_000 * 10**9)
    base = FakeAgent(("agent1", "agent2")[side], 1)
    made.name, made.id = f"agent{side + 1}-{number}", agent_id(side, number)
    made.mac = base.mac[:4] + bytes((number, base.mac[5]))
    made.address = base.address - number  # type: ignore[assignment]
    made.where = Location(base.where.dpid, PortNo(FIRST_PORT + number))
    made.keys = {p: agent_keys(made, p) for p in made.keys}
    discovery = (parse_mac("02:53:4f:53:00:01"), parse_address("198.18.255.254"))
    made.up = {p: UdpTemplate((made.mac, discovery[0]), (made.address, discovery[1]), (9876, p)) for p in made.up}
    return made


def agent_keys(agent: FakeAgent, purpose: bytes) -> bytes:
    return keys.expand(SITE_KEYS[agent.site], purpose + agent.id)


def declared(counts: tuple[int, int], generation: int = 1, **changes: Any) -> dict[str, Any]:
    """Return the lab's document with a proactive service and this many agents at both sites."""
    made = document(generation)
    del made["hash"]
    made["services"] = [{**made["services"][0], "setup": "Proactive", **changes}]
    for side, count in enumerate(counts):
        own = made["sites"][side]["agents"][0]
        base = parse_address(own["address"])
        made["sites"][side]["agents"] = [
            {**own, "id": agent_id(side, n).hex(), "address": ".".join(map(str, (base - n).to_bytes(4, "big")))} for n in range(count)
        ]
    return {**made, "hash": document_hash(made)}


class Site(World):
    """A world whose agents take sessions and forward other packets."""

    def __init__(self, counts: tuple[int, int], *arguments: Any, **named: Any) -> None:
        self.sessions: dict[tuple[int, int], str] = {}
        self.begun: dict[AgentId, float] = {}
        self.generation = 1
        super().__init__(declared(counts), *arguments, **named)

    def scale(self, counts: tuple[int, int]) -> None:
        """Declare and start agents. Removed agents drain."""
        self.generation += 1
        self.do(ConfigChanged(parse(encode(declared(counts, self.generation)))))
        self.run_agents(counts)

    def run_agents(self, counts: tuple[int, int]) -> None:
        for side, count in enumerate(counts):
            for number in range(1, count):
                self.agents.setdefault(f"agent{side + 1}-{number}", extra_agent(side, number))
            for agent in self.agents.values():
                if agent.site == side + 1:
                    drains = agent.id[14] >= count
                    agent.flags = beacon.FLAG_DRAINING if drains else beacon.FLAG_WILLING
                    if drains:
                        self.begun.pop(agent.id, None)
                    else:
                        self.begun.setdefault(agent.id, self.now)

    def at(self, location: Location) -> FakeAgent | None:
        return next((agent for agent in self.agents.values() if agent.where == location), None)

    def send(self, where: Location, frame: bytes, side: int, port: int) -> tuple[str, list[str]]:
        """Send a host's packet. Return the agent that takes it, "" if the packet is plain, and all agents that have had it."""
        passed: list[str] = []
        while True:
            ((end, sent),) = self.network.walk(where, frame)
            agent = self.at(end)
            if agent is None:
                assert end.port_no == PORT_NORMAL, end
                return "", passed
            assert sent[:6] == agent.mac
            assert agent.name not in passed, f"a loop: {passed}"
            passed.append(agent.name)
            if self.takes(agent, side, port, sent):
                return agent.name, passed
            # the agent's kernel forwards the packet to its destination, with its own source MAC address
            where, frame = agent.where, frame[:6] + agent.mac + frame[12:]

    def takes(self, agent: FakeAgent, side: int, port: int, frame: bytes) -> bool:
        owner = self.sessions.get((side, port))
        begins = side == 0 and owner is None and frame[47] & 0x17 == 2 and agent.flags == beacon.FLAG_WILLING
        if begins and frame[6:12] != UNARMED_MAC and agent.mode == "ready":
            self.sessions[side, port] = owner = agent.name
        return owner == agent.name

    def is_taken(self, port: int) -> bool:
        """Open a connection; return whether it is accelerated."""
        owner, _ = self.send(AT_CLIENT, syn_frame(CLIENT, SERVER, port, 5001), 0, port)
        if owner:
            self.open(port)
        return bool(owner)

    def open(self, port: int, egress: str | None = None) -> list[str]:
        """Open a connection, or retransmit its SYN; the ingress agent chooses the egress agent by the port, or the given one. Return all
        agents passed."""
        owner, passed = self.send(AT_CLIENT, syn_frame(CLIENT, SERVER, port, 5001), 0, port)
        assert owner, "the connection is plain"
        order = [agent.agent_id for agent in self.engine.state.sites["east"].agents]
        settled = {agent for agent in order if self.now - self.begun[agent] >= SETTLE_S}
        chosen = owners(order, settled or order[:1])[slot_of(port)]
        self.sessions[1, port] = egress or next(a.name for a in self.agents.values() if a.id == chosen)
        return passed + self.check(port, ANSWER)

    def check(self, port: int, back: int = MIDDLE) -> list[str]:
        """Check that packets in both directions reach the connection's agents; return all agents passed."""
        found = []
        answer = parse_mac(MACS["client"]) + parse_mac(MACS["server"]) + syn_frame(SERVER, CLIENT, 5001, port, flags=back)[12:]
        for side, where, frame in ((1, AT_SERVER, answer), (0, AT_CLIENT, syn_frame(CLIENT, SERVER, port, 5001, flags=MIDDLE))):
            owner, passed = self.send(where, frame, side, port)
            assert owner == self.sessions[side, port], (side, port, owner, passed)
            found += passed
        return found


def started(counts: tuple[int, int]) -> Site:
    world = Site(counts)
    world.run_agents(counts)
    world.converge()
    world.tick(proactive.UNARMED_S + 2)
    assert world.service() == "Programmed/Programmed"
    world.begun = dict.fromkeys(world.begun, world.now - SETTLE_S)
    return world


@pytest.fixture(scope="module")
def three() -> Site:
    return started((3, 3))


def test_each_packet_reaches_its_agent_at_once_and_agents_share_evenly(three: Site) -> None:
    ports = range(40_000, 40_000 + 2 * SLOTS, 2)
    for port in ports:
        assert len(three.open(port)) == 3, "the SYN, the answer and the next segment pass one agent each"
    for side in (0, 1):
        taken = [sum(three.sessions[side, port] == a.name for port in ports) for a in three.agents.values() if a.site == side + 1]
        assert sum(taken) == SLOTS
        assert max(taken) - min(taken) <= 1


def test_plain_packets_make_one_round_and_continue_plainly(three: Site) -> None:
    owner, passed = three.send(AT_CLIENT, syn_frame(CLIENT, SERVER, 33_000, 5001, flags=MIDDLE), 0, 33_000)
    assert (owner, sorted(passed)) == ("", ["agent1", "agent1-1", "agent1-2"])


def test_plain_syn_passes_only_the_agent_that_decides(three: Site) -> None:
    for agent in three.agents.values():
        agent.mode = "plain"
    owner, passed = three.send(AT_CLIENT, syn_frame(CLIENT, SERVER, 33_002, 5001), 0, 33_002)
    for agent in three.agents.values():
        agent.mode = "ready"
    assert (owner, len(passed)) == ("", 1)


def test_session_at_an_agent_other_than_its_slots_is_found(three: Site) -> None:
    three.open(33_010, egress="agent2-2")
    three.open(33_012, egress="agent2-2")
    three.check(33_010)


def test_packets_of_agents_themselves_are_never_redirected(three: Site) -> None:
    one, other = three.agents["agent1"], three.agents["agent2-1"]
    stream = syn_frame(one.address, other.address, 40_000, 5001, flags=MIDDLE)
    assert three.network.walk(one.where, stream) == [(Location(E1, PORT_NORMAL), stream)]


def test_icmp_errors_and_fragments_make_a_round(three: Site) -> None:
    error = bytearray(syn_frame(SERVER, CLIENT, 3 << 8, 0, flags=MIDDLE))
    error[23], error[34] = 1, 3
    error[26:34] = CLIENT.to_bytes(4, "big") + SERVER.to_bytes(4, "big")
    fragment = bytearray(syn_frame(CLIENT, SERVER, 40_000, 5001, flags=MIDDLE))
    fragment[20] = 0x20
    for frame in (error, fragment):
        owner, passed = three.send(AT_CLIENT, bytes(frame), 0, 1)
        assert (owner, len(passed)) == ("", 3)


def test_sessions_add_no_entry(three: Site) -> None:
    before = {dpid: dict(table) for dpid, table in three.network.tables.items()}
    for port in range(50_000, 50_200, 2):
        three.open(port)
    three.tick(3.0)
    assert {dpid: dict(table) for dpid, table in three.network.tables.items()} == before


def test_scaling_breaks_no_session_and_removes_the_drained_agents() -> None:
    world = started((1, 1))
    ports = list(range(40_000, 40_100, 2))
    for port in ports:
        world.open(port)
    for counts in ((3, 3), (1, 1)):
        world.scale(counts)
        for count in range(160):
            world.tick(0.05)
            world.check(ports[count % len(ports)])
        for port in ports:
            world.check(port)
        more = [port + len(ports) * 2 for port in ports]
        for port in more:
            world.open(port)
        ports += more
    newest = {world.sessions[0, port] for port in ports[-50:]}
    assert newest == {"agent1"}, "draining agents take no new session"
    for name in [n for n in world.agents if "-" in n]:
        del world.agents[name]
    world.tick(6.0)
    for port in ports:
        if world.sessions[0, port] == "agent1" and world.sessions[1, port] == "agent2":
            assert len(world.check(port)) == 2


def test_new_agents_get_packets_only_after_their_own_entries() -> None:
    world = started((2, 1))
    world.open(40_000)
    world.mute.add(E1)
    world.scale((3, 1))
    world.tick(5.0)
    segment = syn_frame(CLIENT, SERVER, 40_000, 5001, flags=MIDDLE)
    assert world.send(AT_CLIENT, segment, 0, 40_000) == ("agent1", ["agent1"])
    world.mute.discard(E1)
    world.disconnect("edge1")
    world.connect(["edge1"])
    world.tick(5.0)
    assert world.send(AT_CLIENT, segment, 0, 40_000) == ("agent1", ["agent1-2", "agent1"])


def test_lost_agent_leaves_its_slots_to_the_others_evenly(three: Site) -> None:
    world = started((3, 3))
    for port in range(40_000, 40_128, 2):
        world.open(port)
    world.agents["agent1-1"].mode = "dead"
    world.network.down.add(world.agents["agent1-1"].where)
    world.tick(8.0)
    for port in range(40_000, 40_128, 2):
        if world.sessions[0, port] != "agent1-1":
            assert len(world.check(port)) == 2, "sessions of other agents stay at once with their agents"
    for port in range(42_048, 42_176, 2):
        world.open(port)
    taken = [sum(world.sessions[0, port] == name for port in range(42_048, 42_176, 2)) for name in ("agent1", "agent1-2")]
    assert sum(taken) == SLOTS
    assert abs(taken[0] - taken[1]) <= 2


def test_dead_ports_are_skipped_without_a_controller(three: Site) -> None:
    world = started((3, 3))
    for port in range(40_000, 40_128, 2):
        world.open(port)
    world.network.down.add(world.agents["agent1-1"].where)
    for port in range(40_000, 40_128, 2):
        if world.sessions[0, port] != "agent1-1":
            world.check(port)
    owner, passed = world.send(AT_CLIENT, syn_frame(CLIENT, SERVER, 33_000, 5001, flags=MIDDLE), 0, 33_000)
    assert (owner, sorted(passed)) == ("", ["agent1", "agent1-2"])


def test_new_controller_keeps_all_sessions_at_their_agents() -> None:
    world = started((1, 1))
    world.scale((3, 3))
    world.tick(8.0)
    ports = range(40_000, 40_128, 2)
    for port in ports:
        world.open(port)
    world.scale((2, 2))  # one agent of each site drains and is not declared when the new controller starts
    world.tick(3.0)
    later = Site((2, 2), world.network, epoch=2, now=world.now + 60)
    later.agents, later.sessions, later.generation = world.agents, world.sessions, 5
    later.begun = dict.fromkeys(world.begun, 0.0)
    later.agents["agent1-1"].mode = "dead"  # its first beacon arrives late
    later.connect()
    for count in range(300):
        later.tick(0.1)
        if count == 30:
            later.agents["agent1-1"].mode = "ready"
        later.check(ports[count % len(ports)])
    assert later.service() == "Programmed/Programmed"
    for port in ports:
        later.check(port)
        later.open(port + 4_096)
    kinds = (Kind.SERVICE, Kind.RING)
    assert {e.cookie >> 16 & 0xFF for e in later.network.entries(E1) if cookie_kind(e.cookie) in kinds} == {2}


def test_switch_that_lost_its_tables_gets_them_back_in_order() -> None:
    world = started((3, 3))
    for port in range(40_000, 40_040, 2):
        world.open(port)
    world.disconnect("edge1")
    world.network.tables[E1] = {}
    world.network.rounds = {key: group for key, group in world.network.rounds.items() if key[0] != E1}
    world.network.failovers = {key: group for key, group in world.network.failovers.items() if key[0] != E1}
    world.connect(["edge1"])
    world.tick(5.0)
    for port in range(40_000, 40_040, 2):
        world.check(port)


def test_removed_service_leaves_neither_entries_nor_groups() -> None:
    world = started((3, 3))
    made = declared((3, 3), 2)
    del made["hash"]
    made["services"] = []
    world.do(ConfigChanged(parse(encode({**made, "hash": document_hash(made)}))))
    world.tick(60.0)
    kinds = (Kind.SERVICE, Kind.RING)
    assert not [e for dpid in (E1, E2) for e in world.network.entries(dpid) if cookie_kind(e.cookie) in kinds]
    assert not world.network.rounds


def test_service_with_requirements_sends_first_packets_to_the_first_agent() -> None:
    world = Site((3, 3))
    world.do(ConfigChanged(parse(encode(declared((3, 3), 2, require=["Accelerated"])))))
    world.run_agents((3, 3))
    world.converge()
    world.tick(SETTLE_S)
    for port in range(40_000, 40_020, 2):
        world.open(port)
        assert world.sessions[0, port] == "agent1"


def test_status_names_a_site_with_more_agents_than_a_ring_has_places() -> None:
    world = Site((RING_PLACES + 1, 1))
    world.run_agents((2, 1))
    world.converge()
    world.tick(proactive.UNARMED_S + 2)
    (shown,) = snapshot.status(world.engine, "", "")["services"]
    assert (shown["state"], shown["message"]) == ("Programmed", f"of site west only the first {RING_PLACES} agents are used")


@pytest.mark.parametrize("row", [pytest.param(r, id=r["name"]) for r in json.loads((ROOT / "spec/vectors/slots/v1.json").read_text())])
def test_owners_equal_the_golden_vectors(row: dict[str, Any]) -> None:
    agents = [AgentId(bytes((n,))) for n in range(row["agents"])]
    found = owners(agents, {agents[n] for n in row["takes"]})
    assert "".join(str(agent[0]) for agent in found) == row["owners"].replace("-", "")


@given(st.integers(0, 0xFFFF))
def test_slot_ignores_the_parity_of_a_port(port: int) -> None:
    assert slot_of(port) == port // 2 % SLOTS


@given(st.lists(st.integers(0, 20), unique=True, max_size=RING_PLACES), st.sets(st.integers(0, RING_PLACES - 1)), st.integers(0, 20))
def test_place_is_free_and_stable(order: list[int], taken: set[int], wanted: int) -> None:
    ids = [AgentId(bytes((n,))) for n in order]
    place = place_for(AgentId(bytes((wanted,))), ids, taken)
    assert place not in taken
    assert (place is None) == (len(taken) == RING_PLACES)
    if wanted in order and order.index(wanted) not in taken:
        assert place == order.index(wanted)


numbers = st.integers(1, 4)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, st.integers(0, 50), st.booleans()), min_size=1, max_size=3))
def test_any_history_of_scaling_and_restarts_breaks_no_session(history: list[tuple[int, int, int, bool]]) -> None:
    world, port = started((1, 1)), 40_000
    ports: list[int] = []
    for west, east, ticks, restarts in history:
        world.scale((west, east))
        for count in range(ticks):
            world.tick(0.25)
            if ports:
                world.check(ports[count % len(ports)])
        if restarts:
            later = Site((west, east), world.network, epoch=world.engine.state.identity.epoch + 1, now=world.now)
            later.agents, later.sessions, later.begun, later.generation = world.agents, world.sessions, world.begun, world.generation
            later.connect()
            world = later
        for _ in range(6):
            port += 2
            if world.is_taken(port):
                ports.append(port)
        for each in ports:
            world.check(each)
