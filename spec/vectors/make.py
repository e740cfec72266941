"""Reference encoder of the binary contracts: writes the golden vectors to its own folder, or compares them (--check).

The encoder follows the pages of spec/, uses only Python's standard library, and shares no code with the product, so that a mistake in the
product is not repeated in the vectors.
"""

import hashlib
import hmac
import ipaddress
import itertools
import json
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MASTER = bytes(range(32))


def expand(key: bytes, info: bytes) -> bytes:
    """Derive a key (README clause 5)."""
    return hmac.new(key, info + b"\x01", hashlib.sha256).digest()


def addr(text: str) -> bytes:
    """Write an IPv4 address in 16 bytes (README clause 2)."""
    return b"\x00" * 10 + b"\xff\xff" + ipaddress.IPv4Address(text).packed


def agent_id(site: str, pool: str, node: str) -> bytes:
    """Name an agent (README clause 6)."""
    return hashlib.sha256(f"sos/agent/{site}/{pool}/{node}".encode()).digest()[:16]


WEST, EAST = agent_id("west", "default", "edge1"), agent_id("east", "default", "edge2")
SITE1 = expand(MASTER, b"sos/site/" + struct.pack("!H", 1))
SITE2 = expand(MASTER, b"sos/site/" + struct.pack("!H", 2))
PAIR = expand(MASTER, b"sos/pair/" + struct.pack("!HH", 1, 2))
BOOT = 0x18A0_1122_3344_5566
TIME_MS = 1_774_000_000_123
UUID = bytes.fromhex("6f1c2d3e4a5b4c7d8e9f00112233445a")


def keys() -> list[dict]:
    """Vectors of key derivation."""
    rows = [("site 1", MASTER, b"sos/site/\x00\x01"), ("pair 1,2", MASTER, b"sos/pair/\x00\x01\x00\x02")]
    rows += [(label, SITE1, f"sos/{label}/".encode() + WEST) for label in ("beacon", "order/c2a", "order/a2c")]
    rows += [(label, PAIR, f"sos/{label}".encode()) for label in ("tls/dialer", "tls/acceptor")]
    out = [{"name": n, "fields": {"key": k.hex(), "info": i.hex()}, "hex": expand(k, i).hex()} for n, k, i in rows]
    out.append({"name": "agent id", "fields": {"site": "west", "pool": "default", "node": "edge1"}, "hex": WEST.hex()})
    return out


def beacon(key: bytes, f: dict) -> bytes:
    """Encode a beacon (beacon.md clause 2)."""
    name, types = f["name"].encode(), [t.encode() for t in f["service_types"]]
    tail = name + b"".join(bytes([len(t)]) + t for t in types)
    total = 120 + len(tail) + 32
    head = b"SOSB" + struct.pack("!BBHHHHH", 1, 1, f["key_id"], f["site_id"], f["flags"], total, 0)
    head += bytes.fromhex(f["agent_id"]) + struct.pack("!QQQ", f["boot_id"], f["sequence"], f["time_ms"])
    head += struct.pack(
        "!IIQHHHHH",
        f["sessions"],
        f["session_limit"],
        f["bytes_per_second"],
        f["cpu_permille"],
        f["streams"],
        f["order_port"],
        f["first_stream_port"],
        f["stream_ports"],
    )
    head += struct.pack("!BBI", len(name), len(types), 0) + addr(f["address"]) + bytes.fromhex(f["mac"].replace(":", "")) + b"\0\0"
    message = head + struct.pack("!Q", f["capacity_bps"]) + tail
    return message + hmac.new(key, message, hashlib.sha256).digest()


def beacons() -> list[dict]:
    """Vectors of the beacon."""
    key = expand(SITE1, b"sos/beacon/" + WEST)
    base = {
        "key_id": 1, "site_id": 1, "flags": 2, "agent_id": WEST.hex(), "boot_id": BOOT, "sequence": 1, "time_ms": TIME_MS, "sessions": 0,
        "session_limit": 4096, "bytes_per_second": 0, "cpu_permille": 3, "streams": 8, "order_port": 9876, "first_stream_port": 10000,
        "stream_ports": 8, "address": "10.0.0.126", "mac": "02:53:00:5f:0c:12", "capacity_bps": 0, "name": "edge1",
        "service_types": ["tcp-parallel"],
    }  # fmt: skip
    rows = [("smallest useful", base), ("draining, loaded, two service types", base | {
        "flags": 1, "sequence": 2**40 + 7, "sessions": 4095, "bytes_per_second": 117_000_000, "cpu_permille": 1250, "capacity_bps": 10**10,
        "name": "n" * 63, "service_types": ["tcp-parallel", "x" * 31]})]  # fmt: skip
    return [{"name": n, "key": key.hex(), "fields": f, "hex": beacon(key, f).hex()} for n, f in rows]


def order(key: bytes, kind: int, f: dict, body: bytes) -> bytes:
    """Encode an order (order.md clause 2)."""
    head = b"SOSO" + struct.pack("!BBHIHH", 1, kind, f["key_id"], f["controller_id"], len(body), 0) + bytes.fromhex(f["agent_id"])
    message = head + struct.pack("!QQQQ", f["boot_id"], f["sequence"], f["time_ms"], f["reply_to"]) + body
    return message + hmac.new(key, message, hashlib.sha256).digest()


def prepare_body(f: dict) -> bytes:
    """Encode the body of Prepare (order.md clause 3)."""
    body = bytes.fromhex(f["uuid"]) + struct.pack(
        "!BBHIII", f["role"], f["transport"], f["streams"], f["block_bytes"], f["queue_bytes"], f["lease_ms"]
    )
    body += addr(f["client"]) + addr(f["server"]) + struct.pack("!HHI", f["client_port"], f["server_port"], f["labels"])
    body += struct.pack("!BBBBI", f["congestion"], f["accept"], f["dscp"], f["ttl"], 0)
    return body + bytes.fromhex(f["peer_id"]) + addr(f["peer_address"]) + struct.pack("!H14x", f["peer_stream_port"])


def reported_flow(f: dict) -> bytes:
    """Encode a session of a FlowReport (order.md clause 12)."""
    head = bytes.fromhex(f["uuid"]) + struct.pack("!B3xHH", f["role"], f["client_port"], f["server_port"])
    return head + addr(f["client"]) + addr(f["server"]) + bytes.fromhex(f["peer_id"])


def path_report(f: dict) -> bytes:
    """Encode the body of a PathReport (order.md clause 13)."""
    out = struct.pack("!QHHI", f["sampled_ms"], len(f["paths"]), len(f["services"]), 0)
    for p in f["paths"]:
        out += bytes.fromhex(p["peer_id"]) + struct.pack(
            "!BBHIIIQQ", p["label"], 0, p["streams"], p["rtt_us"], p["min_rtt_us"], 0, p["sent"], p["received"]
        )
    for s in f["services"]:
        out += hashlib.sha256(s["id"].encode()).digest()[:8] + struct.pack("!IIQQ", s["sessions"], 0, s["up"], s["down"])
    return out


def plain_report(f: dict) -> bytes:
    """Encode the body of a PlainReport (order.md clause 14)."""
    out = struct.pack("!HHI", len(f["rows"]), len(f["samples"]), 0)
    for r in f["rows"]:
        out += hashlib.sha256(r["id"].encode()).digest()[:8] + struct.pack("!H6xQ", r["reason"], r["count"])
    for s in f["samples"]:
        out += hashlib.sha256(s["id"].encode()).digest()[:8] + struct.pack("!HHHH", s["reason"], 0, s["client_port"], s["server_port"])
        out += addr(s["client"]) + addr(s["server"])
    return out


def orders() -> list[dict]:
    """Vectors of every order type."""
    c2a, a2c = expand(SITE1, b"sos/order/c2a/" + WEST), expand(SITE1, b"sos/order/a2c/" + WEST)
    head = {"key_id": 1, "controller_id": 1, "agent_id": WEST.hex(), "boot_id": BOOT, "sequence": 9, "time_ms": TIME_MS, "reply_to": 0}
    prepare = {
        "uuid": UUID.hex(), "role": 1, "transport": 1, "streams": 0, "block_bytes": 0, "queue_bytes": 0, "lease_ms": 5000,
        "client": "10.0.0.11",
        "server": "10.0.0.139", "client_port": 41922, "server_port": 5003, "labels": 1, "congestion": 0, "accept": 0, "dscp": 0, "ttl": 0,
        "peer_id": EAST.hex(), "peer_address": "10.0.0.254", "peer_stream_port": 10000,
    }  # fmt: skip
    confirmed = prepare | {"role": 2, "accept": 1, "dscp": 46, "ttl": 63}
    ended = {"uuid": UUID.hex(), "reason": 1, "bytes_up": 2**33 + 1, "bytes_down": 512, "duration_ms": 90_061}
    flow = {
        "uuid": UUID.hex(), "role": 1, "client": "10.0.0.11", "client_port": 41922, "server": "10.0.0.139", "server_port": 5003,
        "peer_id": EAST.hex(),
    }  # fmt: skip
    other = flow | {"uuid": bytes(range(16)).hex(), "role": 2, "client": "10.0.0.139", "client_port": 65535, "server": "10.0.0.11"}
    flows = {"report": 79, "chunk": 1, "chunks": 2, "flows": [flow, other]}
    report = {"report": 77, "chunk": 0, "chunks": 1, "uuids": [UUID.hex(), bytes(range(16)).hex()]}
    paths = {
        "sampled_ms": 86_400_001,
        "paths": [
            {"peer_id": EAST.hex(), "label": 0, "streams": 8, "rtt_us": 59_123, "min_rtt_us": 58_990, "sent": 2**40 + 5, "received": 17},
            {"peer_id": EAST.hex(), "label": 7, "streams": 1, "rtt_us": 0, "min_rtt_us": 0, "sent": 0, "received": 2**63},
        ],
        "services": [{"id": "default/bulk", "sessions": 3, "up": 512, "down": 2**33 + 1}],
    }
    plain = {
        "rows": [{"id": "default/bulk", "reason": 0, "count": 12}, {"id": "default/bulk", "reason": 1, "count": 2**33 + 1}],
        "samples": [
            {"id": "default/bulk", "reason": 1, "client": "10.0.0.11", "client_port": 41922, "server": "10.0.0.139", "server_port": 443}
        ],
    }
    nothing = {"sampled_ms": 1, "paths": [], "services": []}
    rows = [
        ("prepare", 1, c2a, prepare, prepare_body(prepare)),
        ("prepare, confirmed", 1, c2a, confirmed, prepare_body(confirmed)),
        ("ready", 2, a2c, {"uuid": UUID.hex(), "accepted": 0}, UUID),
        ("ready, accepted", 2, a2c, {"uuid": UUID.hex(), "accepted": 1}, UUID + struct.pack("!B7x", 1)),
        ("refused", 3, a2c, {"uuid": UUID.hex(), "reason": 5}, UUID + struct.pack("!H6x", 5)),
        ("refused, unreachable", 3, a2c, {"uuid": UUID.hex(), "reason": 7}, UUID + struct.pack("!H6x", 7)),
        ("refused, port taken", 3, a2c, {"uuid": UUID.hex(), "reason": 8}, UUID + struct.pack("!H6x", 8)),
        ("refused, by the server", 3, a2c, {"uuid": UUID.hex(), "reason": 9}, UUID + struct.pack("!H6x", 9)),
        ("refused, silent server", 3, a2c, {"uuid": UUID.hex(), "reason": 11}, UUID + struct.pack("!H6x", 11)),
        ("release", 4, c2a, {"uuid": UUID.hex()}, UUID),
        ("ended", 5, a2c, ended, UUID + struct.pack("!H6xQQQ", 1, ended["bytes_up"], ended["bytes_down"], ended["duration_ms"])),
        ("ended ack", 6, c2a, {"uuid": UUID.hex()}, UUID),
        ("session report", 7, a2c, report,
         struct.pack("!IHHH6x", 77, 0, 1, 2) + b"".join(bytes.fromhex(u) for u in report["uuids"])),
        ("empty session report", 7, a2c, {"report": 78, "chunk": 0, "chunks": 1, "uuids": []}, struct.pack("!IHHH6x", 78, 0, 1, 0)),
        ("watch", 8, c2a, {}, b""),
        ("flow report", 9, a2c, flows,
         struct.pack("!IHHH6x", 79, 1, 2, 2) + b"".join(reported_flow(f) for f in flows["flows"])),
        ("path report", 10, a2c, paths, path_report(paths)),
        ("empty path report", 10, a2c, nothing, path_report(nothing)),
        ("plain report", 11, a2c, plain, plain_report(plain)),
        ("abort", 12, c2a, {"uuid": UUID.hex()}, UUID),
    ]  # fmt: skip
    out = []
    for name, kind, key, body, encoded in rows:
        h = head | ({"reply_to": 9} if kind in (2, 3, 6) else {})
        out.append(
            {"name": name, "key": key.hex(), "fields": {"type": kind, "header": h, "body": body}, "hex": order(key, kind, h, encoded).hex()}
        )
    return out


# RFC 8878: magic; one segment, two bytes of content size (less 256); a last block of the type RLE: 300 times "a"
ZSTD_300_A = bytes.fromhex("28b52ffd" + "60" + "2c00" + "630900" + "61")


def frames() -> list[dict]:
    """Vectors of the stream's opening and of every frame type."""
    hello_f = {
        "key_id": 1,
        "site_id": 1,
        "path_label": 2,
        "stream_no": 7,
        "agent_id": WEST.hex(),
        "boot_id": BOOT,
        "nonce": "11" * 16,
        "capabilities": 1,
    }
    hello = b"SOSF" + struct.pack("!BBHHBxI", 1, 1, 1, 1, 2, 7) + WEST + struct.pack("!Q", BOOT) + b"\x11" * 16 + struct.pack("!Q", 1)
    welcome_f = {
        "key_id": 1,
        "site_id": 2,
        "status": 0,
        "stream_no": 7,
        "agent_id": EAST.hex(),
        "boot_id": BOOT + 1,
        "nonce": "22" * 16,
        "capabilities": 0,
    }
    welcome = b"SOSF" + struct.pack("!BBHHBxI", 1, 2, 1, 2, 0, 7) + EAST + struct.pack("!Q", BOOT + 1) + b"\x22" * 16 + bytes(8)
    welcome += hmac.new(PAIR, b"sos/stream/welcome" + hello + welcome, hashlib.sha256).digest()
    confirm = b"SOSF" + struct.pack("!BBH", 1, 3, 1) + hmac.new(PAIR, b"sos/stream/confirm" + hello + welcome, hashlib.sha256).digest()
    out = [
        {"name": "hello", "key": PAIR.hex(), "fields": hello_f, "hex": hello.hex()},
        {"name": "welcome", "key": PAIR.hex(), "fields": welcome_f, "hex": welcome.hex()},
        {"name": "confirm", "key": PAIR.hex(), "fields": {"key_id": 1}, "hex": confirm.hex()},
    ]
    open_f = {
        "uuid": UUID.hex(),
        "client": "10.0.0.11",
        "server": "10.0.0.139",
        "client_port": 41922,
        "server_port": 443,
        "dscp": 10,
        "ttl": 128,
        "block_bytes": 65536,
        "queue_bytes": 8_388_608,
    }
    open_b = UUID + addr("10.0.0.11") + addr("10.0.0.139") + struct.pack("!HHBBHII", 41922, 443, 10, 128, 0, 65536, 8_388_608)
    session = 2**63 + 5
    rows = [
        ("open", 1, session, 0, 262_144, open_b, {"open": open_f}),
        ("opened", 2, session, 0, 262_144, b"", {}),
        ("data", 3, session, 2**40 + 3, 0, b"steroid", {"payload": b"steroid".hex()}),
        ("ack", 4, session, 2**40 + 10, 2**40 + 10 + 2**25, b"", {"backlog": 300}),
        ("fin", 5, session, 2**40 + 10, 0, b"", {}),
        ("reset", 6, session, 0, 0, struct.pack("!H", 2), {"reason": 2}),
        ("ping", 7, 0, 0x0102030405060708, 0, b"", {}),
        ("pong", 8, 0, 0x0102030405060708, 0, b"", {}),
        ("goaway", 9, 0, 0, 0, b"", {}),
        ("willing", 11, 0, 3, 0, b"", {}),
        ("probe", 12, session, 7, 0, b"", {}),
        ("marks", 14, session, 2**40 + 10, 3 << 16 | 127 << 8 | 46, b"", {"change": 3, "ttl": 127, "dscp": 46}),
        ("host-state", 13, session, 7, 1, b"", {}),
        ("connect", 15, 0, 0, 0, open_b, {"open": open_f}),
        ("connected", 16, 0, 0, 0, UUID, {"uuid": UUID.hex()}),
        ("connected, refused", 16, 0, 0, 9, UUID, {"uuid": UUID.hex()}),
        ("release", 17, 0, 0, 0, UUID, {"uuid": UUID.hex()}),
        ("compressed", 10, session, 2**40 + 10, 300, ZSTD_300_A, {"payload": ZSTD_300_A.hex()}),
    ]
    for name, kind, number, offset, credit, payload, extra in rows:
        header = struct.pack("!BBHIQQQ", kind, 0, extra.get("backlog", 0), len(payload), number, offset, credit)
        fields = {"type": kind, "session": number, "offset": offset, "credit": credit} | extra
        out.append({"name": name, "fields": fields, "hex": (header + payload).hex()})
    return out


PAIRING_SECRET = bytes(range(64, 96))
CARD_KEY = expand(PAIRING_SECRET, b"sos/card")
PAIRING = bytes(range(0x10, 0x20))
CARD = b'{"version":"v1alpha1","software":"0.1.0","sites":[],"services":[]}'
OFFER = {
    "type": 1, "key_id": 3, "pairing": PAIRING.hex(), "installation": "a1" * 16, "nonce": "33" * 16, "sequence": TIME_MS, "status": 0,
    "card": CARD.decode(),
}  # fmt: skip
ANSWER = OFFER | {"type": 2, "installation": "b2" * 16, "sequence": TIME_MS - 1000}


def card(f: dict, offer_tag: bytes = b"", key: bytes = CARD_KEY) -> bytes:
    """Encode an Offer, or the Answer to the Offer with this tag (card.md clause 4)."""
    text = f["card"].encode()
    ids = b"".join(bytes.fromhex(f[name]) for name in ("pairing", "installation", "nonce"))
    head = b"SOSC" + struct.pack("!BBH", 1, f["type"], f["key_id"]) + ids
    message = head + struct.pack("!QB3xI", f["sequence"], f["status"], len(text)) + text
    context = b"sos/card/offer" if f["type"] == 1 else b"sos/card/answer" + offer_tag
    return message + hmac.new(key, context + message, hashlib.sha256).digest()


def cards() -> list[dict]:
    """Vectors of an Offer and of Answers to it. `key` is the card key derived from `secret`."""
    offer = card(OFFER)
    rows = [
        ("offer", OFFER),
        ("answer", ANSWER),
        ("answer, not newer", ANSWER | {"status": 1}),
        ("answer, other installation", ANSWER | {"status": 2, "sequence": 0, "card": ""}),
        ("answer without a card", ANSWER | {"sequence": 0, "card": ""}),
    ]
    out = []
    for name, f in rows:
        row = {"name": name, "secret": PAIRING_SECRET.hex(), "key": CARD_KEY.hex(), "fields": f}
        to_offer = {"offer": offer.hex()} if f["type"] == 2 else {}
        out.append(row | to_offer | {"hex": card(f, offer[-32:]).hex()})
    return out


def bad_cards() -> list[dict]:
    """Messages that a receiver refuses, with the wrong field. Messages of type 2 answer the Offer of their row."""
    offer, answer = card(OFFER), card(ANSWER, card(OFFER)[-32:])
    other_offer = card(OFFER | {"nonce": "44" * 16})
    as_offer = hmac.new(CARD_KEY, b"sos/card/offer" + answer[:-32], hashlib.sha256).digest()

    def signed(kind: int, at: int, field: bytes) -> bytes:
        """Replace a field of a message and sign the result: only this field is wrong."""
        whole = offer if kind == 1 else answer
        message = whole[:at] + field + whole[at + len(field) : -32]
        context = b"sos/card/offer" if kind == 1 else b"sos/card/answer" + offer[-32:]
        return message + hmac.new(CARD_KEY, context + message, hashlib.sha256).digest()

    rows = [
        ("empty", 1, "length", b""),
        ("header cut short", 1, "length", offer[:71]),
        ("card cut short", 1, "length", offer[:100]),
        ("tag cut short", 1, "length", offer[:-1]),
        ("a byte after the tag", 1, "length", offer + b"\0"),
        ("length above the bound", 1, "length", signed(1, 68, struct.pack("!I", 262_145))),
        ("length far above the bound", 1, "length", signed(1, 68, b"\xff" * 4)),
        ("magic of a stream", 1, "magic", signed(1, 0, b"SOSF")),
        ("version 2", 1, "version", signed(1, 4, b"\2")),
        ("type 3", 1, "type", signed(1, 5, b"\3")),
        ("an answer as an offer", 1, "type", answer),
        ("key id 0", 1, "key id", signed(1, 6, b"\0\0")),
        ("offer with a status", 1, "status", signed(1, 64, b"\1")),
        ("wrong tag", 1, "tag", offer[:-1] + bytes([offer[-1] ^ 1])),
        ("signed with the secret itself", 1, "tag", card(OFFER, key=PAIRING_SECRET)),
        ("changed card", 1, "tag", offer[:80] + bytes([offer[80] ^ 1]) + offer[81:]),
        ("an offer as an answer", 2, "type", offer),
        ("status 3", 2, "status", signed(2, 64, b"\3")),
        ("another nonce", 2, "nonce", signed(2, 40, b"\x44" * 16)),
        ("another pairing", 2, "pairing", signed(2, 8, bytes(16))),
        ("another key id", 2, "key id", signed(2, 6, b"\0\4")),
        ("answer to another offer", 2, "tag", card(ANSWER, other_offer[-32:])),
        ("answer signed as an offer", 2, "tag", answer[:-32] + as_offer),
    ]
    return [
        {"name": name, "key": CARD_KEY.hex(), "type": kind, "wrong": wrong, "offer": offer.hex(), "hex": message.hex()}
        for name, kind, wrong, message in rows
    ]


def slots() -> list[dict]:
    """Vectors of the owners of slots (node-config.md clause 11): for each set of agents that accept sessions, the owner of each slot as
    a digit, "-" without an owner."""
    rows = []
    for count in range(1, 9):
        for mask in {0, 1, 1 << count >> 1, (1 << count) - 1, (1 << count) - 1 & 0b10110101, (1 << count) - 1 & 0b01101110}:
            takes = [agent for agent in range(count) if mask >> agent & 1]
            owners = ""
            for slot in range(64):
                own, others = slot % count, takes[slot // count % len(takes)] if takes else "-"
                owners += str(own if own in takes else others)
            name = f"{len(takes)} of {count} agents: {takes}"
            rows.append({"name": name, "agents": count, "takes": takes, "owners": owners})
    return sorted(rows, key=lambda row: (row["agents"], row["takes"]))


ARMED = {
    "one service: the sum of its lists": ([(64, 64, 64, 0, 0)], 192),
    "the same service twice": ([(3, 3, 3, 0, 0), (3, 3, 3, 0, 0)], 9),
    "overlapping clients": ([(4, 2, 2, 0, 0), (4, 3, 1, 2, 0)], 100),
    "separate clients and overlapping servers": ([(2, 8, 2, 0, 0), (2, 8, 2, 100, 4), (2, 8, 2, 200, 2)], 100),
    "held and not held": ([(1, 1, 2, 0, 0, True), (1, 1, 4, 0, 0), (1, 2, 4, 0, 0, True)], 100),
    "one too large": ([(9, 9, 9, 0, 0), (40, 40, 40, 4, 4), (2, 2, 2, 0, 0)], 100),
    "too large by one": ([(9, 9, 9, 0, 0), (4, 4, 4, 100, 100)], 34),
    "none fits": ([(9, 9, 9, 0, 0)], 26),
    "forty services": ([(n % 5 + 1, n % 7 + 1, n % 3 + 1, n % 11, n % 13, n % 2 == 0) for n in range(40)], 1_000),
    "forty services, some left out": ([(n % 5 + 1, n % 7 + 1, n % 3 + 1, n % 11, n % 13, n % 2 == 0) for n in range(40)], 120),
}
"""For each vector its limit and its services: numbers of clients, servers and ports, numbers of the first client and server, and whether
they are held. Values of one list are not adjacent."""


def pieces(rules: list[dict], which: frozenset, field: str) -> list[tuple]:
    """Split a field where the set of services that contain a value changes: first and last value, and the services."""
    ranges = [(index, first, last) for index in which for first, last in rules[index][field]]
    cuts = sorted({value for _, first, last in ranges for value in (first, last + 1)})
    found: list[tuple] = []
    for first, after in itertools.pairwise(cuts):
        named = frozenset(index for index, low, high in ranges if low <= first <= high)
        if found and found[-1][1] + 1 == first and found[-1][2] == named:
            found[-1] = (found[-1][0], after - 1, named)
        elif named:
            found.append((first, after - 1, named))
    return found


def regions(rules: list[dict]) -> int:
    """Count the regions of services (node-config.md clause 11)."""
    servers, ports = set(), set()
    clients = pieces(rules, frozenset(range(len(rules))), "clients")
    for *_, by_client in clients:
        table = []
        for first, last, both in pieces(rules, by_client, "servers"):
            held: list[tuple] = []
            for low, high, named in pieces(rules, both, "ports"):
                if held and held[-1][1] + 1 == low and held[-1][2] == rules[min(named)]["held"]:
                    held[-1] = (held[-1][0], high, held[-1][2])
                else:
                    held.append((low, high, rules[min(named)]["held"]))
            ports.add(tuple(held))
            table.append((first, last, tuple(held)))
        servers.add(tuple(table))
    return len(clients) + sum(map(len, servers)) + sum(map(len, ports))


def fitting(rules: list[dict], limit: int) -> list[int]:
    """Find services that fit together, in order, by halves and with at most 32 attempts."""
    kept: list[int] = []
    waiting, attempts = [list(range(len(rules)))], 0
    while waiting:
        more = waiting.pop(0)
        if not more or attempts == 32:
            continue
        attempts += 1
        if regions([rules[index] for index in kept + more]) <= limit:
            kept += more
        elif len(more) > 1:
            waiting = [more[: len(more) // 2], more[len(more) // 2 :], *waiting]
    return kept


def arming() -> list[dict]:
    """Vectors of the regions that services take at an agent, and of the services that do not fit (node-config.md clause 11)."""
    rows = []
    for name, (services, limit) in ARMED.items():
        rules = []
        for clients, servers, ports, client, server, *held in services:
            lists = {"clients": (0x0A000000 + client, clients), "servers": (0x0A010000 + server, servers), "ports": (5000, ports)}
            rules.append({field: [[first + 2 * i, first + 2 * i] for i in range(n)] for field, (first, n) in lists.items()})
            rules[-1]["held"] = bool(held and held[0])
        kept = fitting(rules, limit)
        left_out = [index for index in range(len(rules)) if index not in kept]
        rows.append({"name": name, "rules": rules, "limit": limit, "regions": regions([rules[i] for i in kept]), "leftOut": left_out})
    return rows


FILES = {
    "keys/v1.json": keys, "beacon/v1.json": beacons, "order/v1.json": orders, "frame/v1.json": frames, "card/v1.json": cards,
    "card/bad.json": bad_cards, "slots/v1.json": slots, "arming/v1.json": arming,
}  # fmt: skip


def main() -> int:
    """Write the files, or compare them with --check."""
    stale = []
    for name, rows in FILES.items():
        path, text = HERE / name, json.dumps(rows(), indent=1) + "\n"
        if "--check" in sys.argv:
            stale += [] if path.exists() and path.read_text() == text else [str(path)]
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    print("stale: " + ", ".join(stale) if stale else "vectors agree with the reference encoder")  # noqa: T201
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
