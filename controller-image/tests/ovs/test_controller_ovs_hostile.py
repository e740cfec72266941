"""Send forged packets from hosts behind real switches. The controller rejects and counts all of them, and its service continues.

The tests need root, openvswitch-switch and iproute2. `controller_lab` shows the topology.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator

import pytest
from controller_lab import HOSTS, SITE_KEYS, Lab, document, lab, wait
from controller_world import FakeAgent
from sos_controller.core.types import AgentId
from sos_controller.core.wire import keys, order
from sos_controller.core.wire.order import OrderType

SLOW = 30.0
STRANGER = bytes(15) + b"\x09"

CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 5001), 10).close()"

SEND = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(("eth0", 0))
for line in sys.stdin: s.send(bytes.fromhex(line))
"""

HEAR = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)); s.bind(("eth0", 3))
while True:
    d, (_, _, kind, *_) = s.recvfrom(2048)
    if kind == socket.PACKET_OUTGOING and d[12:14] == b"\\x08\\x00" and d[42:46] == sys.argv[1].encode():
        print(d.hex(), flush=True)
        break
"""


@pytest.fixture(scope="module")
def net() -> Iterator[Lab]:
    with lab("Node") as made:
        made.start_controller(document())
        for agent in ("agent1", "agent2"):
            made.start_agent(agent)
        wait("Programmed", SLOW, lambda: made.service_state() == "Programmed/Programmed")
        yield made


def dropped(net: Lab, metric: str, label: str = "") -> float:
    lines = net.get("/metrics").splitlines()
    found = [line for line in lines if line.startswith(f"sos_controller_{metric}_total{{") and (not label or f'"{label}"' in line)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def send(net: Lab, host: str, *frames: bytes) -> None:
    process = net.spawn(host, sys.executable, "-c", SEND, log="send.log")
    process.communicate("".join(f"{frame.hex()}\n" for frame in frames).encode(), timeout=SLOW)
    assert process.returncode == 0, (net.folder / "send.log").read_text()


def counted(net: Lab, metric: str, label: str, before: float, least: int = 1) -> None:
    wait(f"{metric} {label}", SLOW, lambda: dropped(net, metric, label) >= before + least)


def voice(name: str, agent_id: bytes = b"", key: bytes = b"") -> FakeAgent:
    """Return a signer for a newly started agent, optionally with another agent id or a wrong site key."""
    made = FakeAgent(name, time.time_ns())
    made.id = AgentId(agent_id or made.id)
    made.keys = {p: keys.expand(key or SITE_KEYS[made.site], p + made.id) for p in (keys.BEACON, keys.TO_AGENT, keys.FROM_AGENT)}
    return made


def overheard(net: Lab, agent: str, magic: str) -> bytes:
    """Return the next message of a kind as captured on the agent's link."""
    return bytes.fromhex(net.execute(agent, sys.executable, "-c", HEAR, magic).strip())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def goes_on(net: Lab) -> None:
    """Assert that agents, links and service are unchanged and that no bug was counted."""
    status = net.get("/v1/status")
    assert len(status["agents"]) == 2 and status["links"] == 4 and all(d["connected"] for d in status["datapaths"])
    assert net.service_state() == "Programmed/Programmed" and dropped(net, "bugs") == 0


@pytest.mark.parametrize("host", ["agent1", "client", "server"])
def test_forged_beacons_are_refused(net: Lab, host: str) -> None:
    before = dropped(net, "beacons_dropped", "tag")
    forged = voice("agent1", key=bytes(32))
    send(net, host, *(forged.beacon(now_ms()) for _ in range(3)))
    counted(net, "beacons_dropped", "tag", before, 3)
    goes_on(net)


def test_beacons_of_another_site_are_refused(net: Lab) -> None:
    before = dropped(net, "beacons_dropped", "site")
    send(net, "client", voice("agent2", agent_id=STRANGER).beacon(now_ms()))
    counted(net, "beacons_dropped", "site", before)
    goes_on(net)


@pytest.mark.parametrize("host", ["agent1", "client", "server"])
def test_replayed_beacons_are_refused_from_every_port(net: Lab, host: str) -> None:
    recorded = overheard(net, "agent1", "SOSB")
    before = dropped(net, "beacons_dropped", "replay")
    send(net, host, recorded, recorded)
    counted(net, "beacons_dropped", "replay", before, 2)
    goes_on(net)


def test_forged_and_replayed_orders_are_refused(net: Lab) -> None:
    net.execute("client", sys.executable, "-c", CONNECT, HOSTS["server"][1])  # agents report only to a controller that has sent orders
    recorded = overheard(net, "agent1", "SOSO")
    body = order.encode_ended(order.Ended(bytes(16), 0, 0, 0, 0))
    cases = {
        "replay": recorded,
        "tag": voice("agent1", key=bytes(32)).order(OrderType.ENDED, body, now_ms()),
        "agent": voice("agent1", agent_id=STRANGER).order(OrderType.ENDED, body, now_ms()),
    }
    for reason, frame in cases.items():
        before = dropped(net, "orders_dropped", reason)
        send(net, "client", frame)
        counted(net, "orders_dropped", reason, before)
    goes_on(net)


def test_foreign_lldp_frames_are_only_counted(net: Lab) -> None:
    chance = random.Random(0x88CC)
    head = bytes.fromhex("0180c200000e020000000011") + b"\x88\xcc"
    tlvs = [
        b"",
        b"\0\0",
        b"\xff\xff",
        b"\xfe\x00" * 100,
        b"\x02\x00" * 200,
        *(chance.randbytes(chance.randrange(1, 400)) for _ in range(95)),
    ]
    before = dropped(net, "probes")
    send(net, "client", *(head + tlv for tlv in tlvs))
    counted(net, "probes", "foreign", before, len(tlvs))
    goes_on(net)


def test_noise_to_the_discovery_address_is_dropped(net: Lab) -> None:
    chance = random.Random(9875)
    template = voice("agent1").up
    frames = [template[port].render(chance.randbytes(chance.randrange(300))) for port in (9875, 9876) for _ in range(100)]
    before = dropped(net, "beacons_dropped") + dropped(net, "orders_dropped")
    send(net, "client", *frames)
    wait("the noise", SLOW, lambda: dropped(net, "beacons_dropped") + dropped(net, "orders_dropped") >= before + len(frames))
    goes_on(net)
