"""Test the election of the active replica (`core.openflow.election`) against switches that follow OpenFlow 1.3.5, 6.3.5.

Replicas and switches exchange messages over channels that break, delay and lose; replicas stop, resume and restart; their clocks differ.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st
from sos_controller.core.openflow.election import (
    BEAT_S,
    EXPIRY_S,
    MAX_EXPIRY_S,
    UNDEFINED,
    Demoted,
    Election,
    Granted,
    Refused,
    Role,
    RoleRequest,
    is_newer,
)
from sos_controller.core.types import DatapathId

STEP_S = 0.05
ALL = (1 << 64) - 1


class Switch:
    """Roles of a switch's controllers (OpenFlow 1.3.5, 6.3.5)."""

    def __init__(self, dpid: int) -> None:
        self.dpid = DatapathId(dpid)
        self.generation_id: int | None = None
        self.roles: dict[int, Role] = {}
        self.masters: list[tuple[int, int]] = []
        """Replica and term of each change of the MASTER."""

    def ask(self, replica: int, request: RoleRequest) -> Granted | Refused:
        if request.role in (Role.MASTER, Role.SLAVE):
            if self.generation_id is not None and (request.generation_id - self.generation_id & ALL) >= 1 << 63:
                return Refused(request.number, True)
            self.generation_id = request.generation_id
            self.roles[replica] = request.role
            if request.role is Role.MASTER:
                self.roles |= {other: Role.SLAVE for other, role in self.roles.items() if other != replica and role is Role.MASTER}
                term = request.generation_id >> 32
                if not self.masters or self.masters[-1] != (replica, term):
                    self.masters.append((replica, term))
        known = UNDEFINED if self.generation_id is None else self.generation_id
        return Granted(request.number, self.roles.get(replica, Role.EQUAL), known)


@dataclass
class Replica:
    """A process: its election, and its clocks."""

    number: int
    election: Election
    wall_s: float
    stopped: bool = False
    terms: list[int] = field(default_factory=list)


class Network:
    """Replicas, switches, and channels between them. `now` is the time of all."""

    def __init__(self, switches: int, beats: list[int], skews: list[float]) -> None:
        self.now = 100.0
        self.switches = [Switch(n + 1) for n in range(switches)]
        self.replicas = [
            Replica(n, Election(beat), 1_800_000_000.0 + skew) for n, (beat, skew) in enumerate(zip(beats, skews, strict=True))
        ]
        self.delays: dict[tuple[int, int], float] = {}
        self.requests: dict[tuple[int, int], deque[tuple[float, RoleRequest | None]]] = {}
        self.answers: dict[tuple[int, int], deque[tuple[float, Granted | Refused | Demoted]]] = {}
        for replica in self.replicas:
            for switch in self.switches:
                self.connect(replica.number, switch.dpid)

    def connect(self, replica: int, dpid: int) -> None:
        if (replica, dpid) not in self.requests:
            self.requests[replica, dpid], self.answers[replica, dpid] = deque(), deque()
            self.switch(dpid).roles[replica] = Role.EQUAL
            self.replicas[replica].election.opened(DatapathId(dpid))

    def disconnect(self, replica: int, dpid: int) -> None:
        if self.requests.pop((replica, dpid), None) is not None:
            del self.answers[replica, dpid]
            self.switch(dpid).roles.pop(replica, None)
            self.replicas[replica].election.closed(DatapathId(dpid))

    def switch(self, dpid: int) -> Switch:
        return self.switches[dpid - 1]

    def restart(self, replica: int, beat: int) -> None:
        there = [dpid for number, dpid in self.requests if number == replica]
        for dpid in there:
            self.disconnect(replica, dpid)
        old = self.replicas[replica]
        self.replicas[replica] = Replica(replica, Election(beat), old.wall_s, terms=old.terms)
        for dpid in there:
            self.connect(replica, dpid)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            for replica in self.replicas:
                replica.wall_s += STEP_S
                if not replica.stopped:
                    self._turn(replica)
            self._serve()

    def change(self, replica: int, dpid: int) -> bool:
        """Send a change to a switch; return whether the switch accepts it."""
        accepted = self.switch(dpid).roles.get(replica) is not Role.SLAVE
        if not accepted:
            self.answers[replica, dpid].append((self.now, Demoted()))
        return accepted

    def active(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.election.term is not None]

    def _turn(self, replica: Replica) -> None:
        for (number, dpid), waiting in self.answers.items():
            while number == replica.number and waiting and waiting[0][0] <= self.now:
                self._send(replica, replica.election.reported(DatapathId(dpid), waiting.popleft()[1], self.now))
        before = replica.election.term
        self._send(replica, replica.election.tick(self.now, replica.wall_s))
        if replica.election.term not in (None, before):
            replica.terms.append(int(replica.election.term or 0))

    def _send(self, replica: Replica, requests: list[RoleRequest]) -> None:
        for request in requests:
            delay = self.delays.get((replica.number, request.dpid), 0.0)
            self.requests[replica.number, request.dpid].append((self.now + delay, request))

    def _serve(self) -> None:
        for (replica, dpid), waiting in self.requests.items():
            while waiting and waiting[0][0] <= self.now:
                _, request = waiting.popleft()
                if request is not None:
                    delay = self.delays.get((replica, dpid), 0.0)
                    self.answers[replica, dpid].append((self.now + delay, self.switch(dpid).ask(replica, request)))


def network(switches: int = 2) -> Network:
    return Network(switches, [5, 9], [0.0, 0.0])


def settled(net: Network) -> Replica:
    """Run until the network is quiet; return the only active replica, which is MASTER everywhere. All others are SLAVE everywhere."""
    net.run(3 * MAX_EXPIRY_S)
    (active,) = net.active()
    assert all(active.election.is_master(switch.dpid) for switch in net.switches)
    others = [replica for replica in net.replicas if replica is not active]
    assert all(replica.election.channels(Role.SLAVE) == len(net.switches) for replica in others)
    return active


def test_one_of_two_new_replicas_becomes_active_and_the_other_slave_everywhere() -> None:
    net = network()
    net.run(EXPIRY_S + 4 * BEAT_S)
    (active,) = net.active()
    standby = next(r for r in net.replicas if r is not active)
    assert all(switch.roles == {active.number: Role.MASTER, standby.number: Role.SLAVE} for switch in net.switches)
    assert standby.election.channels(Role.SLAVE) == 2


def test_standby_becomes_slave_although_generation_ids_advance_and_answers_are_slow() -> None:
    net = network()
    active = settled(net)
    standby = next(r for r in net.replicas if r is not active)
    for switch in net.switches:
        net.delays[standby.number, switch.dpid] = STEP_S
        net.disconnect(standby.number, switch.dpid)
        net.connect(standby.number, switch.dpid)
    net.run(10)
    assert standby.election.channels(Role.SLAVE) == 2 and net.active() == [active]


def test_standby_is_active_within_expiry_and_three_beats_after_a_kill() -> None:
    net = network()
    dead = settled(net)
    for switch in net.switches:
        net.disconnect(dead.number, switch.dpid)
    dead.stopped = True
    net.run(EXPIRY_S + 3 * BEAT_S + 2 * STEP_S)
    other = next(r for r in net.replicas if r is not dead)
    assert other.election.term is not None and all(other.election.is_master(switch.dpid) for switch in net.switches)


def test_stopped_replica_changes_nothing_after_it_resumes_and_becomes_standby() -> None:
    net = network()
    first = settled(net)
    term = first.election.term
    first.stopped = True
    net.run(2 * EXPIRY_S)
    first.stopped = False
    assert first.election.term == term, "it has not noticed yet"
    assert not any(net.change(first.number, switch.dpid) for switch in net.switches)
    net.run(STEP_S)
    assert first.election.term is None
    second = settled(net)
    assert second is not first and second.election.term is not None and second.election.term > int(term or 0)


def test_clock_that_is_far_ahead_does_not_let_a_stopped_replica_return_unnoticed() -> None:
    net = Network(2, [5, 9], [3_600.0, 0.0])
    net.replicas[1].stopped = True
    net.run(2 * EXPIRY_S)
    assert net.replicas[0].election.term is not None
    net.replicas[0].stopped, net.replicas[1].stopped = True, False
    net.run(2 * EXPIRY_S)
    assert net.replicas[1].election.term is not None
    assert net.replicas[1].election.term > int(net.replicas[0].election.term), "terms increase whatever the clocks are"
    net.replicas[0].stopped = False
    net.run(1.0)
    assert net.active() == [net.replicas[1]]


def test_standby_that_was_stopped_does_not_claim_on_resumption() -> None:
    net = network()
    active = settled(net)
    standby, term = next(r for r in net.replicas if r is not active), active.election.term
    standby.stopped = True
    net.run(60)
    standby.stopped = False
    net.run(60)
    assert net.active() == [active] and active.election.term == term


def test_standby_leaves_an_active_replica_in_peace_that_has_lost_some_switches() -> None:
    net = network()
    active = settled(net)
    net.disconnect(active.number, 1)
    net.run(60)
    assert net.active() == [active]


def test_replica_that_cannot_reach_any_switch_is_replaced_and_yields_when_it_returns() -> None:
    net = network()
    first = settled(net)
    for switch in net.switches:
        net.disconnect(first.number, switch.dpid)
    net.run(2 * EXPIRY_S)
    for switch in net.switches:
        net.connect(first.number, switch.dpid)
    second = settled(net)
    assert second is not first and first.election.term is None


def test_vacated_term_is_claimed_without_waiting() -> None:
    net = network()
    leaving = settled(net)
    for request in leaving.election.vacate(net.now):
        net.requests[leaving.number, request.dpid].append((net.now, request))
    net.run(2 * BEAT_S + 2 * STEP_S)
    (active,) = net.active()
    assert active is not leaving and all(active.election.is_master(switch.dpid) for switch in net.switches)
    net.run(60)
    assert net.active() == [active], "a replica that has vacated its term never claims again"


def test_controller_that_gets_a_replica_stays_active() -> None:
    net = network()
    net.replicas[0].election.claim(net.now, net.replicas[0].wall_s)
    net.run(10)
    assert net.active() == [net.replicas[0]]


def test_replica_that_loses_its_terms_waits_longer_each_time() -> None:
    """Two replicas that are both too slow for the expiry must not replace each other for ever."""
    net = network(1)
    pauses = 0
    for _ in range(40):
        net.run(1.0)
        for replica in net.active():
            pauses += 1
            replica.stopped = True
            net.run(EXPIRY_S + 1.0)
            replica.stopped = False
    assert pauses == 40
    assert max(len(replica.terms) for replica in net.replicas) <= 5


def test_switch_without_roles_is_left_alone() -> None:
    election = Election(1)
    election.opened(DatapathId(1))
    (request,) = election.tick(1.0, 1.0)
    election.reported(DatapathId(1), Refused(request.number, False), 1.0)
    assert not election.is_supported(DatapathId(1))
    assert not any(election.tick(1.0 + n, 1.0) for n in range(1, 100)) and election.term is None
    election.closed(DatapathId(1))
    election.opened(DatapathId(1))
    assert election.is_supported(DatapathId(1)), "after a reconnection, the switch may have been upgraded"


def test_switch_that_never_becomes_slave_gets_two_requests_per_beat() -> None:
    election = Election(1)
    election.opened(DatapathId(1))
    sent = answers = 0
    for step in range(200):
        requests = election.tick(step * STEP_S, 1.0)
        while requests and election.term is None:
            sent += len(requests)
            answers += 1
            requests = election.reported(DatapathId(1), Granted(requests[0].number, Role.EQUAL, answers), step * STEP_S)
    assert 0 < sent <= 2 * (200 * STEP_S / BEAT_S + 1)


@given(st.integers(0, ALL), st.integers(1, 1000), st.floats(0, 2**31))
def test_claimed_generation_id_is_newer_than_any_that_was_seen(seen: int, beats: int, wall_s: float) -> None:
    election = Election(7)
    election.opened(DatapathId(1))
    now = 1.0
    while election.term is None:
        for request in election.tick(now, wall_s):
            election.reported(DatapathId(1), Granted(request.number, Role.SLAVE, seen), now)
        now += STEP_S
    assert seen == UNDEFINED or is_newer(election.generation_id, seen)
    for _ in range(beats):
        before = election.generation_id
        now += BEAT_S + STEP_S
        election.tick(now, wall_s)
        assert is_newer(election.generation_id, before) and election.generation_id >> 32 == election.term


FAULTS = ("connect", "disconnect", "stop", "resume", "restart", "delay", "change", "forget", "vacate")
STEPS = st.lists(
    st.tuples(st.sampled_from(FAULTS), st.integers(0, 1), st.integers(1, 3), st.floats(0, 3), st.integers(0, 2**31)), max_size=60
)


APART = 10_000
"""Minimum distance of first beats. Replicas that claim the same term with neighbouring beats could replace each other; with random beats of
31 bits, the probability is below 1 : 100 million."""
BEATS = st.lists(st.integers(0, 2**31 // APART), min_size=2, max_size=2, unique=True)


@example([("connect", 0, 1, 0.0, 0), ("disconnect", 0, 1, 0.0, 0), ("disconnect", 1, 1, 1.0, 0)], [0.0, 0.0], [0, 1])  # equal rhythms
@given(STEPS, st.lists(st.floats(-100, 100), min_size=2, max_size=2), BEATS)
def test_changes_come_from_the_newest_term_only_and_one_replica_is_active_in_the_end(
    steps: list[tuple[str, int, int, float, int]], skews: list[float], beats: list[int]
) -> None:
    net = Network(3, [APART * beat for beat in beats], skews)
    for fault, replica, dpid, amount, beat in steps:
        _happen(net, fault, (replica, dpid), amount, beat)
        net.run(amount)
        for switch in net.switches:
            _check(switch)
    net.delays.clear()
    for replica in (0, 1):
        net.replicas[replica].stopped = False
        for dpid in (1, 2, 3):
            net.connect(replica, dpid)
    settled(net)
    for switch in net.switches:
        _check(switch)


def _happen(net: Network, fault: str, where: tuple[int, int], amount: float, beat: int) -> None:
    replica, dpid = where
    election = net.replicas[replica].election
    if fault in ("connect", "disconnect"):
        getattr(net, fault)(replica, dpid)
    elif fault in ("stop", "resume"):
        net.replicas[replica].stopped = fault == "stop"
    elif fault == "restart":
        net.restart(replica, beat)
    elif fault == "delay":
        net.delays[replica, dpid] = amount / 3
    elif fault == "forget" and not any(role is Role.MASTER for role in net.switch(dpid).roles.values()):
        for number in (0, 1):
            net.disconnect(number, dpid)
        net.switches[dpid - 1] = Switch(dpid)
    elif fault == "vacate" and election.term is not None:
        for request in election.vacate(net.now):
            net.requests[replica, request.dpid].append((net.now, request))
        net.restart(replica, beat)
    elif fault == "change" and (replica, dpid) in net.requests and election.is_master(DatapathId(dpid)):
        switch = net.switch(dpid)
        assert net.change(replica, dpid) == (switch.masters[-1] == (replica, election.term))


def _check(switch: Switch) -> None:
    """A replica that another has replaced never returns to the switch in the same term, so it cannot miss changes of the other."""
    assert sum(role is Role.MASTER for role in switch.roles.values()) <= 1
    assert len(set(switch.masters)) == len(switch.masters)
