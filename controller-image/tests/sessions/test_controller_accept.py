"""Test `spec.accept`: it may delay a client's SYN until the server has accepted the egress agent's connection (spec/order.md 3 and 4)."""

from __future__ import annotations

from typing import Any

import pytest
from controller_fake import E1, E2
from controller_lab import document
from controller_views import AT_EGRESS, AT_INGRESS, AT_SERVER, CLIENT, SERVER, kinds, released, reverse, signed, to_agent
from controller_world import World, syn_frame
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.commands import PacketOut
from sos_controller.core.openflow.pipeline import SETTLE_S, Kind
from sos_controller.core.plain.outcome import AgentRefusal
from sos_controller.core.plain.reason import PlainReason
from sos_controller.core.tables.accepting_servers import LEARNED_S, MAX_SERVERS, AcceptingServers
from sos_controller.core.tables.sessions import Phase
from sos_controller.core.types import Address, FlowKey, flow_key
from sos_controller.core.wire import order
from sos_controller.core.wire.order import Ended

ARMED_S = 12.0
"""Seconds after arming, longer than IDLE_S: from then on, a session waits for the switches' caches only if the controller has recorded an
earlier flow from the same client port to the same server (`cache_guard`)."""


def up(accept: str | None, rewritten: str = "", **more: Any) -> World:
    made = document()
    made["services"][0].pop("accept")
    if accept is not None:
        made["services"][0]["accept"] = accept
    for site in made["sites"]:
        site["rewrite"] = "OpenFlow" if site["name"] == rewritten else "Transparent"
    made.pop("hash")
    world = World(signed(made), **more)
    world.converge()
    world.tick(ARMED_S, step=0.25)
    world.delivered.clear()
    return world


def delivered(world: World) -> int:
    return len(to_agent(world, AT_INGRESS))


def test_client_waits_until_the_server_has_accepted() -> None:
    world = up("Confirmed")
    egress = world.agents["agent2"]
    egress.server = "silent"
    world.syn(40000, dscp=46)
    (asked,) = egress.asked
    assert asked.dscp == 46 and asked.accept == order.ACCEPT_CONFIRMED
    assert not delivered(world) and not released(world)
    egress.server = "accepts"
    world.tick(0.3)
    assert delivered(world) == 1 and not released(world)
    (session,) = world.engine.state.sessions
    assert session.state is Phase.ACTIVE


def test_only_the_egress_agent_connects_early() -> None:
    world = up("Confirmed")
    world.syn(40000)
    assert not world.agents["agent1"].asked


@pytest.mark.parametrize("rewritten", ["", "east"])
def test_egress_agent_connects_after_the_egress_entry_exists(rewritten: str) -> None:
    world = up("Confirmed", rewritten)
    stood: list[bool] = []
    packet = world._packet_out

    def look(command: PacketOut) -> None:
        told = world._order_in(command)
        if told is not None and told[1].type == order.OrderType.PREPARE and order.decode_prepare(told[2]).accept:
            (found,) = world.network.walk(AT_SERVER, reverse(40000))
            stood.append(found[0] == AT_EGRESS)
        packet(command)

    world._packet_out = look  # type: ignore[method-assign]
    world.syn(40000)
    world.tick(SETTLE_S + 0.05)
    assert stood == [True] and delivered(world) == 1


def test_rewritten_egress_connection_waits_for_the_barrier() -> None:
    world = up("Confirmed", "east")
    world.mute.add(E2)
    world.syn(40000)
    world.tick(0.5)
    assert not world.agents["agent2"].asked
    world.tick(0.6)
    assert len(released(world)) == 1, "without a barrier reply, the connection is plain after a second"


def test_refused_connection_goes_plain_and_leaves_no_state() -> None:
    world = up("Confirmed")
    world.agents["agent2"].server = "refuses"
    world.syn(40000)
    assert len(released(world)) == 1 and not delivered(world)
    assert Kind.REDIRECT not in kinds(world, E1) | kinds(world, E2)
    assert not world.agents["agent1"].held, "the ingress agent is released"
    world.agents["agent2"].server = "accepts"
    world.syn(40000)
    assert len(released(world)) == 2 and not delivered(world), "the decision stands for the same SYN"
    world.syn(40001)
    assert delivered(world) == 1, "other connections are not affected"


def test_syn_of_a_rewritten_flow_is_released_after_its_entries_are_gone() -> None:
    world = up("Confirmed", "east")
    world.agents["agent2"].server = "refuses"
    world.syn(40000)
    world.tick(SETTLE_S)
    world.delivered.clear()
    world.syn(40000)
    assert len(released(world)) == 1, "a retransmitted SYN goes plain, too"
    world.delivered.clear()
    world.tick(SETTLE_S + 0.05)
    assert len(released(world)) == 1
    world.tick(1)
    assert len(released(world)) == 1 and len(world.engine.state.sessions) == 0


def test_silent_server_is_plain_after_a_second_despite_retransmissions() -> None:
    world = up("Confirmed")
    world.agents["agent2"].server = "silent"
    world.syn(40000)
    world.tick(0.5)
    world.syn(40000)
    assert not released(world)
    world.tick(0.6)
    assert len(released(world)) == 1
    world.syn(40000)
    assert len(released(world)) == 2 and not delivered(world)


def test_new_syn_of_the_same_4_tuple_replaces_a_waiting_syn() -> None:
    world = up("Confirmed")
    egress = world.agents["agent2"]
    egress.server = "silent"
    world.syn(40000, isn=1)
    world.syn(40000, isn=2)
    egress.server = "accepts"
    world.tick(0.3)
    (syn,) = to_agent(world, AT_INGRESS)
    assert syn.data[6:] == syn_frame(CLIENT, SERVER, 40000, 5001, isn=2)[6:]


def test_server_becomes_known_and_is_removed_after_a_refusal() -> None:
    world = up(None)
    egress = world.agents["agent2"]
    world.syn(40000)
    assert len(egress.asked) == 1 and delivered(world) == 1
    world.syn(40001)
    assert len(egress.asked) == 1 and delivered(world) == 2, "the server is known to accept"
    world.syn(40002, dport=5002)
    assert len(egress.asked) == 2, "only one port of the server is known"
    session = next(s for s in world.engine.state.sessions if s.key[8:10] == (40001).to_bytes(2, "big"))
    world.end(session.uuid, reason=order.ENDS.index("server-refused"))
    world.syn(40003)
    assert len(egress.asked) == 3, "one refusal removes the known server"


def test_refused_session_to_a_known_server_makes_the_next_one_wait() -> None:
    world = up("Learned")
    egress = world.agents["agent2"]
    world.syn(40000)
    world.syn(40001)
    session = next(s for s in world.engine.state.sessions if s.key[8:10] == (40001).to_bytes(2, "big"))
    told = egress.order(order.OrderType.REFUSED, order.encode_refused(session.uuid, 11), world.wall(world.now))
    world.do_packet(egress.where, told)
    assert session.state is Phase.ACTIVE, "the client's connection was already accepted"
    world.syn(40002)
    assert len(egress.asked) == 2


def test_early_does_not_wait_for_the_server() -> None:
    world = up("Early")
    world.syn(40000)
    assert not world.agents["agent2"].asked and delivered(world) == 1


def test_ready_of_an_older_agent_does_not_make_the_server_known() -> None:
    world = up("Learned")
    world.agents["agent2"].server = "unasked"
    world.syn(40000)
    assert delivered(world) == 1 and not len(world.engine.state.accepting_servers)


@pytest.mark.parametrize(
    ("number", "reason"), [(9, PlainReason.SERVER_REFUSED), (10, PlainReason.SERVER_REFUSED), (11, PlainReason.SERVER_SILENT)]
)
def test_answers_of_the_server_map_to_plain_reasons(number: int, reason: PlainReason) -> None:
    assert AgentRefusal(number).reason is reason


def key(server: int, port: int = 80) -> FlowKey:
    return flow_key(Address(1), Address(server), 2, port)


def said(reason: str, down: int) -> Ended:
    return Ended(bytes(16), order.ENDS.index(reason), 1, down, 1)


def test_only_received_bytes_prove_that_a_server_accepted() -> None:
    known = AcceptingServers()
    known.ended(key(1), said("closed", 0), 0.0)
    known.ended(key(2), said("peer-lost", 5), 0.0)
    assert not known.holds(key(1), 1.0) and known.holds(key(2), 1.0)
    known.ended(key(2), said("server-unreachable", 5), 2.0)
    assert not known.holds(key(2), 2.0)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["accepts", "refuses"]), st.floats(0, LEARNED_S)), max_size=40))
def test_server_is_known_until_a_refusal_or_expiry(history: list[tuple[int, str, float]]) -> None:
    known, model, now = AcceptingServers(), dict[int, float](), 0.0
    for server, how, later in history:
        now += later
        if how == "accepts":
            known.note(key(server), now)
            model[server] = now
        else:
            known.forget(key(server))
            model.pop(server, None)
        for other in range(6):
            assert known.holds(key(other), now) == (other in model and now < model[other] + LEARNED_S)
        assert len(known) <= 6


def test_full_table_evicts_the_oldest_known_server() -> None:
    known = AcceptingServers()
    for server in range(MAX_SERVERS + 1):
        known.note(key(server), 1.0)
    assert len(known) == MAX_SERVERS and not known.holds(key(0), 1.0) and known.holds(key(MAX_SERVERS), 1.0)
