"""Index of policies, compared with trying one policy after another (the definition of the order)."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.config import MAX_SERVICES, End, Paths, PortRange, Service, Transport
from sos_controller.core.tables.policies import Policies, Policy
from sos_controller.core.tables.policy_index import PolicyIndex, PortTable, PrefixTable, merged
from sos_controller.core.types import Prefix

BASES = (0, 10 << 24, 10 << 24 | 1 << 16, 10 << 24 | 1 << 16 | 129, 172 << 24 | 16 << 16, 0xFFFFFFFF)
EDGES = (1, 2, 22, 443, 5000, 5001, 5999, 65534, 65535)
SITES = ("west", "east", "north")


class Connection(NamedTuple):
    client: int
    server: int
    server_port: int


def prefix(base: int, length: int) -> Prefix:
    return Prefix(base >> (32 - length) << (32 - length) if length else 0, length)


prefixes = st.builds(prefix, st.sampled_from(BASES), st.one_of(st.integers(0, 32), st.sampled_from((8, 16, 24, 32))))
ports = st.tuples(st.sampled_from(EDGES), st.sampled_from(EDGES)).map(sorted).map(tuple)
addresses = st.one_of(st.builds(lambda base, low: base ^ low, st.sampled_from(BASES), st.integers(0, 3)), st.integers(0, 2**32 - 1))
connections = st.builds(Connection, addresses, addresses, st.one_of(st.sampled_from(EDGES), st.integers(1, 65535)))


def end(site: str, of: list[Prefix]) -> End:
    return End(site=site, prefixes=[str(p) for p in of])


@st.composite
def services(draw: st.DrawFn) -> Service:
    return Service(
        id=f"team/{draw(st.integers(0, 999))}", priority=1, mode=draw(st.sampled_from(("Accelerate", "Observe"))),
        percent=draw(st.sampled_from((0, 50, 100))), setup="Reactive",
        from_=end(draw(st.sampled_from(SITES)), draw(st.lists(prefixes, min_size=1, max_size=5))),
        to=end(draw(st.sampled_from(SITES)), draw(st.lists(prefixes, min_size=1, max_size=5))),
        ports=[PortRange(first=first, last=last) for first, last in draw(st.lists(ports, min_size=1, max_size=4))],
        transport=Transport(streams=0, block_bytes=0, queue_bytes=0, congestion_control="Auto"), paths=Paths(mode="Shortest", max=1),
    )  # fmt: skip


def scan(policies: Policies, site: str, flow: Connection) -> list[Policy]:
    """Try the services of a site one after another."""
    return [policy for policy in policies.by_site.get(site, []) if policy.covers(flow)]


@given(st.lists(services(), max_size=12), st.lists(connections, min_size=1, max_size=20), st.integers(1, 4))
def test_index_finds_the_services_that_a_scan_finds_in_their_order(listed: list[Service], flows: list[Connection], limit: int) -> None:
    policies = Policies(listed)
    for flow in flows:
        for site in (*SITES, "nowhere"):
            expected = scan(policies, site, flow)
            first = policies.first(site, flow)
            assert first is (expected[0] if expected else None)
            assert policies.covering(site, flow, limit) == expected[:limit]


@given(st.lists(st.lists(prefixes, min_size=1, max_size=6), max_size=10), addresses)
def test_prefix_table_finds_every_policy_with_a_prefix_of_an_address(lists: list[list[Prefix]], address: int) -> None:
    found = PrefixTable([tuple(own) for own in lists]).find(address)
    assert found == sum(1 << i for i, own in enumerate(lists) if any(p.holds(address) for p in own))


@given(st.lists(st.lists(ports, min_size=1, max_size=6), max_size=10), st.integers(0, 65535))
def test_port_table_finds_every_policy_with_a_range_of_a_port(lists: list[list[tuple[int, int]]], port: int) -> None:
    found = PortTable([tuple(own) for own in lists]).find(port)
    assert found == sum(1 << i for i, own in enumerate(lists) if any(first <= port <= last for first, last in own))


@given(st.lists(ports, max_size=8))
def test_merged_ranges_are_sorted_disjoint_and_hold_the_same_ports(ranges: list[tuple[int, int]]) -> None:
    found = merged(tuple(ranges))
    assert all(one[1] + 1 < other[0] for one, other in pairwise(found))
    for port in {p + step for edge in ranges for p in edge for step in (-1, 0, 1)}:
        assert any(a <= port <= b for a, b in found) == any(a <= port <= b for a, b in ranges)


def test_last_of_the_most_services_is_found_behind_services_that_nearly_match() -> None:
    anywhere = (Prefix(0, 0),)
    others = [(anywhere, anywhere, ((1 + number, 1 + number),)) for number in range(MAX_SERVICES - 1)]
    index = PolicyIndex([*others, (anywhere, anywhere, ((1, 65535),))])
    assert index.first(1, 2, 60000) == MAX_SERVICES - 1
    assert index.numbers(1, 2, 7, 5) == [6, MAX_SERVICES - 1]
    assert index.first(1, 2, 0) == -1


def index_bytes(count: int) -> int:
    """Return the memory of an index whose prefixes each belong to two of `count` policies."""
    own = [tuple(prefix((i + j * (k + 1)) % count << 12 | k << 4, 28) for j in (0, 1) for k in range(16)) for i in range(count)]
    ranges = [tuple((1 + (i + 1021 * k) % 65000, 1 + (i + 1021 * k) % 65000 + 50) for k in range(16)) for i in range(count)]
    policies = list(zip(own, own, ranges, strict=True))
    tracemalloc.start()
    try:
        index = PolicyIndex(policies)
        assert index.first(own[0][0].network, own[0][0].network, ranges[0][0][0]) == 0
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_memory_of_the_index_grows_about_linearly() -> None:
    assert index_bytes(512) < 3 * index_bytes(256)
