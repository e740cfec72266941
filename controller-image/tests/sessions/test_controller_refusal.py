"""Test services with requirements: connections are accelerated or refused with a reset, never released as plain TCP."""

from __future__ import annotations

from typing import Any

import pytest
from controller_fake import E1
from controller_lab import AGENTS, MACS, document
from controller_world import CLIENT_PORT, World, encode, syn_frame
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core import snapshot
from sos_controller.core.commands import PacketOut
from sos_controller.core.events import ConfigChanged, Leaving, PacketIn
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.openflow.pipeline import PORT_NORMAL, REJECT_PORT, Kind, cookie_kind
from sos_controller.core.services import proactive
from sos_controller.core.types import AgentId, Location, PortNo, parse_address, parse_mac
from sos_controller.core.wire.packets import build_reset, complete_checksum, parse_segment
from sos_controller.files.config import document_hash, parse

MPTCP = bytes((30, 4, 0, 0))
CLIENT, SERVER = parse_address("10.0.0.11"), parse_address("10.0.0.139")
AT_CLIENT, AT_INGRESS = Location(E1, PortNo(CLIENT_PORT)), Location(E1, PortNo(4))
EGRESS = AgentId(AGENTS["agent2"][2])
SYN = syn_frame(CLIENT, SERVER, 40000, 5001)
RST_ACK = 0x14


def required(generation: int = 1, **changes: Any) -> dict[str, Any]:
    made = document(generation)
    del made["hash"]
    made["services"] = [{**made["services"][0], "require": ["Accelerated"], **changes}]
    return {**made, "hash": document_hash(made)}


def up(**changes: Any) -> World:
    made = World(required(**changes))
    made.converge()
    made.delivered.clear()
    return made


@pytest.fixture
def world() -> World:
    return up()


def out_of_hosts(world: World) -> list[PacketOut]:
    """Return the TCP packet-outs to hosts, not to agents."""
    tcp = [each for each in world.delivered if each.data[12:14] == b"\x08\x00" and each.data[23] == 6]
    agents = {agent.where for agent in world.agents.values()}
    return [each for each in tcp if not any((each.dpid, getattr(action, "port_no", None)) in agents for action in each.actions)]


def is_refused(world: World, isn: int = 1) -> bool:
    """Return whether the client has received exactly one valid reset. No other host may have received a packet."""
    sent = out_of_hosts(world)
    if not sent:
        return False
    (reset,) = sent
    segment = parse_segment(reset.data)
    assert segment is not None
    assert reset.actions == (Output(PortNo(CLIENT_PORT)),)
    assert (segment.flags, segment.ack) == (RST_ACK, isn + 1)
    assert reset.data[:12] == parse_mac(MACS["client"]) + parse_mac(MACS["server"])
    return True


def told(world: World) -> dict[str, int]:
    services = snapshot.plain(world.engine)["services"]
    assert all(not row["reasons"] for row in services), "no connection is plain"
    return services[0]["refused"] if services else {}


def test_syn_that_agents_cannot_accept_is_refused_with_the_reason(world: World) -> None:
    world.syn(40000, options=MPTCP)
    assert is_refused(world)
    assert told(world) == {"Option": 1}
    (shown,) = snapshot.plain(world.engine)["connections"]
    assert shown["refused"] and shown["reason"] == "Option"
    assert snapshot.status(world.engine, "", "")["services"][0]["recent"]["refused"]


def test_plain_decisions_are_not_kept(world: World) -> None:
    world.syn(40000, options=MPTCP)
    world.delivered.clear()
    world.syn(40000)
    assert not out_of_hosts(world) and len(world.engine.state.sessions) == 1, "the same SYN is accelerated as soon as possible"


def test_syns_are_punted_and_refused_without_agents(world: World) -> None:
    world.agents["agent2"].mode = "dead"
    world.tick(12.0)
    assert world.service() == "Pending/NoAgents"
    assert [e for e in world.network.entries(E1) if cookie_kind(e.cookie) == Kind.PUNT]
    world.delivered.clear()
    world.syn(40000)
    assert is_refused(world)
    assert told(world) == {"NoAgent": 1}


@pytest.mark.parametrize("setup", ["Reactive", "Proactive"])
def test_service_that_cannot_meet_its_requirement_keeps_its_precedence(setup: str) -> None:
    """The compiler sets percent 0 for a service that requires encrypted streams while its sites have none."""
    made = document(1)
    del made["hash"]
    (service,) = made["services"]
    blocked = {**service, "id": "default/blocked", "require": ["Encrypted"], "percent": 0, "setup": setup}
    made["services"] = [blocked, {**service, "setup": setup}]
    world = World({**made, "hash": document_hash(made)})
    world.converge()
    world.delivered.clear()
    world.syn(40000)
    assert is_refused(world)
    assert not world.engine.state.sessions
    refused, hidden = snapshot.plain(world.engine)["services"]
    assert (refused["id"], refused["refused"]) == ("default/blocked", {"NotEncrypted": 1})
    assert (hidden["id"], hidden["reasons"]) == ("default/bulk", {"Shadowed": 1})


@pytest.mark.parametrize("mode", ["Accelerate", "Observe"])
def test_service_without_requirements_is_plain_for_its_own_reason(mode: str) -> None:
    made = document(1)
    del made["hash"]
    made["services"][0] |= {"mode": mode, "percent": 0}
    world = World({**made, "hash": document_hash(made)})
    world.converge()
    world.syn(40000)
    (row,) = snapshot.plain(world.engine)["services"]
    assert row["reasons"] == {"Percent" if mode == "Accelerate" else "Observed": 1}


@pytest.mark.parametrize(("mode", "reason"), [("refuse", "AgentSessions"), ("silent", "NoAnswer")])
def test_failed_set_up_is_refused(world: World, mode: str, reason: str) -> None:
    world.agents["agent1"].mode = mode
    world.syn(40000, isn=7)
    world.tick(1.2)
    assert is_refused(world, isn=7)
    assert told(world) == {reason: 1}
    assert not [e for e in world.network.entries(E1) if cookie_kind(e.cookie) == Kind.REDIRECT]


def test_refusal_by_the_server_resets_the_client() -> None:
    world = up(accept="Confirmed")
    world.agents["agent2"].server = "refuses"
    world.syn(40000)
    world.tick(0.5)  # entries may have to settle before the refusal
    assert is_refused(world)
    assert told(world) == {"ServerRefused": 1}


def test_silent_server_causes_no_reset_and_is_tried_again() -> None:
    world = up(accept="Confirmed")
    egress = world.agents["agent2"]
    egress.server = "silent"
    for _ in range(2):
        world.syn(40000)
        world.tick(1.2)
    assert not out_of_hosts(world) and told(world) == {}
    egress.server = "accepts"
    world.syn(40000)
    assert len(world.engine.state.sessions) == 1


def test_fragments_and_unusual_headers_are_dropped_or_refused(world: World) -> None:
    world.do(PacketIn(world.west, PortNo(CLIENT_PORT), world.punt_cookie, SYN[:20] + b"\x20\x00" + SYN[22:]))
    odd = SYN[:14] + b"\x46" + SYN[15:16] + (44).to_bytes(2, "big") + SYN[18:34] + bytes((1, 1, 1, 0)) + SYN[34:]
    world.do(PacketIn(world.west, PortNo(CLIENT_PORT), world.punt_cookie, odd))
    assert PORT_NORMAL not in {getattr(a, "port_no", None) for each in out_of_hosts(world) for a in each.actions}


def test_leaving_controller_refuses_new_connections(world: World) -> None:
    world.do(Leaving())
    world.syn(40000)
    assert is_refused(world)


def test_new_requirement_overrides_plain_decisions() -> None:
    world = up(require=[])
    world.syn(40000, options=MPTCP)
    assert len(out_of_hosts(world)) == 1, "the SYN is released"
    world.do(ConfigChanged(parse(encode(required(2)))))
    world.tick(0.5)
    world.delivered.clear()
    world.syn(40000, options=MPTCP)
    assert is_refused(world)


def standing() -> World:
    made = up(setup="Proactive")
    made.tick(proactive.UNARMED_S + 1)
    assert made.service() == "Programmed/Programmed"
    return made


def test_syns_of_a_proactive_service_never_bypass_the_agent() -> None:
    world = standing()
    data = syn_frame(CLIENT, SERVER, 40000, 5001, flags=0x10)
    assert [where for where, _ in world.network.walk(AT_CLIENT, SYN)] == [AT_INGRESS]
    world.network.down.add(AT_INGRESS)
    assert world.network.walk(AT_CLIENT, SYN) == [(Location(E1, REJECT_PORT), SYN)]
    assert world.network.walk(AT_CLIENT, data) == [(Location(E1, PORT_NORMAL), data)]


def test_unarmed_service_marks_syns_and_sends_them_to_the_agent() -> None:
    world = standing()
    world.do(ConfigChanged(parse(encode(required(2, setup="Proactive", ports=[{"first": 6000, "last": 6000}])))))
    world.tick(0.5)
    ((where, frame),) = world.network.walk(AT_CLIENT, SYN)
    assert where == AT_INGRESS and frame[6:12] == proactive.UNARMED_MAC


def test_removed_requirement_removes_its_group() -> None:
    world = standing()
    assert len([g for (dpid, g) in world.network.failovers if dpid == E1]) == 2
    made = document(2)
    del made["hash"]
    made["services"] = []
    world.do(ConfigChanged(parse(encode({**made, "hash": document_hash(made)}))))
    world.tick(proactive.LEAVE_S + 10)
    assert not world.network.failovers


@given(st.binary(max_size=120))
def test_any_bytes_yield_a_valid_reset_or_none(data: bytes) -> None:
    for candidate in (data, SYN[:14] + data, SYN[:34] + data, SYN + data):
        reset = build_reset(candidate)
        assert not reset or (parse_segment(reset) is not None and not build_reset(reset))


@given(st.integers(0, 2**32 - 1), st.sampled_from([0x02, 0x10, 0x11, 0x18, 0x03]))
def test_reset_is_acceptable_and_has_correct_checksums(seq: int, flags: int) -> None:
    frame = syn_frame(CLIENT, SERVER, 40000, 5001, isn=seq, flags=flags)
    segment = parse_segment(build_reset(frame))
    assert segment is not None
    assert (segment.seq, segment.flags) == (0, 0x04 if flags & 0x10 else RST_ACK)
    assert flags & 0x10 or segment.ack == (seq + 1 + (flags & 1)) % 2**32
    reset = build_reset(frame)
    assert complete_checksum(reset) == reset
    words = [int.from_bytes(reset[14 + i : 16 + i], "big") for i in range(0, 20, 2)]
    assert sum(words) % 0xFFFF == 0
    pseudo = reset[26:34] + bytes((0, 6, 0, 20)) + reset[34:54]
    assert sum(int.from_bytes(pseudo[i : i + 2], "big") for i in range(0, len(pseudo), 2)) % 0xFFFF == 0
