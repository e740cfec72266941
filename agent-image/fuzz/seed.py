"""Write the seeds of the corpus from the golden vectors of spec/, signed with the fuzzing key.

Fuzzing itself extends the corpus; interesting inputs are committed by hand.
"""

import hashlib
import hmac
import json
import struct
from pathlib import Path

HERE = Path(__file__).resolve().parent
VECTORS = HERE.parent.parent / "spec" / "vectors"
KEY = bytes([7] * 32)

ANSWERS = {
    "flows": " cookie=0x534f000100000000, table=0, hard_timeout=5, priority=20000,in_port=2 actions=resubmit(,1)\n",
    "replies": "OFPT_FLOW_MOD (OF1.3) (xid=0x2): ADD table:0 priority=1 cookie:0x1 actions=drop\n",
    "ports": " 1(wan0): addr:02:00:00:00:00:01\n     config:     NO_FLOOD\n     state:      0\n",
    "links": '[{"ifname":"wan0","mtu":1500,"address":"02:00:00:00:00:01","flags":["UP"]}]',
    "rows": '{"headings":["name","other_config"],"data":[["br-sos",["map",[["hwaddr","02:00:00:00:00:01"]]]]]}',
}
"""Shortened output of ovs-ofctl, ovs-vsctl and ip."""


XORSHIFT = 0x9E3779B97F4A7C15
for _shift in (13, -7, 17):
    XORSHIFT = (XORSHIFT ^ (XORSHIFT << _shift if _shift > 0 else XORSHIFT >> -_shift)) & (2**64 - 1)
"""The first bytes of a probe's pattern, as in crates/sos-probe/src/transfer/pattern.rs."""


def vectors(kind: str) -> dict[str, bytes]:
    """Return the golden bytes of a kind, by name."""
    rows = json.loads((VECTORS / kind / "v1.json").read_text())
    return {row["name"].replace(",", "").replace(" ", "-"): bytes.fromhex(row["hex"]) for row in rows}


def checksum(data: bytes) -> int:
    """Return the one's complement sum of 16-bit words (RFC 1071), not complemented."""
    total = sum(int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def syns() -> dict[str, bytes]:
    """Return a SYN, a SYN with a checksum left to a network card, the message of nfnetlink_log with each SYN, and answers to a check."""
    ip = bytes.fromhex("4528002c1234400040060000") + bytes([10, 0, 0, 11, 10, 0, 0, 139])
    tcp = struct.pack("!HHIIBBHHH", 40_000, 5_000, 7, 0, 0x60, 2, 0xFAF0, 0, 0) + bytes([2, 4, 5, 0xB4])
    pseudo = ip[12:20] + bytes([0, 6, 0, len(tcp)])
    found = {}
    for name, field in (("whole", 0xFFFF ^ checksum(pseudo + tcp)), ("partial", checksum(pseudo))):
        packet = ip + tcp[:16] + struct.pack("!H", field) + tcp[18:]
        body = bytes([2, 0]) + struct.pack("!H", 5_345) + struct.pack("=HH", 4 + len(packet), 9) + packet
        found |= {name: packet, f"copy-{name}": struct.pack("=IHHII", 16 + len(body), 4 << 8, 0, 0, 0) + body}
    answer = ip[:12] + ip[16:20] + ip[12:16] + struct.pack("!HHII", 5_000, 40_000, 9, 8) + bytes([0x60, 0x12]) + tcp[14:]
    error = ip[:9] + bytes([1, 0, 0]) + ip[16:20] + ip[12:16] + bytes([3, 13, 0, 0, 0, 0, 0, 0]) + ip + tcp[:8]
    return found | {"answer": answer, "unreachable": error}


def tag(message: bytes) -> bytes:
    """Return the HMAC-SHA256 under the key of the corpus."""
    return hmac.new(KEY, message, hashlib.sha256).digest()


def write(target: str, name: str, data: bytes) -> None:
    """Write one file of a target's corpus."""
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def config(generation: int, **changes: object) -> bytes:
    """Return an agent-config with its hash (spec/node-config.md section 3)."""
    document = {
        "version": "v1alpha1", "node": "edge1", "pool": "default", "agentId": "39b04f05ee16a2b7d5a16e9e68355a2f",
        "site": {"name": "west", "id": 1, "prefixes": ["10.0.0.0/25"], "rewrite": "Transparent"},
        "interface": {"name": "net0", "address": "10.0.0.126/24", "mac": "02:53:00:5f:0c:12", "mtu": 1500,
                      "gateway": None, "hostName": "sosag0", "hostPort": 201},
        "discovery": {"address": "198.18.255.254", "mac": "02:53:4f:53:00:01", "beaconPort": 9875, "orderPort": 9876, "redirectPort": 9877},
        "streamPorts": {"first": 10000, "count": 8},
        "peers": [{"site": "east", "siteID": 2, "prefixes": ["10.0.0.128/25"],
                   "agents": [{"id": "ad030578ad55bf67de8f32bef31dd55b", "node": "edge2", "address": "10.0.0.254",
                               "firstStreamPort": 10000}]}],
        "services": [{"id": "default/bulk", "role": "Ingress", "peer": "east", "setup": "Reactive",
                      "from": ["10.0.0.0/25"], "to": ["10.0.0.128/25"], "ports": [{"first": 22, "last": 22}],
                      "transport": {"streams": 0, "blockBytes": 0, "queueBytes": 0, "congestionControl": "Auto"}, "labels": 1}],
        "limits": {"sessions": 4096, "memoryMiB": 1024, "sessionMemoryMiB": 32},
        "metricsAddress": "0.0.0.0:9465", "drainSeconds": 60,
    } | changes  # fmt: skip
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    digest = "sha256:" + hashlib.sha256(canonical).hexdigest()
    return json.dumps(document | {"generation": generation, "hash": digest}, ensure_ascii=False).encode()


def cards() -> dict[str, bytes]:
    """Return an Offer, two Answers to the Offer of src/card.rs, and a document of peers (spec/card.md)."""
    rows = vectors("card")
    offer = rows["offer"][:-32]
    head = b"SOSC" + struct.pack("!BBH", 1, 1, 3) + b"\x11" * 16 + b"\xa1" * 16 + b"\x33" * 16 + struct.pack("!QII", 1, 0, 2) + b"{}"
    context = b"sos/card/answer" + tag(b"sos/card/offer" + head)
    found = {"offer": offer + tag(b"sos/card/offer" + offer)}
    for name in ("answer", "answer-other-installation"):
        message = rows[name][:8] + head[8:24] + rows[name][24:40] + head[40:56] + rows[name][56:-32]
        found[name] = message + tag(context + message)
    peer = {"pairing": "11" * 16, "installation": "a1" * 16, "sequence": 1, "card": "{}"}
    document = {"version": "v1alpha1", "port": 14790, "installation": "b2" * 16, "peers": [peer]}
    return found | {"peers": json.dumps(document).encode()}


def virtio(gso: int, size: int, start: int, offset: int) -> bytes:
    """Return a `virtio_net_hdr` with a checksum to be completed."""
    return struct.pack("=BBHHHH", 1, gso, 0, size, start, offset)


def offloads() -> dict[str, bytes]:
    """Return seeds of `offload`: end of the first buffer, `virtio_net_hdr`, and a frame received from a port (agent-image/ovs/buffers)."""
    ethernet, tag_ = bytes(12), b"\x81\x00\x00\x07"
    tcp, udp = struct.pack("!HHIIBBHHH", 1, 2, 3, 4, 0x50, 0x10, 9, 0, 0) + b"x" * 80, struct.pack("!HHHH", 1, 2, 88, 0) + b"x" * 80

    def ipv4(protocol: int, payload: bytes) -> bytes:
        return struct.pack("!BBHHHBBHII", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0, 0x0A000001, 0x0A000002) + payload

    def ipv6(first: int, payload: bytes) -> bytes:
        return struct.pack("!IHBB", 6 << 28, len(payload), first, 64) + bytes(32) + payload

    whole, inner = b"\x7f\xff", ethernet + b"\x08\x00" + ipv4(6, tcp)
    tunnel = struct.pack("!HHHH", 1, 4789, 16 + len(inner), 0) + bytes(8) + inner
    return {
        "tcp-segments": whole + virtio(1, 40, 34, 16) + inner,
        "tcp-segments-ecn": whole + virtio(0x81, 40, 34, 16) + inner,
        "tagged-udp-segments": whole + virtio(5, 40, 38, 6) + ethernet + tag_ + b"\x08\x00" + ipv4(17, udp),
        "ipv6-tcp-segments": whole + virtio(4, 40, 54, 16) + ethernet + b"\x86\xdd" + ipv6(6, tcp),
        "behind-options": whole + virtio(0, 0, 62, 6) + ethernet + b"\x86\xdd" + ipv6(60, b"\x11" + bytes(7) + udp),
        "in-a-tunnel": b"\x00\x3c" + virtio(0, 0, 84, 16) + ethernet + b"\x08\x00" + ipv4(17, tunnel),
    }


def with_parts(files: dict[str, dict[str, object]]) -> bytes:
    """Return a document with its parts in place of their hashes (spec/node-config.md clause 46)."""
    (document,) = (content for name, content in files.items() if not name.startswith("part-"))
    include = [files[f"part-{name.removeprefix('sha256:')}.json"] for name in document["include"]]
    return json.dumps({**document, "include": include}).encode()


def main() -> None:
    """Write all seeds."""
    for name, data in offloads().items():
        write("offload", name, data)
    for name, data in cards().items():
        write("card", name, data)
    write("card", "agent-config", config(12))
    for kind in ("beacon", "order"):
        for name, data in vectors(kind).items():
            write(kind, name, data[:-32] + tag(data[:-32]))
    frames = vectors("frame")
    hello, welcome = frames.pop("hello"), frames.pop("welcome")
    write("handshake", "exchange", hello + welcome[:64] + tag(b"sos/stream/welcome" + hello + welcome[:64]))
    frames.pop("confirm")
    for name, data in frames.items():
        write("frame", name, data)
    write("frame", "all", b"".join(frames.values()))
    opened, data, fin = frames["opened"], frames["data"], frames["fin"]
    turn = b"\x07\x00"
    write(
        "session", "opener", b"\x00\x03\x01\x01\x10" + turn + b"\x00" + opened + b"\x00" + data + b"\x06\xff" + turn + b"\x00" + fin + turn
    )
    write(
        "session",
        "acceptor",
        b"\x01\x03\x01\x05\x00\x00" + data + b"\x06\xff\x01\x20" + turn + b"\x04\x01\x03\x02" + turn + b"\x08\xff" * 3,
    )
    small = frames["compressed"][32:]
    write("block", "compressed", (300).to_bytes(4, "big") + small)
    write("block", "less-than-declared", (301).to_bytes(4, "big") + small)
    write("block", "text", b"compressible " * 60)
    write("session", "compressed", b"\x01\x03\x01\x05\x00\x00" + frames["compressed"] + b"\x06\xff" + turn)
    write("records", "said", b"\x03" + b"\x03\x05hello" + b"\x02\x10" + bytes(range(16)) + b"\x04\x01!")
    write("records", "changed", b"\x10" + b"\x03\x05hello" + b"\x09\x05never" + b"\x03\x05heard")
    write("records", "forged", b"\x00" + b"\x03\x02no" + b"\x00\x07\x17\x03\x03\x00\x02??" + b"\x03\x02no")
    write("records", "unfinished", b"\xff" + b"\x02\x40" + bytes(64) + b"\x00\x03\x17\x03\x03")
    for name, data in syns().items():
        write("syn", name, data)
    for path in sorted((VECTORS / "config" / "node").glob("01-*edge1.json")):
        write("node_config", path.stem, path.read_bytes())
    for kind, target in (("node", "node_config"), ("agent", "config")):
        path = VECTORS / "config" / "parts" / kind / "clemson-1.json"
        write(target, "with-parts", with_parts(json.loads(path.read_bytes())["files"]))
    for name, text in ANSWERS.items():
        write("answers", name, text.encode())
    write("probe", "request", b"\x00SOSPROB1\x01\x00\x03")
    write("probe", "greeting", b"\x01\x0f10.0.0.11:40000")
    write("probe", "nothing-sent", b"\x02" + bytes(12))
    pattern = XORSHIFT.to_bytes(8, "little")[:5]
    write("probe", "transfer", b"\x02\x00\x00\x00\x05" + pattern + bytes(4) + (5).to_bytes(8, "big"))
    write("probe", "confirmed", b"\x03" + b"".join(count.to_bytes(8, "big") for count in (65_536, 200_000, 65_536, 2**64 - 2, 2**64 - 1)))
    write("probe", "packet", b"\x04SOSPROB1\x01\x05\xdc")
    write("config", "one-service", config(1))
    write("config", "nothing", config(2, peers=[], services=[]))
    write("config", "not-json", b'{"version": ')


if __name__ == "__main__":
    main()
