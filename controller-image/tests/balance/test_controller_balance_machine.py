"""Run random sequences in which uplinks and routers fail and return, switches disconnect, and the controller is replaced.

A connection keeps its uplink while its entries exist.
"""

from __future__ import annotations

from controller_home import EDGE, Home, answer, config, segment
from controller_world import CLIENT_PORT
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sos_controller.core.events import EntryGone, PortChanged
from sos_controller.core.openflow.flow_entries import ToGroup
from sos_controller.core.openflow.pipeline import PRIORITY_CONNECTION, Kind, cookie_kind
from sos_controller.core.types import Location, Port, PortNo, parse_mac

HOST = Location(EDGE, PortNo(CLIENT_PORT))
UPLINKS = st.sampled_from([1, 2])


class BalanceMachine(RuleBasedStateMachine):
    at = "Controller"

    def __init__(self) -> None:
        super().__init__()
        self.home = Home(config(self.at))
        self.home.up()
        self.baseline = self.standing()
        self.opened: dict[int, int] = {}
        self.down: set[int] = set()
        self.away = False

    def standing(self) -> set:
        entries = [e for e in self.home.network.entries(EDGE) if cookie_kind(e.cookie) == Kind.BALANCE]
        return {(e.key, e.actions) for e in entries}

    @rule(sport=st.integers(40000, 40020), isn=st.integers(1, 3))
    def connects(self, sport: int, isn: int) -> None:
        """Open a connection, often from a port that still has entries of its previous connection."""
        if self.away:
            return
        out = self.home.open(sport, isn=isn)
        if out and any(sport in (e.match.tcp_src or ()) for e in self.home.network.entries(EDGE)):
            port = out[0][0].port_no
            assert port not in self.down or port == self.opened[sport]
            assert self.at == "Controller" or self.opened.get(sport, port) == port, "a switch identifies a connection by its TCP ports"
            self.opened[sport] = port

    @rule(data=st.data())
    def ends(self, data) -> None:
        if not self.opened or self.away:
            return
        sport = data.draw(st.sampled_from(sorted(self.opened)))
        del self.opened[sport]
        table = self.home.network.tables[EDGE]
        connections = [e for e in table.values() if cookie_kind(e.cookie) in (Kind.CONNECTION, Kind.LEARNED)]
        mine = [e for e in connections if sport in ((e.match.tcp_src or (0,))[0], (e.match.tcp_dst or (0,))[0])]
        for entry in mine:
            del table[entry.key]
            if entry.told:
                self.home.do(EntryGone(EDGE, entry.cookie, entry.match))

    @rule(port=UPLINKS, silent=st.booleans())
    def router(self, port: int, silent: bool) -> None:
        (self.home.silent.add if silent else self.home.silent.discard)(port)

    @rule(port=UPLINKS, up=st.booleans())
    def wire(self, port: int, up: bool) -> None:
        (self.down.discard if up else self.down.add)(port)
        (self.home.network.down.discard if up else self.home.network.down.add)(Location(EDGE, PortNo(port)))
        if not self.away:
            self.home.do(PortChanged(EDGE, self.port(port), False))
            self.home.tick(0.5)

    def port(self, number: int) -> Port:
        return Port(PortNo(number), f"p{number}", parse_mac(f"02:00:00:00:00:{number:02x}"), number not in self.down)

    @rule(seconds=st.sampled_from([0.3, 3.0, 20.0, 50.0]))
    def time_passes(self, seconds: float) -> None:
        self.home.tick(seconds, step=0.1)
        if self.away:
            self.home.network.expire(self.home.now)

    @rule()
    def switch_is_cut_off(self) -> None:
        if not self.away:
            self.away = True
            self.home.disconnect("edge1")

    @rule(forgot=st.booleans())
    def switch_returns(self, forgot: bool) -> None:
        if not self.away:
            return
        if forgot:
            self.home.network.tables.clear()
            self.home.network.groups.clear()
            self.opened.clear()
        self.come_back()

    def come_back(self) -> None:
        self.away = False
        self.home.connect(["edge1"])
        for port in (1, 2):
            self.home.do(PortChanged(EDGE, self.port(port), False))
        self.home.tick(0.5)

    @rule()
    def controller_is_replaced(self) -> None:
        before, self.away = self.home, False
        self.home = Home(config(self.at), network=before.network, epoch=before.engine.state.identity.epoch + 1, now=before.now + 1)
        self.home.silent |= before.silent
        self.come_back()

    @invariant()
    def connections_keep_their_uplinks(self) -> None:
        for sport, port in self.opened.items():
            ((where, frame),) = self.home.network.walk(HOST, segment(sport, flags=0x10))
            assert where.port_no == port
            ((back, _),) = self.home.network.walk(where, answer(frame))
            assert back == HOST

    @invariant()
    def entries_refer_only_to_existing_groups(self) -> None:
        named = {a.group_id for e in self.home.network.entries(EDGE) for a in e.actions if isinstance(a, ToGroup)}
        assert named <= self.home.network.groups.get(EDGE, {}).keys()

    @invariant()
    def session_count_equals_the_entries_of_the_switch(self) -> None:
        if not self.away:
            out = [cookie_kind(e.cookie) for e in self.home.network.entries(EDGE) if e.priority == PRIORITY_CONNECTION]
            assert len(out) == len(self.opened)
            assert self.home.row()["sessions"] == out.count(Kind.CONNECTION)
            assert self.at == "Controller" or Kind.CONNECTION not in out

    def teardown(self) -> None:
        """Repair everything and check that the standing entries equal the initial entries."""
        self.home.silent.clear()
        self.down.clear()
        self.home.network.down.clear()
        self.come_back()
        self.home.tick(20, step=0.1)
        assert self.standing() == self.baseline
        assert len(self.home.network.groups[EDGE]) == 1 and self.home.row()["state"] == "Programmed"
        assert not self.home.engine.state.counters["bugs", ""]


BalanceMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestBalanceMachine = BalanceMachine.TestCase


class SwitchMachine(BalanceMachine):
    """Run the same machine with a switch that selects uplinks and learns connections itself."""

    at = "Switch"


SwitchMachine.TestCase.settings = BalanceMachine.TestCase.settings
TestSwitchMachine = SwitchMachine.TestCase
