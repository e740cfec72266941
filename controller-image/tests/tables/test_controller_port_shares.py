"""Test shares of ports: no port takes the places of others, and counts are exact."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.tables.port_shares import ALPHA, PortShares
from sos_controller.core.types import DatapathId, Location, PortNo

LIMIT = 60
PORTS = [Location(DatapathId(1 + number // 2), PortNo(1 + number % 2)) for number in range(4)]


def fill(table: PortShares, port: Location) -> None:
    while table.allows(port, LIMIT):
        table.take(port)


def test_one_port_gets_two_thirds_and_leaves_the_rest_to_others() -> None:
    table = PortShares()
    fill(table, PORTS[0])
    assert table.used[PORTS[0]] == LIMIT * ALPHA // (1 + ALPHA)
    fill(table, PORTS[1])
    assert table.used[PORTS[1]] >= LIMIT // 6 and table.total < LIMIT
    assert table.allows(PORTS[2], LIMIT)


@given(st.lists(st.tuples(st.sampled_from(PORTS), st.booleans())))
def test_counts_are_exact_and_a_port_without_places_gets_one_of_the_free_ones(steps: list[tuple[Location, bool]]) -> None:
    table, held = PortShares(), dict.fromkeys(PORTS, 0)
    for port, is_arrival in steps:
        if is_arrival and table.allows(port, LIMIT):
            table.take(port)
            held[port] += 1
        elif not is_arrival and held[port]:
            table.free(port)
            held[port] -= 1
        assert table.used == {each: number for each, number in held.items() if number}
        assert table.total == sum(held.values()) <= LIMIT
        assert all(table.allows(each, LIMIT) for each in PORTS if not held[each] and table.total < LIMIT)
