"""Tests of the budget of a datapath's tables: entries that fit, in the order of their rank."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.flow_tables.budget import SESSIONS_DIVISOR, Demand, Fit, Limits, Rank, fit, learn, rank_of
from sos_controller.core.openflow.flow_entries import EntryKey, Match
from sos_controller.core.types import PortNo

NAMES = ("base", "guards", "path", "agent", "punts", "icmp", "host", "kept")
SHARED = [(table, 1, Match(in_port=PortNo(number))) for table in (0, 1) for number in range(1, 30)]


def keys(first: int, count: int, table: int = 0) -> tuple[EntryKey, ...]:
    return tuple((table, 1, Match(in_port=PortNo(number))) for number in range(first, first + count))


sizes = st.dictionaries(st.integers(0, 1), st.integers(0, 40), max_size=2)
limits = st.builds(Limits, sizes, sizes, st.none() | st.integers(0, 60))
demands = st.lists(
    st.builds(
        Demand,
        st.tuples(st.sampled_from(NAMES), st.integers(0, 99)),
        st.lists(st.sampled_from(SHARED), max_size=20, unique=True).map(tuple),
    ),
    max_size=12,
    unique_by=lambda demand: demand.group,
)


def admitted(found: Fit) -> set[EntryKey]:
    return {key for those in found.admitted.values() for key in those}


@given(limits, st.integers(0, 30), demands)
def test_entries_that_fit_never_exceed_a_limit(bounds: Limits, sessions: int, wanted: list[Demand]) -> None:
    placed = admitted(fit(bounds, sessions, wanted))
    used = Counter(key[0] for key in placed)
    for table in (0, 1):
        size = bounds.size(table)
        assert size is None or not used[table] or used[table] + (sessions if table == 0 else 0) <= size
    assert bounds.total is None or not placed or len(placed) + sessions <= bounds.total


@given(limits, st.integers(0, 30), demands)
def test_group_is_admitted_whole_or_refused_with_its_numbers(bounds: Limits, sessions: int, wanted: list[Demand]) -> None:
    found = fit(bounds, sessions, wanted)
    assert found.admitted.keys() == {demand.group for demand in wanted}
    for group, those in wanted:
        if group not in found.refused:
            assert found.admitted[group] == those
            continue
        short = found.refused[group]
        assert short.needed > short.left >= 0 and short.size >= short.left
        assert set(found.admitted[group]) <= set(those)
        if rank_of(group) in (Rank.PATH, Rank.HOST):
            assert not found.admitted[group]


@given(limits, st.integers(0, 30), demands)
def test_lower_ranks_never_take_space_from_higher_ranks(bounds: Limits, sessions: int, wanted: list[Demand]) -> None:
    found = fit(bounds, sessions, wanted)
    for rank in Rank:
        important = [demand for demand in wanted if rank_of(demand.group) <= rank]
        alone = fit(bounds, sessions, important)
        assert {demand.group: found.admitted[demand.group] for demand in important} == alone.admitted


@given(limits, st.integers(0, 30), demands)
def test_budget_of_placed_entries_changes_nothing(bounds: Limits, sessions: int, wanted: list[Demand]) -> None:
    found = fit(bounds, sessions, wanted)
    again = fit(bounds, sessions, [Demand(demand.group, found.admitted[demand.group]) for demand in wanted])
    assert again.admitted == found.admitted and not again.refused


@given(demands, st.integers(0, 30))
def test_datapath_without_limits_takes_everything(wanted: list[Demand], sessions: int) -> None:
    found = fit(Limits(), sessions, wanted)
    assert not found.refused and found.admitted == {demand.group: demand.keys for demand in wanted}


def test_services_leave_a_quarter_to_sessions_and_hosts_give_way_first() -> None:
    bounds = Limits({0: 100})
    wanted = [
        Demand(("host", 1), keys(1, 1)),
        Demand("punts", keys(10, 60)),
        Demand(("path", 1, 2), keys(100, 10)),
        Demand("guards", keys(200, 5)),
    ]
    found = fit(bounds, 0, wanted)
    assert found.refused.keys() == {("host", 1)}
    assert fit(bounds, 0, [*wanted, Demand(("path", 3, 4), keys(300, 20))]).refused.keys() == {"punts", ("host", 1)}
    assert 100 - 100 // SESSIONS_DIVISOR == 75


def test_sessions_beyond_their_part_leave_less_to_services() -> None:
    found = fit(Limits({0: 100}), 50, [Demand("punts", keys(1, 60))])
    short = found.refused["punts"]
    assert (short.size, short.left, short.needed) == (100, 50, 60)
    assert short.message("edge1", "services") == "datapath edge1: table 0 takes 100 entries, 50 are left for services, and 60 are needed"


def test_first_refusal_bounds_all_tables_and_the_next_one_the_table() -> None:
    first = learn(Limits(), 1, {0: 30, 1: 70})
    assert first.total == 100 and first.size(1) is None and first.is_learned
    second = learn(first, 1, {0: 10, 1: 70})
    assert (second.total, second.size(1), second.size(0)) == (100, 70, None)
    message = fit(first, 0, [Demand("punts", keys(1, 80))]).refused["punts"].message("s", "services")
    assert (
        message == "datapath s: its tables together take 100 entries (learned from a refusal), 75 are left for services, and 80 are needed"
    )


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=200), sizes)
def test_each_refusal_lowers_a_limit_so_that_learning_ends(refusals: list[tuple[int, int, int]], announced: dict[int, int]) -> None:
    bounds = Limits(announced)
    for table, here, elsewhere in refusals:
        before, bounds = bounds, learn(bounds, table, {table: here, 1 - table: elsewhere})
        size, was = bounds.size(table), before.size(table)
        assert bounds.announced == announced
        assert before.total is None or bounds.total == before.total
        assert before.total is None or size == 0 or was is None or (size is not None and size < was)


@pytest.mark.parametrize(
    ("group", "rank"),
    [("base", Rank.GUARD), (("path", 1, 2), Rank.PATH), ("punts", Rank.SERVICE), (("track", 5), Rank.SERVICE), (("host", b""), Rank.HOST)],
)
def test_rank_follows_the_name_of_a_group(group: object, rank: Rank) -> None:
    assert rank_of(group) is rank
