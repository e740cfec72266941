"""Drive the engine through random histories of events, in any order and with repetitions, and check that it returns to the baseline."""

from __future__ import annotations

from collections import Counter

from controller_fake import E1, E2
from controller_lab import SWITCHES
from controller_world import World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sos_controller.core.events import PacketIn
from sos_controller.core.openflow.pipeline import Kind, cookie_kind
from sos_controller.core.tables.sessions import FINAL, PENDING
from sos_controller.core.types import DatapathId, PortNo

AGENTS = st.sampled_from(["agent1", "agent2"])


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.converge()
        self.baseline = self.tables()
        self.frames: list[tuple[int, int, bytes]] = []
        self.down: set[str] = set()

    def tables(self) -> dict:
        return {dpid: dict(table) for dpid, table in self.world.network.tables.items() if table}

    @rule(sport=st.integers(40000, 40005), isn=st.integers(1, 3))
    def syn(self, sport: int, isn: int) -> None:
        if "edge1" not in self.down:
            self.world.syn(sport, isn)

    @rule(agent=AGENTS, mode=st.sampled_from(["ready", "refuse", "silent", "dead"]))
    def agent_changes(self, agent: str, mode: str) -> None:
        self.world.agents[agent].mode = mode

    @rule(agent=AGENTS)
    def agent_restarts(self, agent: str) -> None:
        found = self.world.agents[agent]
        found.boot += 10**6
        found.beacons = found.sequence = 0
        found.held.clear()

    @rule(agent=AGENTS, drain=st.booleans())
    def agent_drains(self, agent: str, drain: bool) -> None:
        self.world.agents[agent].flags = 1 if drain else 2

    @rule(data=st.data(), agent=AGENTS, repeat=st.booleans())
    def session_ends(self, data, agent: str, repeat: bool) -> None:
        held = sorted(self.world.agents[agent].held)
        if held:
            uuid = data.draw(st.sampled_from(held))
            told = self.world.ended(uuid, [agent])
            self.frames += told
            for frame in told * (2 if repeat else 1):
                self.hand_in(frame)

    @rule(data=st.data())
    def old_frame_again(self, data) -> None:
        if self.frames:
            self.hand_in(data.draw(st.sampled_from(self.frames)))

    def hand_in(self, frame: tuple[int, int, bytes]) -> None:
        self.world.do(PacketIn(DatapathId(frame[0]), PortNo(frame[1]), 0, frame[2]))

    @rule(seconds=st.sampled_from([0.03, 0.3, 1.2, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.tick(seconds, step=0.05)

    @rule(one=st.sampled_from(["edge1", "edge2"]), up=st.booleans())
    def wire(self, one: str, up: bool) -> None:
        wires = {"edge1": ("edge1", "core1"), "edge2": ("core1", "edge2")}
        self.world.cut(*wires[one], up=up)

    @rule(name=st.sampled_from(sorted(SWITCHES)), keep=st.booleans())
    def switch_bounces(self, name: str, keep: bool) -> None:
        self.world.disconnect(name)
        if not keep:
            self.world.network.tables.get(DatapathId(SWITCHES[name]), {}).clear()
        self.world.connect([name])

    @rule(name=st.sampled_from(sorted(SWITCHES)))
    def switch_leaves(self, name: str) -> None:
        self.down.add(name)
        self.world.disconnect(name)

    @rule()
    def switches_return(self) -> None:
        self.world.connect(sorted(self.down))
        self.down.clear()

    @rule(name=st.sampled_from(sorted(SWITCHES)), mute=st.booleans())
    def switch_falls_silent(self, name: str, mute: bool) -> None:
        (self.world.mute.add if mute else self.world.mute.discard)(DatapathId(SWITCHES[name]))

    @invariant()
    def counts_agree(self) -> None:
        sessions = self.world.engine.state.sessions
        assert sessions.pending == sum(s.state in PENDING for s in sessions)
        assert sessions.pending_ports.used == Counter(s.opened_at for s in sessions if s.state in PENDING)
        assert sessions.ports.used == Counter(s.opened_at for s in sessions) and sessions.ports.total == len(sessions)
        assert not any(s.state in FINAL for s in sessions)
        assert sum(sessions.pairs.values()) == len(sessions) == sum(sessions.by_service.values())
        assert not self.world.engine.state.counters["bugs", ""]

    @invariant()
    def each_session_has_one_record_once_it_is_gone(self) -> None:
        gone, live = [over.uuid for over in self.world.over], [s.uuid for s in self.world.engine.state.sessions]
        assert sorted([*gone, *live]) == sorted(self.world.prepared)

    @invariant()
    def redirects_belong_to_sessions(self) -> None:
        """Check that sessions own all redirect entries of a connected switch."""
        state = self.world.engine.state
        known = {(dpid, e.key) for s in state.sessions for dpids, e in s.entries() for dpid in dpids}
        for dpid in (E1, E2):
            if state.programmer.is_synced(dpid):
                held = {(dpid, e.key) for e in self.world.network.entries(dpid) if cookie_kind(e.cookie) == Kind.REDIRECT}
                assert held <= known

    def teardown(self) -> None:
        """Repair everything, end all sessions, and check that the tables equal the initial tables."""
        world = self.world
        world.mute.clear()
        world.connect(sorted(SWITCHES))
        for wire in (("edge1", "core1"), ("core1", "edge2")):
            world.cut(*wire, up=True)
        for agent in world.agents.values():
            agent.mode, agent.flags = "ready", 2
        world.tick(2, step=0.05)  # running set-ups complete or time out
        for agent in world.agents.values():
            agent.held.clear()
        world.tick(14, step=0.1)
        assert len(world.engine.state.sessions) == 0, [s.state for s in world.engine.state.sessions]
        assert world.engine.state.sessions.pending == 0
        assert self.tables() == self.baseline
        assert world.service() == "Programmed/Programmed"


EngineMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestEngineMachine = EngineMachine.TestCase
