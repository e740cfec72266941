"""Test small pure modules: entry differences, port masks, hosts, pair selection, replay windows, services and sessions."""

from __future__ import annotations

from typing import Any

import pytest
from controller_world import syn_frame
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.config import End, Paths, PortRange, Service, Transport
from sos_controller.core.openflow import flow_entries, pipeline, port_masks
from sos_controller.core.openflow.flow_entries import FlowEntry, Match, Output
from sos_controller.core.pairs import pair_selection
from sos_controller.core.pairs.pair_selection import Candidate, Loaded
from sos_controller.core.sessions.setup import session_uuid
from sos_controller.core.tables import policies as services
from sos_controller.core.tables.agents import Agent
from sos_controller.core.tables.sessions import FINAL, TRANSITIONS, InvalidTransitionError, Phase, Session, Trigger
from sos_controller.core.topology.hosts import MAX_ADDRESSES, MAX_AT_PORT, Hosts
from sos_controller.core.types import (
    Address,
    AgentId,
    DatapathId,
    Location,
    MacAddress,
    PortNo,
    Prefix,
    parse_address,
    parse_prefix,
)
from sos_controller.core.wire import packets
from sos_controller.core.wire.beacon import Beacon
from sos_controller.core.wire.replay import CLOCK_WINDOW_MS, WINDOW, Replay

OWNER = pipeline.owner(1)
OURS, FOREIGN = OWNER[0] | 0x0200_0000, 0x534F_0001_0000_0000

entries = st.builds(
    FlowEntry, table=st.integers(0, 1), priority=st.sampled_from([0, 100]), match=st.builds(Match, in_port=st.integers(1, 3)),
    actions=st.sampled_from([(), (Output(1),), (Output(2),)]), cookie=st.sampled_from([OURS, OURS + 1, FOREIGN]),
)  # fmt: skip
owned = entries.filter(lambda e: e.cookie != FOREIGN)


@given(st.lists(owned), st.lists(entries))
def test_diff_yields_the_desired_table_and_keeps_foreign_entries(desired: list, installed: list) -> None:
    want, there = flow_entries.index(desired), flow_entries.index(installed)
    changes = flow_entries.diff(want, there, OWNER)
    after = flow_entries.apply(there, changes)
    assert {k: e for k, e in after.items() if e.cookie != FOREIGN} == want
    foreign = {k: e for k, e in there.items() if e.cookie == FOREIGN and k not in want}
    assert {k: e for k, e in after.items() if e.cookie == FOREIGN} == foreign
    assert all(e.cookie != FOREIGN for e in changes.deletes)


@given(st.lists(owned))
def test_diff_of_a_table_with_itself_is_empty(desired: list) -> None:
    table = flow_entries.index(desired)
    assert flow_entries.diff(table, table, OWNER) == flow_entries.Changes((), ())


@given(st.lists(owned), st.lists(owned), st.integers(0, 20))
def test_replaying_changes_from_any_point_gives_the_same_table(desired: list, installed: list, offset: int) -> None:
    changes = flow_entries.diff(flow_entries.index(desired), flow_entries.index(installed), OWNER)
    once = flow_entries.apply(flow_entries.index(installed), changes)
    again = flow_entries.apply(once, flow_entries.Changes(changes.adds[offset:], changes.deletes[offset:]))
    assert again == once


@given(st.lists(owned), st.randoms())
def test_diff_does_not_depend_on_the_order_of_entries(desired: list, random) -> None:
    table = flow_entries.index(desired)
    shuffled = list(table.values())
    random.shuffle(shuffled)
    assert flow_entries.diff(flow_entries.index(shuffled), {}, OWNER) == flow_entries.diff(table, {}, OWNER)


@given(st.integers(0, 65535), st.integers(0, 65535))
def test_port_masks_cover_exactly_the_range(one: int, other: int) -> None:
    first, last = min(one, other), max(one, other)
    found = port_masks.masks(first, last)
    assert len(found) <= 30
    edges = {p for p in (first - 1, first, first + 1, last - 1, last, last + 1, 0, 65535) if 0 <= p <= 65535}
    for port in edges:
        assert sum(port & mask == value for value, mask in found) == (1 if first <= port <= last else 0)
    assert sum(0x10000 - mask for _, mask in found) == last - first + 1


def test_invalid_port_ranges_are_errors() -> None:
    for first, last in ((5, 4), (-1, 3), (0, 65536)):
        with pytest.raises(ValueError, match="not a port range"):
            port_masks.masks(first, last)


# -- selection

candidates = st.builds(
    Loaded,
    st.builds(Candidate, st.integers(0, 3), st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([b"x", b"y"])),
    st.sampled_from([0.0, 0.25, 0.5]),
    st.sampled_from([0.0, 0.05, 0.5]),
)


@given(st.lists(candidates, unique_by=lambda c: c.candidate), st.randoms())
def test_selection_is_total_nearest_then_least_loaded_and_deterministic(listed: list, random) -> None:
    chosen = pair_selection.choose(listed)
    shuffled = list(listed)
    random.shuffle(shuffled)
    assert pair_selection.choose(shuffled) == chosen
    assert (chosen is None) == (not listed)
    if chosen is not None:
        cost = min(c.candidate.cost for c in listed)
        ingress = [c for c in listed if c.candidate.cost == cost]
        idle = [c for c in ingress if c.busy <= min(each.busy for each in ingress) + pair_selection.EQUALLY_BUSY]
        (taken,) = (c for c in listed if c.candidate == chosen)
        assert chosen.cost == cost and taken in idle and taken.load == min(c.load for c in idle)


@given(st.lists(candidates, unique_by=lambda c: c.candidate, min_size=1), st.data(), st.sampled_from([0.04, 0.3]))
def test_busier_agent_never_makes_a_pair_preferred(listed: list, data, more: float) -> None:
    index = data.draw(st.integers(0, len(listed) - 1))
    before = pair_selection.choose(listed)
    heavier = [c._replace(busy=c.busy + more) if i == index else c for i, c in enumerate(listed)]
    after = pair_selection.choose(heavier)
    assert after != listed[index].candidate or before == after


def agent(name: bytes, **said: Any) -> Agent:
    """Return an ingress agent; `said` contains the load fields of its beacon."""
    known = Beacon(
        key_id=1, site_id=1, flags=2, agent_id=AgentId(name * 16), boot_id=1, sequence=1, time_ms=0, **{
            "sessions": 0, "session_limit": 4096, "bytes_per_second": 0, "cpu_permille": 0, "capacity_bps": 0} | said,
        streams=8, order_port=9876, first_stream_port=10000, stream_ports=8, address=Address(1), mac=MacAddress(bytes(6)), name="n",
        service_types=("tcp-parallel",),
    )  # fmt: skip
    return Agent(known, Location(DatapathId(1), PortNo(1)), 0.0)


def begin(agents: list[Agent], sessions: int) -> list[int]:
    """Assign sessions to ingress agents by load, and return the number of sessions per agent."""
    for _ in range(sessions):
        listed = [Loaded(Candidate(1, each.agent_id, AgentId(b"x" * 16)), each.load, each.busy) for each in agents]
        chosen = pair_selection.choose(listed)
        next(each for each in agents if chosen is not None and each.agent_id == chosen.ingress).assigned += 1
    return [each.assigned for each in agents]


@pytest.mark.parametrize("full", [{"cpu_permille": 1000}, {"bytes_per_second": 125_000_000, "capacity_bps": 1_000_000_000}])
def test_ten_transfers_that_fill_a_core_weigh_more_than_twenty_idle_sessions(full: dict[str, int]) -> None:
    assert begin([agent(b"a", sessions=10, **full), agent(b"b", sessions=20)], 20) == [0, 20]


@given(st.lists(st.integers(0, 99), min_size=2, max_size=2), st.integers(0, 200))
def test_agents_with_similar_load_share_sessions_evenly(cpu: list[int], sessions: int) -> None:
    """Small differences between the agents' measured loads, which vary from second to second, do not matter."""
    agents = [agent(name, cpu_permille=400 + used) for name, used in zip((b"a", b"b"), cpu, strict=True)]
    given_to = begin(agents, sessions)
    assert abs(given_to[0] - given_to[1]) <= 20, "no agent gets all sessions of a second"
    agents = [agent(name, cpu_permille=450) for name in (b"a", b"b")]
    assert abs((given_to := begin(agents, sessions))[0] - given_to[1]) <= 1


@given(st.sampled_from(["sessions", "cpu_permille", "bytes_per_second"]), st.integers(0, 2000), st.integers(0, 2000))
def test_load_grows_with_every_load_field_of_a_beacon(field: str, less: int, more: int) -> None:
    one, other = (agent(b"a", capacity_bps=8_000, **{field: value}) for value in sorted((less, more)))
    assert (one.load, one.busy) <= (other.load, other.busy)


@given(st.lists(candidates, unique_by=lambda c: c.candidate, min_size=1), st.data())
def test_more_load_never_makes_a_pair_preferred(listed: list, data) -> None:
    index = data.draw(st.integers(0, len(listed) - 1))
    before = pair_selection.choose(listed)
    heavier = [c._replace(load=c.load + 0.1) if i == index else c for i, c in enumerate(listed)]
    after = pair_selection.choose(heavier)
    assert after != listed[index].candidate or before == after


# -- replay


@given(st.permutations(range(1, 60)))
def test_each_sequence_number_is_accepted_once_in_any_order(sequences: list) -> None:
    window = Replay()
    assert all(window.accept(7, s, 0, 0) for s in sequences)
    assert not any(window.accept(7, s, 0, 0) for s in sequences)


@given(st.integers(1, 10**6))
def test_sequence_numbers_older_than_the_window_are_dropped(ahead: int) -> None:
    window = Replay()
    assert window.accept(7, 1, 0, 0) and window.accept(7, 1 + ahead, 0, 0)
    assert window.accept(7, ahead, 0, 0) == (ahead > 1)
    if ahead >= WINDOW:
        assert not window.accept(7, 1 + ahead - WINDOW, 0, 0)


@given(st.integers(-60_000, 60_000))
def test_new_boot_id_needs_a_synchronised_clock(skew: int) -> None:
    window = Replay()
    window.accept(7, 5, 0, 0)
    assert window.accept(8, 1, skew, 0) == (abs(skew) <= CLOCK_WINDOW_MS)
    assert not window.accept(6, 100, 0, 0) and not window.accept(9, 0, 0, 0)


# -- hosts


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 40), st.integers(1, 3))))
def test_hosts_have_their_last_location_in_all_tables(heard: list) -> None:
    hosts = Hosts(limit=4)
    last: dict[bytes, Location] = {}
    for number, address, port in heard:
        mac, where = bytes([2, 0, 0, 0, 0, number]), Location(1, port)
        if mac in last or len(last) < 4:
            changed = hosts.learn(mac, address, where, 1.0)
            assert changed == (last.get(mac) != where)
            last[mac] = where
        else:
            assert not hosts.learn(mac, address, where, 1.0)
    assert {h.mac: h.location for h in hosts.all()} == last
    for host in hosts.all():
        assert len(host.addresses) <= MAX_ADDRESSES
    for mac, where in list(last.items()):
        hosts.forget_location(where)
        assert hosts.by_mac(mac) is None
    assert len(hosts) == 0 and all(hosts.by_address(a) is None for a in range(41))


def test_group_and_zero_mac_addresses_are_not_hosts() -> None:
    hosts = Hosts()
    assert not hosts.learn(b"\xff" * 6, 1, Location(1, 1), 0.0) and not hosts.learn(bytes(6), 1, Location(1, 1), 0.0)


def test_hosts_behind_one_port_cannot_fill_the_table() -> None:
    hosts, crowded, other = Hosts(), Location(1, 1), Location(1, 2)

    def host(number: int) -> bytes:
        return b"\x02\x00" + number.to_bytes(4)

    assert all(hosts.learn(host(number), number + 1, crowded, 0.0) for number in range(MAX_AT_PORT))
    assert not hosts.learn(host(MAX_AT_PORT), 0, crowded, 0.0)
    assert hosts.learn(host(MAX_AT_PORT), 0, other, 0.0)
    assert hosts.learn(host(0), 1, other, 0.0), "the host has moved"
    assert hosts.learn(host(MAX_AT_PORT + 1), 0, crowded, 0.0), "the move frees an entry at the crowded port"
    hosts.forget_location(crowded)
    assert hosts.learn(host(MAX_AT_PORT + 2), 0, crowded, 0.0)


# -- services


def service(**changes) -> Service:
    fields = {
        "id": "s", "priority": 1, "mode": "Accelerate", "percent": 100, "setup": "Reactive",
        "from_": End(site="west", prefixes=["10.0.0.0/25"]), "to": End(site="east", prefixes=["10.0.0.128/25"]),
        "ports": [PortRange(first=22, last=22), PortRange(first=5000, last=5999)],
        "transport": Transport(streams=0, block_bytes=0, queue_bytes=0, congestion_control="Auto"), "paths": Paths(mode="Shortest", max=1),
    }  # fmt: skip
    return Service(**{**fields, **changes})


def syn(client: str, server: str, port: int) -> packets.Syn:
    found = packets.parse_syn(syn_frame(parse_address(client), parse_address(server), 40000, port))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("client", "server", "port", "covered"),
    [
        ("10.0.0.11", "10.0.0.139", 22, True),
        ("10.0.0.127", "10.0.0.128", 5999, True),
        ("10.0.0.128", "10.0.0.139", 22, False),
        ("10.0.0.11", "10.0.0.127", 22, False),
        ("10.0.0.11", "10.0.0.139", 23, False),
        ("10.0.0.11", "10.0.0.139", 6000, False),
    ],
)
def test_policy_matches_prefixes_and_ports(client: str, server: str, port: int, covered: bool) -> None:
    policies = services.Policies([service()])
    assert (policies.match("west", syn(client, server, port)) is not None) == covered
    assert policies.match("east", syn(client, server, port)) is None


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(1, 65535))
def test_punt_entries_match_exactly_what_the_policy_covers(client: int, server: int, port: int) -> None:
    from controller_fake import matches

    policy = services.Policies([service()]).by_site["west"][0]
    frame = syn_frame(client & 0xFF | 0x0A000000, server & 0xFF | 0x0A000000, 40000, port)
    punted = any(matches(m, 1, frame) for m in services.punt_matches(policy))
    assert punted == policy.covers(packets.parse_syn(frame))


def test_number_of_punt_entries_is_bounded() -> None:
    many = [f"10.{i}.0.0/16" for i in range(60)]
    ports = [PortRange(first=1 + 1000 * i, last=990 + 1000 * i) for i in range(60)]
    policy = services.Policies([service(from_=End(site="west", prefixes=many), to=End(site="east", prefixes=many), ports=ports)]).by_site[
        "west"
    ][0]
    assert len(services.punt_matches(policy)) <= services.MAX_PUNTS
    inside = service(from_=End(site="west", prefixes=["10.0.0.0/8", "10.1.0.0/16"]))
    assert {m.ipv4_src for m in services.punt_matches(services.Policies([inside]).by_site["west"][0])} == {(10 << 24, 0xFF000000)}


@given(st.binary(min_size=12, max_size=12), st.integers(0, 100))
def test_flows_in_a_percentage_stay_in_every_larger_percentage(key: bytes, percent: int) -> None:
    assert services.in_share(key, 100) and not services.in_share(key, 0)
    assert not services.in_share(key, percent) or all(services.in_share(key, p) for p in range(percent, 101))


def test_prefixes_are_parsed_and_printed() -> None:
    assert parse_prefix("10.0.0.0/25").holds(parse_address("10.0.0.127")) and str(Prefix(10 << 24, 8)) == "10.0.0.0/8"
    assert Prefix(0, 0).holds(12345)
    with pytest.raises(ValueError, match="host bits"):
        parse_prefix("10.0.0.1/25")


# -- sessions


def test_every_phase_reaches_a_final_phase_without_transitions() -> None:
    reach: dict[Phase, set[Phase]] = {s: {s} for s in Phase}
    for _ in Phase:
        for (state, _), following in TRANSITIONS.items():
            reach[state] |= reach[following]
    assert all(reach[s] & FINAL for s in Phase)
    assert not any(state in FINAL for state, _ in TRANSITIONS)
    assert reach[Phase.OBSERVED] == set(Phase)
    assert Phase.PLAIN not in reach[Phase.ACTIVE], "an accelerated connection never continues as plain TCP"


def test_transitions_outside_the_table_raise_an_error() -> None:
    session = Session(bytes(12), bytes(16), Location(1, 1), 0.0)
    with pytest.raises(InvalidTransitionError):
        session.advance(Trigger.AGENT_ENDED)


@given(st.integers(0, 2**80 - 1), st.integers(0, 2**40))
def test_session_uuids_are_valid_and_count_in_their_last_16_bits(seed: int, counter: int) -> None:
    one, following = session_uuid(seed, counter), session_uuid(seed, counter + 1)
    assert one != following and one[6] >> 4 == 8 and one[8] >> 6 == 2
    assert (int.from_bytes(following[-2:], "big") - int.from_bytes(one[-2:], "big")) % 65536 == 1
