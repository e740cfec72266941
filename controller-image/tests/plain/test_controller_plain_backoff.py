"""Test backoff: clients and servers that agents cannot serve stay plain for increasing times.

Forged SYNs make no other host plain for long.
"""

from __future__ import annotations

import pytest
from controller_lab import MACS
from controller_views import AT_CLIENT, CLIENT, SERVER
from controller_world import World, syn_frame
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.events import PacketIn
from sos_controller.core.plain import backoff
from sos_controller.core.plain.backoff import CLIENT_FAILURES, FIRST_S, MAX_S, SERVER_FAILURES, Backoff, ClientKey
from sos_controller.core.types import Address, Location, PortNo, parse_mac
from sos_controller.core.wire.order import ENDS

EXPIRED, UNREACHABLE, CLOSED = (ENDS.index(reason) for reason in ("expired", "server-unreachable", "closed"))
KEY = ClientKey(CLIENT, parse_mac(MACS["client"]), AT_CLIENT)
ELSEWHERE = Location(AT_CLIENT.dpid, PortNo(5))


def ports() -> list[int]:
    return list(range(50_000, 40_000, -1))


def begin(world: World, sport: int, where: Location = AT_CLIENT, mac: str = "client", isn: int = 1) -> str:
    """Return the outcome of a client's SYN: "session", or the reason for plain TCP."""
    before = world.engine.state.counters.copy()
    world.do(PacketIn(*where, world.punt_cookie, syn_frame(CLIENT, SERVER, sport, 5001, isn, mac=mac)))
    new = {what for (kind, what), count in world.engine.state.counters.items() if kind == "syns" and count > before[kind, what]}
    return "session" if "begun" in new else new.pop()


def fail(world: World, reason: int, name: str) -> None:
    """Open a connection that the agent `name` cannot serve."""
    assert begin(world, next(world.ports)) == "session"  # type: ignore[attr-defined]
    world.tick(0.2)
    for session in list(world.engine.state.sessions):
        world.end(session.uuid, (name,), reason)
        world.end(session.uuid, tuple({"agent1", "agent2"} - {name}), ENDS.index("peer-lost"))
    world.tick(1.2)


@pytest.fixture
def made(world: World) -> World:
    world.ports = iter(ports())  # type: ignore[attr-defined]
    return world


def test_client_with_incomplete_handshakes_is_plain_for_a_growing_time(made: World) -> None:
    """Retransmissions of the same SYN go plain, too. Linux retransmits it 7 and 15 s after the first SYN."""
    for times in range(4):
        sport = 45_000 + times
        assert begin(made, sport) == "session"
        made.tick(0.2)
        (session,) = made.engine.state.sessions
        made.end(session.uuid, ("agent1", "agent2"), EXPIRED)
        made.tick(1.2)
        assert begin(made, sport) == "client-silent"
        made.tick(FIRST_S * 2**times - 2.5, step=0.25)
        assert begin(made, 46_000 + times) == "client-silent"
        made.tick(2.5)


def test_backoff_covers_only_the_clients_own_port_and_mac_address(made: World) -> None:
    fail(made, EXPIRED, "agent1")
    assert begin(made, 47_000) == "client-silent"
    assert begin(made, 47_001, ELSEWHERE) == "session", "a sender with the client's address at another port"
    assert begin(made, 47_002, mac="server") == "session"


def test_completed_handshake_resets_and_shortens_the_backoff(made: World) -> None:
    """Another host behind the same switch port may forge the client's SYNs. The client is then plain for the shortest time only."""
    fail(made, CLOSED, "agent1")
    for _ in range(3):
        for _ in range(backoff.PROVEN_FAILURES):
            assert begin(made, next(made.ports)) == "session"  # type: ignore[attr-defined]
            made.tick(0.2)
            (session,) = made.engine.state.sessions
            made.end(session.uuid, ("agent1", "agent2"), EXPIRED)
            made.tick(1.2)
        assert begin(made, next(made.ports)) == "client-silent"  # type: ignore[attr-defined]
        made.tick(FIRST_S, step=0.25)
    fail(made, CLOSED, "agent1")
    fail(made, EXPIRED, "agent1")
    assert begin(made, 47_003) == "session", "one expired handshake does not make the client plain"


def test_server_that_agents_cannot_reach_is_plain_and_counted_as_elsewhere(made: World) -> None:
    for _ in range(SERVER_FAILURES):
        fail(made, UNREACHABLE, "agent2")
    assert begin(made, 47_000) == "server-unreachable"
    made.tick(backoff.REPEAT_S)
    assert begin(made, 47_001) == "server-elsewhere", "the previous SYN was not retransmitted, so the server has answered"
    reasons = {reason.label for _, reason, _ in made.engine.state.plain_traffic.totals()}
    assert "ServerElsewhere" in reasons


def test_server_that_never_answers_does_not_count_as_elsewhere(made: World) -> None:
    for _ in range(SERVER_FAILURES):
        fail(made, UNREACHABLE, "agent2")
    for sport in (47_000, 47_001):
        assert begin(made, sport) == "server-unreachable"
        made.tick(1)
        assert begin(made, sport) == "decided"
        made.tick(1)


keys = st.tuples(st.integers(0, 9))
steps = st.lists(st.tuples(keys, st.sampled_from(["fail", "fail", "success"]), st.floats(0, 2 * MAX_S)), max_size=60)


@given(steps, st.integers(1, 3))
def test_backoff_is_bounded_in_size_and_time(taken: list[tuple[tuple[int], str, float]], failures: int) -> None:
    kept, now = Backoff[tuple[int]](failures, limit=4), 0.0
    proven = set()
    for key, what, passed in taken:
        now += passed
        if what == "success":
            kept.succeeded(key)
            proven.add(key)
            assert not kept.is_plain(key, now)
        else:
            kept.failed(key, now)
        assert len(kept) <= 8
        assert not kept.is_plain(key, now + MAX_S)
        assert proven != {key} or not kept.is_plain(key, now + FIRST_S)


def test_backoff_doubles_up_to_the_maximum() -> None:
    kept, now, lengths = Backoff[tuple[int]](CLIENT_FAILURES), 0.0, []
    for _ in range(10):
        kept.failed((1,), now)
        began = now
        while kept.is_plain((1,), now):
            now += 1
        lengths.append(now - began)
    assert lengths == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert not kept.is_plain((Address(2),), 0)
