"""Test concurrent set-ups: SYNs arrive while answers of switches and agents are in flight, in every possible order."""

from __future__ import annotations

from collections import deque

import hypothesis.strategies as st
import pytest
from controller_fake import E1, E2, one_by_one
from controller_lab import HOSTS, MACS
from controller_world import CLIENT_PORT, EGRESS_PORT, INGRESS_PORT, World, syn_frame
from hypothesis import given, settings
from sos_controller.core.commands import Apply, Barrier, Command, Install, PacketOut, Withdraw
from sos_controller.core.events import BarrierReplies, Event, PacketIn
from sos_controller.core.openflow.pipeline import SETTLE_S, Kind, cookie_kind
from sos_controller.core.tables.recent_flows import IDLE_S
from sos_controller.core.tables.sessions import Phase
from sos_controller.core.types import DatapathId, Location, PortNo, parse_address, parse_mac

CLIENT, SERVER = parse_address(HOSTS["client"][1]), parse_address(HOSTS["server"][1])
AT_INGRESS, AT_EGRESS = Location(E1, PortNo(INGRESS_PORT)), Location(E2, PortNo(EGRESS_PORT))
AT_CLIENT, AT_SERVER = Location(E1, PortNo(CLIENT_PORT)), Location(E2, PortNo(3))
ACK, SYN_ACK = 0x10, 0x12

Lane = tuple[DatapathId, str]
LANES = [Lane((dpid, who)) for dpid in (E1, E2) for who in ("switch", "agent")]
Flow = tuple[int, int]
"""Client's address and port."""


class Afloat(World):
    """World with delayed switches and agents. Each switch or agent acts in order; there is no order between them."""

    def __init__(self) -> None:
        self.afloat = self.gathers = False
        super().__init__()
        self.converge()
        self.waiting: dict[Lane, deque[Event | Apply]] = {lane: deque() for lane in LANES}
        self.delivered.clear()

    def send(self, flow: Flow, isn: int = 1) -> None:
        """Deliver a client's SYN to the controller; the resulting messages stay in flight."""
        frame = syn_frame(flow[0], SERVER, flow[1], 5001, isn)
        self._handle(PacketIn(E1, PortNo(CLIENT_PORT), self.punt_cookie, frame))

    def arrive(self, lane: Lane) -> None:
        """Process the next message of a lane: a switch changes its table and replies, or an agent's answer arrives."""
        happens = self.waiting[lane].popleft()
        if not isinstance(happens, Apply):
            self._handle(happens)
            return
        self.network.apply(happens, self.now)
        if happens.barrier:
            self._handle(BarrierReplies(lane[0], (happens.token,)))

    def arrive_all(self) -> None:
        """Process all messages in flight and all messages that follow from them."""
        self.close()
        self.gathers = False
        while any(self.waiting.values()):
            for lane in LANES:
                if self.waiting[lane]:
                    self.arrive(lane)

    def close(self) -> None:
        """Send the barriers that follow the gathered commands."""
        self.afloat = True
        for command in self.engine.close():
            self._obey(command)
        self.afloat = False

    def _handle(self, event: Event) -> None:
        self.afloat = True
        for command in self.engine.handle(event, self.now, self.gathers):
            self._obey(command)
        self.afloat = False
        for said in self.queue:
            self.waiting[said.dpid, "agent"].append(said)  # type: ignore[union-attr]
        self.queue.clear()

    def _obey(self, command: Command) -> None:
        if self.afloat and isinstance(command, Apply | Barrier | Install | Withdraw):
            for apply in one_by_one(command):
                self.waiting[apply.dpid, "switch"].append(apply)
            return
        if isinstance(command, PacketOut) and command.data[23:24] == b"\x06":
            assert self.is_programmed(command), "a SYN is sent only after its entries exist and both agents are prepared"
        super()._obey(command)

    def is_programmed(self, command: PacketOut) -> bool:
        """Return whether the entries and preparations of a SYN to an agent exist. A plain SYN needs none."""
        if (command.dpid, command.actions[0].port_no) != AT_INGRESS:
            return True
        flow = (int.from_bytes(command.data[26:30], "big"), int.from_bytes(command.data[34:36], "big"))
        session = next(s for s in self.engine.state.sessions if s.key == command.data[26:38])
        prepared = all(session.uuid in agent.held for agent in self.agents.values())
        return prepared and self.is_redirected(flow)

    def is_redirected(self, flow: Flow) -> bool:
        """Return whether both directions of a flow reach the agents."""
        there = syn_frame(flow[0], SERVER, flow[1], 5001, flags=ACK)
        frame = syn_frame(SERVER, flow[0], 5001, flow[1], flags=SYN_ACK)
        back = parse_mac(MACS["client"]) + parse_mac(MACS["server"]) + frame[12:]
        walks = (self.network.walk(AT_CLIENT, there), self.network.walk(AT_SERVER, back))
        return [walk[0][0] for walk in walks] == [AT_INGRESS, AT_EGRESS]

    def syns(self) -> list[tuple[Flow, int]]:
        """Return the flow and initial sequence number of every SYN sent to the ingress agent."""
        found = []
        for command in self.delivered:
            data = command.data
            if (command.dpid, command.actions[0].port_no) == AT_INGRESS and data[23:24] == b"\x06":
                number = int.from_bytes(data[38:42], "big")
                found.append(((int.from_bytes(data[26:30], "big"), int.from_bytes(data[34:36], "big")), number))
        return found

    def plain(self) -> list[PacketOut]:
        """Return the SYNs that were forwarded without an agent."""
        return [c for c in self.delivered if c.data[23:24] == b"\x06" and c.dpid == E1 and c.actions[0].port_no != INGRESS_PORT]

    def redirects(self) -> int:
        """Return the number of redirect entries on both edge switches."""
        return sum(1 for d in (E1, E2) for e in self.network.entries(d) if cookie_kind(e.cookie) == Kind.REDIRECT)

    def end_all(self) -> None:
        """End every session at both agents, and advance the time."""
        for session in list(self.engine.state.sessions):
            self.end(session.uuid)
        self.tick(1.5)


@pytest.fixture
def world() -> Afloat:
    return Afloat()


def test_500_connections_within_one_second_use_one_pair(world: Afloat) -> None:
    before = {dpid: world.network.entries(dpid) for dpid in world.network.tables}
    flows = [(CLIENT, 20_000 + n) for n in range(500)]
    late: deque[int] = deque()
    for n, flow in enumerate(flows):
        world.send(flow, isn=n)
        world.now += 0.002
        late.append(n)
        for lane in LANES if len(late) > 20 else ():  # answers follow 40 ms after the SYNs
            world.arrive(lane)
    assert world.engine.state.sessions.pending > 0, "set-ups overlap"
    world.arrive_all()
    assert sorted(world.syns()) == [(flow, n) for n, flow in enumerate(flows)]
    assert {s.state for s in world.engine.state.sessions} == {Phase.ACTIVE} and len(world.engine.state.sessions) == 500
    assert world.redirects() == 1000 and not world.plain()
    assert all(world.is_redirected(flow) for flow in flows[::50])
    world.end_all()
    assert {dpid: world.network.entries(dpid) for dpid in before} == before
    assert len(world.engine.state.sessions) == 0


def test_20_clients_use_the_same_ports_simultaneously(world: Afloat) -> None:
    flows = [(CLIENT + n, 40_000) for n in range(20)]
    for flow in flows:
        world.send(flow)
    assert len(world.engine.state.sessions) == 20 and not world.syns()
    world.arrive_all()
    assert sorted(world.syns()) == [(flow, 1) for flow in flows]
    assert all(world.is_redirected(flow) for flow in flows) and world.redirects() == 40
    assert len({s.uuid for s in world.engine.state.sessions}) == 20


def test_set_up_takes_until_switches_and_agents_have_answered(world: Afloat) -> None:
    world.tick(IDLE_S)  # until no cached megaflow delays a session (cache_guard)
    for n in range(3):
        world.send((CLIENT, 40_000 + n))
    world.now += 0.04
    world.arrive_all()
    times = world.engine.state.set_up_times
    assert dict(times.buckets()) == {bound: 3 * (bound == "+Inf" or float(bound) >= 0.05) for bound, _ in times.buckets()}
    assert times.sum == pytest.approx(3 * 0.04)


def test_a_set_up_that_is_given_up_is_not_timed(world: Afloat) -> None:
    world.send((CLIENT, 40_000))
    world.tick(1.5)
    assert world.plain() and world.engine.state.set_up_times.buckets()[-1] == ("+Inf", 0)


def test_one_barrier_per_switch_follows_a_batch_of_events(world: Afloat) -> None:
    world.gathers = True
    for n in range(5):
        world.send((CLIENT, 40_000 + n))
    waiting = {dpid: list(world.waiting[dpid, "switch"]) for dpid in (E1, E2)}
    assert not any(apply.barrier for applies in waiting.values() for apply in applies)
    world.arrive_all()
    assert len(world.syns()) == 5 and world.redirects() == 10
    world.gathers = True
    world.send((CLIENT, 50_000))
    world.close()
    assert [apply.barrier for apply in world.waiting[E1, "switch"]] == [False, True]


def test_duplicate_syns_during_set_up_are_one_connection(world: Afloat) -> None:
    flow = (CLIENT, 40_000)
    for _ in range(3):
        world.send(flow)
    world.arrive((E1, "agent"))
    world.send(flow)
    world.arrive_all()
    assert world.syns() == [(flow, 1)] and len(world.engine.state.sessions) == 1
    assert sum(len(agent.held) for agent in world.agents.values()) == 2


def test_port_reused_during_set_up_delivers_the_newer_syn(world: Afloat) -> None:
    flow = (CLIENT, 40_000)
    world.send(flow, isn=1)
    world.send(flow, isn=2)
    world.arrive_all()
    assert world.syns() == [(flow, 2)] and world.redirects() == 2


def test_port_reused_during_teardown_starts_a_new_session(world: Afloat) -> None:
    flow = (CLIENT, 40_000)
    world.send(flow, isn=1)
    world.arrive_all()
    (first,) = world.engine.state.sessions
    world.end(first.uuid)
    world.send(flow, isn=2)
    world.arrive_all()
    (second,) = world.engine.state.sessions
    assert second.uuid != first.uuid and first.state is Phase.ENDED and second.state is Phase.ACTIVE
    assert world.syns() == [(flow, 1), (flow, 2)]
    world.tick(2)
    assert world.is_redirected(flow), "the end of the first session does not affect the second session"


def test_refusal_removes_entries_before_the_syn_goes_plain(world: Afloat) -> None:
    world.agents["agent2"].mode = "refuse"
    flow = (CLIENT, 40_000)
    world.send(flow)
    world.arrive((E1, "switch"))
    assert world.redirects() == 1
    world.arrive_all()
    assert len(world.plain()) == 1 and not world.syns() and world.redirects() == 0


def test_settling_time_overlaps_with_agents_answers(world: Afloat) -> None:
    world.send((CLIENT, 40_000))
    for dpid in (E1, E2):
        world.arrive((dpid, "switch"))
        world.arrive((dpid, "switch"))
    world.now += 0.010
    world.arrive_all()
    (syn,) = [c for c in world.delivered if c.data[23:24] == b"\x06"]
    assert syn.after_s == pytest.approx(SETTLE_S - 0.010)


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(0, 5), st.sampled_from([*LANES, None])), max_size=60), st.booleans())
def test_every_syn_reaches_the_agent_once_in_any_order_of_answers(steps: list[int | Lane | None], gathers: bool) -> None:
    world, sent = Afloat(), set[Flow]()
    world.gathers = gathers
    for step in steps:
        if step is None:
            world.close()
        elif isinstance(step, tuple):
            if world.waiting[step]:
                world.arrive(step)
        else:
            flow = (CLIENT + step % 3, 40_000 + step // 3)
            if (flow, 1) not in world.syns():  # a SYN after delivery would be a retransmission, which the agent receives again
                world.send(flow)
            sent.add(flow)
    world.arrive_all()
    assert sorted(world.syns()) == [(flow, 1) for flow in sorted(sent)]
    assert world.redirects() == 2 * len(sent) and not world.plain()
    world.end_all()
    assert world.redirects() == 0 and len(world.engine.state.sessions) == 0
