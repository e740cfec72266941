"""Property tests of the programmer with bounded tables: nothing is refused, and the switch has what the programmer records."""

from __future__ import annotations

from typing import NamedTuple

from controller_fake import E1, E2, FakeNetwork, one_by_one
from hypothesis import given, settings
from hypothesis import strategies as st
from sos_controller.core.commands import Apply, Command, Install, Withdraw
from sos_controller.core.flow_tables.budget import Rank, rank_of
from sos_controller.core.flow_tables.programmer import Programmer
from sos_controller.core.openflow.flow_entries import FlowEntry, Match, Output, index
from sos_controller.core.openflow.pipeline import Kind, cookie, owner
from sos_controller.core.types import DatapathId, PortNo

COOKIE = cookie(1, Kind.FORWARD, 1)
GROUPS = ("base", ("path", 1), ("path", 2), "punts", ("host", 1), ("host", 2), ("host", 3), ("kept", 1))


def entry(table: int, number: int, port: int) -> FlowEntry:
    return FlowEntry(table, 100, Match(in_port=PortNo(number)), (Output(PortNo(port)),), COOKIE)


class Change(NamedTuple):
    """A group's new entries on both datapaths."""

    group: object
    entries: tuple[FlowEntry, ...]


entries = st.builds(entry, st.integers(0, 1), st.integers(1, 12), st.integers(1, 2))
changes = st.builds(Change, st.sampled_from(GROUPS), st.lists(entries, max_size=8).map(tuple))
events = st.lists(st.lists(changes, min_size=1, max_size=4), max_size=12)
sizes = st.fixed_dictionaries({0: st.integers(2, 14), 1: st.integers(2, 14)})


class Bench:
    """A programmer with two synced datapaths, the first of which is bounded."""

    def __init__(self, bounds: dict[int, int]) -> None:
        self.programmer, self.network, self.refused = Programmer(), FakeNetwork(), list[FlowEntry]()
        self.programmer.owner = owner(1)
        self.bounds = bounds
        self.network.sizes = {(E1, table): size for table, size in bounds.items()}
        out: list[Command] = []
        self.programmer.announce(E1, bounds)
        for dpid in (E1, E2):
            self.programmer.sync(dpid, (), out)
        self.apply(out)

    def apply(self, out: list[Command]) -> None:
        for command in out:
            assert isinstance(command, Apply | Install | Withdraw)
            for apply in one_by_one(command):
                self.refused += self.network.apply(apply, 0.0)
                if apply.barrier:
                    self.programmer.acknowledge(apply.dpid, apply.token)

    def event(self, event: list[Change]) -> None:
        out: list[Command] = []
        for group, wanted in event:
            places = {E1: wanted, E2: wanted}
            fits = rank_of(group) is not Rank.HOST or self.programmer.has_room(group, places)  # as `forwarding.l2`
            self.programmer.set_group(group, places if fits else {}, out)
        self.programmer.settle(out)
        self.apply(out)

    def holds(self, dpid: DatapathId) -> bool:
        """Return whether the switch has exactly the entries that the programmer records."""
        return self.network.tables.get(dpid, {}) == index(self.programmer.entries(dpid))


@given(sizes, events)
@settings(max_examples=200, deadline=None)
def test_announced_sizes_are_never_exceeded_and_switches_match(bounds: dict[int, int], course: list[list[Change]]) -> None:
    bench = Bench(bounds)
    for event in course:
        bench.event(event)
        assert not bench.refused
        assert bench.holds(E1) and bench.holds(E2)
        assert bench.programmer.is_acknowledged(E1) and bench.programmer.is_acknowledged(E2)
        for table, size in bounds.items():
            assert sum(e.table == table for e in bench.programmer.entries(E1)) <= size


@given(sizes, events)
@settings(max_examples=100, deadline=None)
def test_host_has_entries_on_all_datapaths_or_on_none(bounds: dict[int, int], course: list[list[Change]]) -> None:
    bench = Bench(bounds)
    for event in course:
        hosts = [Change(group, (entry(1, 20 + group[1], len(e)),) if e else ()) for group, e in event if rank_of(group) is Rank.HOST]
        others = [change for change in event if change.group in ("base", "punts")]
        bench.event([*hosts, *others])
        found = [[e for e in bench.programmer.entries(dpid) if e.match.in_port and e.match.in_port > 20] for dpid in (E1, E2)]
        assert found[0] == found[1]


@given(events)
@settings(max_examples=100, deadline=None)
def test_wide_table_is_programmed_like_an_unbounded_one(course: list[list[Change]]) -> None:
    bench = Bench({0: 1_000, 1: 1_000})
    for event in course:
        bench.event([change._replace(entries=tuple(index(change.entries).values())) for change in event])
        wanted = {key for group in bench.programmer.groups() for key in bench.programmer._groups[group].get(E1, {})}
        assert index(bench.programmer.entries(E1)).keys() == wanted


@given(sizes, events, st.integers(0, 4))
@settings(max_examples=100, deadline=None)
def test_sessions_within_their_share_survive_any_change(bounds: dict[int, int], course: list[list[Change]], count: int) -> None:
    bench = Bench({0: bounds[0] + 8, 1: bounds[1]})
    started: list[FlowEntry] = []
    for number, event in enumerate(course):
        if len(started) < count and bench.programmer.takes_session((E1,)):
            made = FlowEntry(0, 400, Match(in_port=PortNo(500 + number)), (Output(PortNo(1)),), COOKIE)
            out: list[Command] = []
            bench.programmer.install((E1,), made, lambda _done: None, out)
            bench.apply(out)
            started.append(made)
        bench.event(event)
        assert not bench.refused and bench.holds(E1)
        assert {e.key for e in started} <= index(bench.programmer.entries(E1)).keys()
