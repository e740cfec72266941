"""Half-open host connections after an agent node dies: the peer host's kernel resets them."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest
from controller_agent import checksum
from controller_lab import MACS
from controller_views import AT_CLIENT, AT_SERVER, CLIENT, SERVER
from controller_world import World
from sos_controller.core.commands import PacketOut
from sos_controller.core.events import PacketIn
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.sessions.half_open import PROBES
from sos_controller.core.types import Location, flow_key, parse_mac
from sos_controller.core.wire.packets import build_arp_request, parse_segment

INGRESS, EGRESS, PORT = "agent1", "agent2", 40000
TO_SERVER = flow_key(CLIENT, SERVER, PORT, 5001)
TO_CLIENT = flow_key(SERVER, CLIENT, 5001, PORT)


def nudges(world: World) -> list[PacketOut]:
    """Bare acknowledgements that were let out at an edge."""
    found = [c for c in world.delivered if (segment := parse_segment(c.data)) is not None and segment.flags == 0x10]
    world.delivered.clear()
    return found


def lost(world: World, *names: str) -> bytes:
    """One session, and agents that are heard no more."""
    world.syn(PORT)
    (session,) = world.engine.state.sessions
    world.do(PacketIn(*AT_SERVER, 0, build_arp_request(parse_mac(MACS["server"]), SERVER, CLIENT)))
    for name in names:
        world.agents[name].mode = "dead"
    world.tick(5)
    return session.uuid


@pytest.mark.parametrize(
    ("dead", "other", "where", "towards"),
    [(INGRESS, EGRESS, AT_CLIENT, TO_CLIENT), (EGRESS, INGRESS, AT_SERVER, TO_SERVER)],
    ids=["ingress", "egress"],
)
def test_the_host_of_a_lost_agent_is_nudged_once_the_other_side_is_over(
    world: World, dead: str, other: str, where: Location, towards: bytes
) -> None:
    uuid = lost(world, dead)
    assert not nudges(world), "the other host still has the connection"
    world.end(uuid, [other])
    world.tick(1.5)
    sent = nudges(world)
    assert [command.after_s for command in sent] == [0.0, 2.0]
    assert {(command.dpid, command.actions) for command in sent} == {(where.dpid, (Output(where.port_no),))}
    numbers = []
    for command in sent:
        segment = parse_segment(command.data)
        assert segment is not None and segment.size == 0
        assert command.data[26:38] == towards, "as from the other host"
        assert checksum(command.data[14:34]) == 0
        assert checksum(command.data[26:34] + struct.pack("!HH", 6, 20) + command.data[34:]) == 0
        numbers.append(segment.seq)
    assert (numbers[1] - numbers[0]) % 2**32 == 2**31, "no window holds both"


def test_hosts_whose_agents_reported_the_end_are_not_probed(world: World) -> None:
    world.syn(PORT)
    (session,) = world.engine.state.sessions
    world.end(session.uuid)
    world.tick(1.5)
    assert len(world.engine.state.sessions) == 0 and not nudges(world)


def test_no_host_is_probed_if_both_agents_are_lost(world: World) -> None:
    lost(world, INGRESS, EGRESS)
    assert len(world.engine.state.sessions) == 0 and not nudges(world)


def test_an_unknown_host_is_not_probed(world: World) -> None:
    uuid = lost(world, INGRESS)
    world.engine.state.hosts.forget_location(AT_CLIENT)
    world.end(uuid, [EGRESS])
    world.tick(1.5)
    assert len(world.engine.state.sessions) == 0 and not nudges(world)


KERNEL = """
import socket, sys
from sos_controller.core.types import MacAddress, flow_key, parse_address
from sos_controller.core.wire.packets import build_acknowledgement

TCP_REPAIR = 19  # a socket that is closed in this state says nothing to its peer
listener = socket.create_server(("127.0.0.2", 5001))
client = socket.create_connection(("127.0.0.2", 5001), source_address=("127.0.0.1", 40000))
server, _ = listener.accept()
client.sendall(b"question")
assert server.recv(100) == b"question"
server.sendall(b"answer")
assert client.recv(100) == b"answer"
server.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
server.close()
listener.close()
client.settimeout(0.5)
try:
    client.recv(100)
except TimeoutError:
    print("waits")
nobody = MacAddress(bytes(6))
key = flow_key(parse_address("127.0.0.2"), parse_address("127.0.0.1"), 5001, 40000)
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("lo", 0))
wire.send(build_acknowledgement(nobody, nobody, key, int(sys.argv[1])))
client.settimeout(5)
try:
    client.recv(100)
except ConnectionResetError:
    print("reset")
"""


@pytest.mark.parametrize("number", [number for _, number in PROBES])
def test_a_kernel_whose_peer_is_gone_without_a_word_resets_when_it_is_nudged(number: int) -> None:
    """In a network namespace of its own; the peer's kernel knows nothing of the connection, as that of a host whose agent has reset it."""
    inside = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" -c "$1" "$2"', sys.executable, KERNEL, str(number))
    said = subprocess.run(inside, capture_output=True, text=True, timeout=30, check=False)
    assert (said.stdout.split(), said.stderr) == (["waits", "reset"], "")
