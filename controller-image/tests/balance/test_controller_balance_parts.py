"""Test the parts of a balance: weighted round robin, and neighbours resolved by ARP."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from controller_lab import SWITCHES
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.balance.ovs_round_robin import MAX_TURNS, sequence
from sos_controller.core.balance.weighted_round_robin import WeightedRoundRobin
from sos_controller.core.topology.neighbours import ASK_S, LOST_S, REFRESH_S, Neighbours, Place
from sos_controller.core.types import DatapathId, MacAddress, PortNo, parse_address, parse_mac

PLACE = Place(DatapathId(SWITCHES["edge1"]), "p1", parse_address("192.0.2.1"))
ROUTER_MAC = parse_mac("02:aa:00:00:00:01")


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 100), min_size=1, max_size=8), st.integers(0, 300))
def test_each_name_gets_its_weight_in_every_full_round(weights: dict[str, int], start: int) -> None:
    round_robin = WeightedRoundRobin(weights)
    for _ in range(start):
        round_robin.turn()
    assert Counter(round_robin.turn() for _ in range(sum(weights.values()))) == weights


@given(st.lists(st.text(max_size=3), min_size=1, max_size=8, unique=True))
def test_equal_weights_are_plain_round_robin(names: list[str]) -> None:
    round_robin = WeightedRoundRobin(dict.fromkeys(names, 1))
    assert [round_robin.turn() for _ in range(2 * len(names))] == names * 2


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 20), min_size=1))
def test_deviation_from_a_weight_is_bounded(weights: dict[str, int]) -> None:
    round_robin, seen, total = WeightedRoundRobin(weights), Counter[str](), sum(weights.values())
    for turn in range(1, 2 * total + 1):
        seen[round_robin.turn()] += 1
        assert all(abs(seen[name] - turn * weight / total) < len(weights) for name, weight in weights.items())


@given(st.dictionaries(st.integers(0, 99).map(str), st.integers(1, 100), min_size=1, max_size=32))
def test_switch_sequence_approximates_weights_within_a_bounded_length(weights: dict[str, int]) -> None:
    turns = Counter(sequence(weights))
    assert turns.keys() == weights.keys() and turns.total() <= MAX_TURNS
    total, rounding = sum(weights.values()), len(weights) + 1
    assert all(abs(turns[name] - turns.total() * weight / total) <= 1 + rounding * weight / total for name, weight in weights.items())


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 40), min_size=1))
def test_short_sequences_match_the_weights_exactly(weights: dict[str, int]) -> None:
    turns = Counter(sequence(weights))
    assert {name: count * sum(weights.values()) for name, count in turns.items()} == {n: w * turns.total() for n, w in weights.items()}


def test_round_robin_without_names_raises_an_error() -> None:
    with pytest.raises(KeyError):
        WeightedRoundRobin({}).turn()


@given(st.lists(st.floats(0.01, 40), min_size=1, max_size=60), st.data())
def test_neighbour_requests_are_rate_limited_and_silent_neighbours_expire(gaps: list[float], data: st.DataObject) -> None:
    found, now, asked, heard = Neighbours(), 0.0, list[float](), None
    for gap in gaps:
        now += gap
        found.expire(now)
        assert (found.find(PLACE) is None) == (heard is None or now - heard >= LOST_S)
        if found.due(PLACE, now):
            asked.append(now)
        if data.draw(st.booleans()):
            heard = now
            found.hear(PLACE, ROUTER_MAC, PortNo(1), now)
    assert all(later - earlier >= ASK_S for earlier, later in pairwise(asked))


def test_neighbours_are_refreshed_and_retried_when_overdue() -> None:
    found = Neighbours()
    assert found.due(PLACE, 0) and not found.due(PLACE, ASK_S / 2) and found.due(PLACE, ASK_S)
    found.hear(PLACE, ROUTER_MAC, PortNo(1), ASK_S)
    assert not found.due(PLACE, REFRESH_S) and found.due(PLACE, ASK_S + REFRESH_S) and found.due(PLACE, 2 * ASK_S + REFRESH_S)


def test_multicast_addresses_belong_to_no_host() -> None:
    found = Neighbours()
    assert not found.hear(PLACE, MacAddress(b"\xff" * 6), PortNo(1), 0) and not found.hear(PLACE, MacAddress(bytes(6)), PortNo(1), 0)
    assert found.find(PLACE) is None
