"""Test half-open connections after an agent node dies: a probe makes the host's kernel reset the connection."""

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
    """Return and clear the bare acknowledgements that the controller has sent."""
    found = [c for c in world.delivered if (segment := parse_segment(c.data)) is not None and segment.flags == 0x10]
    world.delivered.clear()
    return found


def lost(world: World, *names: str) -> bytes:
    """Open a session, let the named agents die, and return the session's uuid."""
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
def test_host_of_a_lost_agent_is_probed_after_the_other_agent_reports_the_end(
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
        assert command.data[26:38] == towards, "the source is the other host"
        assert checksum(command.data[14:34]) == 0
        assert checksum(command.data[26:34] + struct.pack("!HH", 6, 20) + command.data[34:]) == 0
        numbers.append(segment.seq)
    assert (numbers[1] - numbers[0]) % 2**32 == 2**31, "no receive window contains both sequence numbers"


def test_hosts_whose_agents_reported_the_end_are_not_probed(world: World) -> None:
    world.syn(PORT)
    (session,) = world.engine.state.sessions
    world.end(session.uuid)
    world.tick(1.5)
    assert len(world.engine.state.sessions) == 0 and not nudges(world)


def test_no_host_is_probed_if_both_agents_are_lost(world: World) -> None:
    lost(world, INGRESS, EGRESS)
    assert len(world.engine.state.sessions) == 0 and not nudges(world)


def test_host_with_unknown_location_is_not_probed(world: World) -> None:
    uuid = lost(world, INGRESS)
    world.engine.state.hosts.forget_location(AT_CLIENT)
    world.end(uuid, [EGRESS])
    world.tick(1.5)
    assert len(world.engine.state.sessions) == 0 and not nudges(world)


KERNEL = """
import socket, sys
from sos_controller.core.types import MacAddress, flow_key, parse_address
from sos_controller.core.wire.packets import build_acknowledgement

TCP_REPAIR = 19  # closing a socket in this state sends no segment
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
def test_probe_makes_the_kernel_reset_a_half_open_connection(number: int) -> None:
    """Run in a separate network namespace. The peer's kernel has no state of the connection, as after a reset by an agent."""
    inside = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" -c "$1" "$2"', sys.executable, KERNEL, str(number))
    said = subprocess.run(inside, capture_output=True, text=True, timeout=30, check=False)
    assert (said.stdout.split(), said.stderr) == (["waits", "reset"], "")
