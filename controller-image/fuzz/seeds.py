"""Seeds of the fuzzer: the golden vectors of spec/, and one valid example of each input without a vector."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

# Under PYTHONSAFEPATH, a program's own folder is not on the import path
sys.path.extend([str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "tests")])
import documents
import targets
from controller_world import CLIENT_PORT, INGRESS_PORT, World, packet_in, syn_frame
from sos_controller.core.openflow.flow_entries import Action, GiveTurn, Goto, Match, Output, Remember, RememberAnswers, SetEthDst, TakeTurn
from sos_controller.core.types import DatapathId, Location, MacAddress, PortNo
from sos_controller.core.wire import lldp, order
from sos_controller.core.wire.order import OrderType
from sos_controller.core.wire.packets import Arp, build_arp_reply
from sos_controller.openflow import ofp, oxm

VECTORS = Path(__file__).resolve().parents[2] / "spec" / "vectors"
MAC = MacAddress(b"\x02\0\0\0\0\1")
CLIENT, SERVER = 0x0A00000B, 0x0A00008B


def _golden(kind: str) -> list[bytes]:
    return [bytes.fromhex(row["hex"]) for row in json.loads((VECTORS / kind / "v1.json").read_text())]


def _probe() -> bytes:
    return lldp.encode(targets.KEY, lldp.Probe(1, Location(DatapathId(1), PortNo(2)), targets.NOW_MS - 5), MAC)


def _frames() -> Iterator[bytes]:
    options = bytes([2, 4, 5, 0xB4, 4, 2, 8, 10]) + bytes(8) + bytes([1, 3, 3, 7])
    yield syn_frame(CLIENT, SERVER, 40000, 5001, options=options)
    yield syn_frame(CLIENT, SERVER, 40000, 5001, options=bytes([30, 12]) + bytes(10))
    longer = bytearray(syn_frame(CLIENT, SERVER, 40000, 5001))
    longer[14:15], longer[34:34] = b"\x46", bytes(4)
    yield bytes(longer)
    agent = World().agents["agent1"]
    yield agent.beacon(0)
    yield build_arp_reply(Arp(True, MAC, CLIENT, SERVER), MAC)  # type: ignore[arg-type]
    yield _probe()


def _switch() -> Iterator[bytes]:
    yield _entry((SetEthDst(MAC), Output(PortNo(3)), Goto(1)))
    yield packet_in(7, 3, syn_frame(CLIENT, SERVER, 40000, 5001))
    yield struct.pack("!BBHIB7x", 4, ofp.PORT_STATUS, 80, 0, 0) + _port(3)
    yield struct.pack("!BBHIHH", 4, ofp.ERROR, 12, 5, 1, 2)
    yield struct.pack("!BBHIHHI", 4, ofp.HELLO, 16, 1, 1, 8, 0x10)
    yield _port(1) + _port(2)
    times = (7440, 60, 100, 0x534F_0101_0D00_0001)
    yield _entry((TakeTurn(0x01010001),)) + _entry((GiveTurn(1, (PortNo(1), PortNo(2)), 7440, times[3]),))
    yield _entry((Remember(MAC, MAC, SERVER, *times),))
    yield _entry((RememberAnswers(PortNo(1), SERVER, CLIENT, MAC, *times), Output(PortNo(1))))


def _entry(actions: tuple[Action, ...]) -> bytes:
    """Return an entry as in a switch's flow-stats reply."""
    match = oxm.encode_match(Match(eth_type=0x0800, ipv4_src=(CLIENT, 0xFFFFFFFF), ip_proto=6, tcp_flags=(0, 2)))
    rest = match + ofp.encode_instructions(actions)
    return struct.pack("!HBxIIHHHH4xQQQ", 48 + len(rest), 0, 1, 2, 20_000, 0, 5, 0, 7, 3, 4) + rest


def _port(number: int) -> bytes:
    return struct.pack("!I4x6s2x16sII24x", number, MAC, b"p%d" % number, 0, 0)


def _messages() -> Iterator[bytes]:
    """Yield message streams; the first byte selects the state of the connection."""
    padded = struct.pack("!BBHIHHB3xHH4x", 4, ofp.HELLO, 24, 1, 2, 5, 0, 2, 8)  # once sent Ryu into an endless loop
    hello = struct.pack("!BBHIHHI", 4, ofp.HELLO, 16, 1, 1, 8, 0x10)
    features = struct.pack("!BBHIQIBB2xII", 4, ofp.FEATURES_REPLY, 32, 2, 1, 0, 254, 0, 0, 0)
    ports = struct.pack("!BBHIHH4x", 4, ofp.MULTIPART_REPLY, 16 + 128, 3, ofp.MULTIPART_PORT_DESC, 0) + _port(1) + _port(2)
    entry, received, status, error, *_ = _switch()
    stats = struct.pack("!BBHIHH4x", 4, ofp.MULTIPART_REPLY, 16 + len(entry), 7, ofp.MULTIPART_FLOW, 0) + entry
    echo = struct.pack("!BBHI", 4, ofp.ECHO_REQUEST, 12, 9) + b"echo"
    barrier = struct.pack("!BBHI", 4, ofp.BARRIER_REPLY, 8, 5)
    yield b"\0" + padded
    for cut in (0, 60, 252):
        yield bytes([cut]) + hello + features + ports + echo
        yield bytes([cut + 1]) + features + ports + received
        yield bytes([cut + 2]) + stats + received + status + error + echo + barrier
    yield b"\x02" + barrier * 2 + bytes(8)  # two barrier replies in a row, then malformed bytes in the same read


def _engine() -> Iterator[bytes]:
    """Yield frames. First byte: edge switch (bit 0), punted (bit 1), signed (bit 2). Second byte: port."""
    world = World()
    agent = world.agents["agent1"]
    uuid = bytes(16)
    wall = world.wall(world.now + 4)
    ended = order.encode_ended(order.Ended(uuid, 0, 1, 2, 3))
    yield bytes([0, CLIENT_PORT]) + build_arp_reply(Arp(True, MAC, CLIENT, SERVER), MAC)  # type: ignore[arg-type]
    yield bytes([2, CLIENT_PORT]) + syn_frame(CLIENT, SERVER, 40000, 5001)
    yield bytes([4, INGRESS_PORT]) + agent.beacon(wall, sequence=1_000)
    yield bytes([4, INGRESS_PORT]) + agent.order(OrderType.READY, uuid, wall)
    yield bytes([4, INGRESS_PORT]) + agent.order(OrderType.REFUSED, order.encode_refused(uuid, 1), wall)
    yield bytes([4, INGRESS_PORT]) + agent.order(OrderType.ENDED, ended, wall)
    yield from (bytes([4, INGRESS_PORT]) + frame for frame in agent.report(wall))
    yield bytes([0, CLIENT_PORT]) + _probe()


def _documents() -> list[bytes]:
    vectors = [json.loads(path.read_text()) for path in sorted((VECTORS / "config" / "bad" / "controller").glob("*"))]
    bad = [json.dumps(vector["document"]).encode() for vector in vectors]
    return [b"\0" + text for text in (*documents.TEXTS, *bad)] + [b"\1", b"\1\0\1\2", b"\1\3\7\x15\0\x20\x21", b"\1\0\x30\xe0"]


def seeds() -> dict[str, list[bytes]]:
    """Return valid inputs of every target."""
    return {
        "beacon": _golden("beacon"),
        "order": _golden("order"),
        "lldp": [b"\0" + _probe(), b"\1" + _probe()],
        "frame": list(_frames()),
        "switch": list(_switch()),
        "stream": list(_messages()),
        "document": _documents(),
        "engine": list(_engine()),
    }


def main() -> None:
    """Write the seeds of each target into a subfolder of the given folder, named after the target."""
    for name, texts in seeds().items():
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, text in enumerate(texts):
            (folder / f"seed-{number:02}").write_bytes(text)


if __name__ == "__main__":
    main()
