"""Test ICMP errors (docs/adr/0052).

Errors about segments that agents sent with addresses of hosts reach the agents. All other errors reach the hosts.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from controller_fake import E1, E2
from controller_lab import document
from controller_views import AT_CLIENT, AT_EGRESS, AT_INGRESS, AT_SERVER, CLIENT, SERVER, signed
from controller_world import World
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.commands import PacketOut
from sos_controller.core.events import PacketIn
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER, PORT_NORMAL, Kind, cookie_kind
from sos_controller.core.services.icmp_errors import MAX_PER_SECOND
from sos_controller.core.types import Location, parse_address
from sos_controller.core.wire.packets import parse_icmp_error, readdress_icmp_error

SPORT, PORT = 40000, 5001
ROUTER = parse_address("10.0.0.1")
REDIRECT_PORT = 9877


def folded(data: bytes) -> int:
    """Return the one's complement sum of 16-bit words. It is 0xFFFF if the checksum is correct."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data)) if len(data) % 2 == 0 else folded(data + b"\0")
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def checked(header: bytes, at: int) -> bytes:
    return header[:at] + (0xFFFF - folded(header[:at] + bytes(2) + header[at + 2 :])).to_bytes(2, "big") + header[at + 2 :]


def ip(source: int, target: int, proto: int, body: bytes, options: bytes = b"") -> bytes:
    length = 20 + len(options)
    return (
        checked(
            struct.pack("!BBHHHBBHII", 0x40 | length // 4, 0, length + len(body), 7, 0x4000, 64, proto, 0, source, target) + options, 10
        )
        + body
    )


def error(
    source: int,
    target: int,
    sport: int,
    dport: int,
    kind: int = 3,
    code: int = 4,
    to: int | None = None,
    options: bytes = b"",
    more: bytes = b"",
) -> bytes:
    """Return a router's error about a segment from source to target."""
    quoted = ip(source, target, 6, struct.pack("!HHI", sport, dport, 77) + more, options)
    said = checked(struct.pack("!BBHHH", kind, code, 0, 0, 1400) + quoted, 2)
    return b"\x02" * 12 + b"\x08\x00" + ip(ROUTER, source if to is None else to, 1, said)


INGRESS = error(SERVER, CLIENT, PORT, SPORT)
"""Error about a segment from the ingress agent to the client, with the server's address as source."""
EGRESS = error(CLIENT, SERVER, SPORT, PORT)


def up(**more: Any) -> World:
    made = document(**more)
    world = World(made)
    world.converge()
    world.syn(SPORT)
    return world


def copied(world: World, where: Location, frame: bytes) -> list[PacketOut]:
    """Deliver a copy of a frame by the switch's ICMP entry. Return the resulting packet-outs."""
    cookie = next(e.cookie for e in world.network.entries(where.dpid) if cookie_kind(e.cookie) == Kind.ICMP)
    return [c for c in world.do(PacketIn(*where, cookie, frame)) if isinstance(c, PacketOut)]


@pytest.mark.parametrize(("kind", "code"), [(3, code) for code in range(16)] + [(11, 0), (11, 1), (12, 0)])
def test_errors_about_segments_of_an_agent_are_copied_to_the_agent(kind: int, code: int) -> None:
    world = up()
    for where, agent, name, frame in (
        (AT_CLIENT, AT_INGRESS, "agent1", error(SERVER, CLIENT, PORT, SPORT, kind, code)),
        (AT_SERVER, AT_EGRESS, "agent2", error(CLIENT, SERVER, SPORT, PORT, kind, code)),
    ):
        assert {at.port_no for at, _ in world.network.walk(where, frame)} == {PORT_CONTROLLER, PORT_NORMAL}
        (sent,) = copied(world, where, frame)
        assert (sent.dpid, sent.actions) == (agent.dpid, (Output(agent.port_no),))
        assert sent.data == world.agents[name].mac + frame[6:]


@pytest.mark.parametrize(
    "frame",
    [
        error(SERVER, CLIENT, PORT, SPORT + 1),
        error(SERVER, CLIENT, PORT + 1, SPORT),
        error(SERVER, CLIENT, PORT, SPORT, to=CLIENT),
        error(SERVER, CLIENT, PORT, SPORT, kind=5),
        INGRESS[:60],
    ],
    ids=["another connection", "another port", "to another host than quoted", "a redirect", "cut short"],
)
def test_errors_of_no_session_reach_only_the_host(frame: bytes) -> None:
    world = up()
    assert copied(world, AT_CLIENT, frame) == []
    assert (Location(E1, PORT_NORMAL), frame) in world.network.walk(AT_CLIENT, frame)


def test_errors_are_accepted_only_at_the_site_of_their_agent() -> None:
    """The ingress agent's segments to the client do not pass the routers of the egress site."""
    world = up()
    assert copied(world, AT_SERVER, INGRESS) == []
    assert copied(world, AT_CLIENT, EGRESS) == []


def test_echoes_and_packets_from_agents_are_not_copied() -> None:
    world = up()
    echo = INGRESS[:34] + b"\x08" + INGRESS[35:]
    assert world.network.walk(AT_CLIENT, echo) == [(Location(E1, PORT_NORMAL), echo)]
    assert world.network.walk(AT_INGRESS, INGRESS) == [(Location(E1, PORT_NORMAL), INGRESS)]


def test_rewriting_site_readdresses_the_quoted_segment_to_the_agent() -> None:
    made = document()
    for site in made["sites"]:
        site["rewrite"] = "OpenFlow" if site["agents"] else site["rewrite"]
    world = World(signed(made))
    world.converge()
    world.syn(SPORT)
    for where, name, frame, port in ((AT_CLIENT, "agent1", INGRESS, REDIRECT_PORT), (AT_SERVER, "agent2", EGRESS, SPORT)):
        (sent,) = copied(world, where, frame)
        own = world.agents[name].address
        read = parse_icmp_error(sent.data)
        assert read is not None and (read.target, read.source, read.source_port) == (own, own, port)
        assert (read.destination, read.destination_port) == ((CLIENT, SPORT) if name == "agent1" else (SERVER, PORT))


def test_icmp_error_processing_is_rate_limited() -> None:
    world = up()
    world.now = float(int(world.now) + 1)
    sent = sum(len(copied(world, AT_CLIENT, INGRESS)) for _ in range(MAX_PER_SECOND + 50))
    assert sent == MAX_PER_SECOND
    world.now += 1.0
    assert len(copied(world, AT_CLIENT, INGRESS)) == 1


def test_proactive_service_redirects_errors_by_prefix() -> None:
    made = document()
    made["services"][0]["setup"] = "Proactive"
    world = World(signed(made))
    world.converge()
    world.tick(8.0)
    for where, agent, name, frame in ((AT_CLIENT, AT_INGRESS, "agent1", INGRESS), (AT_SERVER, AT_EGRESS, "agent2", EGRESS)):
        assert world.network.walk(where, frame) == [(agent, world.agents[name].mac + frame[6:])]


@given(
    st.binary(max_size=20).map(lambda b: b + bytes(-len(b) % 4)),
    st.binary(max_size=600),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 0xFFFF),
)
def test_readdressed_error_has_correct_checksums(options: bytes, more: bytes, address: int, port: int) -> None:
    frame = error(SERVER, CLIENT, PORT, SPORT, options=options, more=more)
    made = readdress_icmp_error(frame, address, port)
    read = parse_icmp_error(made)
    assert len(made) == len(frame) and read is not None
    assert (read.target, read.source, read.source_port, read.destination, read.destination_port) == (address, address, port, CLIENT, SPORT)
    quoted = 42 + (made[42] & 15) * 4
    assert folded(made[14:34]) == folded(made[34:]) == folded(made[42:quoted]) == 0xFFFF


@given(st.binary(max_size=120))
def test_any_bytes_parse_as_an_icmp_error_or_none(data: bytes) -> None:
    for frame in (data, INGRESS[:23] + data, INGRESS[:42] + data, INGRESS[: len(data)]):
        read = parse_icmp_error(frame)
        assert read is None or len(readdress_icmp_error(frame, 1, 2)) == len(frame)


def test_icmp_entries_are_on_all_switches_of_both_sites() -> None:
    world = up()
    for dpid, target in ((E1, SERVER), (E2, CLIENT)):
        found = [e for e in world.network.entries(dpid) if cookie_kind(e.cookie) == Kind.ICMP]
        assert sorted(e.match.icmp_type or 0 for e in found) == [3, 11, 12]
        assert all(e.match.ipv4_dst is not None and target & e.match.ipv4_dst[1] == e.match.ipv4_dst[0] for e in found)
