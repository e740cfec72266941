"""Fake agent that speaks the real protocol: it sends beacons and answers orders. A packet socket replaces the relay.

The process runs inside an agent's namespace. It logs received orders and redirected TCP packets as JSON lines. It answers a redirected SYN
with a SYN-ACK from the server's address, as a transparent socket would. With `--refuse`, it answers Prepare orders with Refused. With
`--silent`, it leaves them unanswered. A line `end` on standard input ends all sessions.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time
from pathlib import Path

from sos_controller.core.types import AgentId, parse_address, parse_mac
from sos_controller.core.wire import beacon, keys, order
from sos_controller.core.wire.beacon import Beacon
from sos_controller.core.wire.order import Header, OrderType

BEACON_PORT, ORDER_PORT, DISCOVERY = 9875, 9876, "198.18.255.254"


class FakeAgent:
    def __init__(self, arguments: list[str]) -> None:
        self.id, self.site, site_key = AgentId(bytes.fromhex(arguments[0])), int(arguments[1]), bytes.fromhex(arguments[2])
        self.address, self.mac, self.name = parse_address(arguments[3]), parse_mac(arguments[4]), arguments[5]
        self.log = Path(arguments[6]).open("a", buffering=1)  # noqa: SIM115 - lives as long as the process
        self.refuse, self.silent = "--refuse" in arguments, "--silent" in arguments
        self.keys = {p: keys.expand(site_key, p + self.id) for p in (keys.BEACON, keys.TO_AGENT, keys.FROM_AGENT)}
        self.boot = time.time_ns()
        self.sequence = self.beacons = self.reports = 0
        self.sessions: dict[bytes, int] = {}
        self.controllers: set[int] = set()
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind((arguments[3], ORDER_PORT))
        self.raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        self.raw.bind(("eth0", 0))

    def write(self, what: str, **fields: object) -> None:
        self.log.write(json.dumps({"what": what, **fields}) + "\n")

    def beacon(self) -> None:
        self.beacons += 1
        said = Beacon(
            key_id=1, site_id=self.site, flags=2, agent_id=self.id, boot_id=self.boot, sequence=self.beacons,
            time_ms=time.time_ns() // 10**6,
            sessions=len(self.sessions), session_limit=4096, bytes_per_second=0, cpu_permille=1, streams=8, order_port=ORDER_PORT,
            first_stream_port=10000, stream_ports=8, address=self.address, mac=self.mac, capacity_bps=0, name=self.name,
            service_types=("tcp-parallel",),
        )  # fmt: skip
        self.udp.sendto(beacon.encode(said, self.keys[keys.BEACON]), (DISCOVERY, BEACON_PORT))

    def report(self) -> None:
        self.reports += 1
        body = order.encode_report(order.Report(self.reports, 0, 1, tuple(self.sessions)))
        for controller in self.controllers:
            self.send(OrderType.SESSION_REPORT, body, 0, controller)

    def send(self, kind: OrderType, body: bytes, reply_to: int, controller: int) -> None:
        self.sequence += 1
        header = Header(kind, 1, controller, self.id, self.boot, self.sequence, time.time_ns() // 10**6, reply_to)
        self.udp.sendto(order.encode(header, body, self.keys[keys.FROM_AGENT]), (DISCOVERY, ORDER_PORT))

    def obey(self, data: bytes) -> None:
        header = order.decode_header(data)
        if not order.signed_by(data, self.keys[keys.TO_AGENT]) or header.agent_id != self.id:
            self.write("forged")
            return
        body = order.body(data)
        self.controllers.add(header.controller_id)
        if header.type == OrderType.PREPARE:
            p = order.decode_prepare(body)
            ports = {"client_port": p.client_port, "server_port": p.server_port}
            self.write("prepare", uuid=p.uuid.hex(), role=p.role, labels=p.labels, boot=header.boot_id, **ports)
            if self.silent:
                return
            if self.refuse:
                self.send(OrderType.REFUSED, order.encode_refused(p.uuid, 1), header.sequence, header.controller_id)
                return
            self.sessions[p.uuid] = header.controller_id
            self.send(OrderType.READY, p.uuid, header.sequence, header.controller_id)
        elif header.type == OrderType.RELEASE:
            self.sessions.pop(body, None)
            self.write("release", uuid=body.hex())
        elif header.type == OrderType.ENDED_ACK:
            self.write("ended-ack", uuid=body.hex())

    def packet(self, frame: bytes) -> None:
        """Log redirected TCP packets, whose destination is not the agent's own address, and answer SYNs."""
        if frame[:6] != self.mac or frame[23] != 6 or frame[30:34] == self.address.to_bytes(4, "big"):
            return
        at = 14 + (frame[14] & 15) * 4
        sport, dport, seq, flags = struct.unpack_from("!HHI5xB", frame, at)
        end = 14 + (frame[16] << 8 | frame[17])
        right = checksum(frame[26:34] + struct.pack("!HH", 6, end - at) + frame[at:end]) == 0
        payload = frame[at + (frame[at + 12] >> 4) * 4 : end]
        self.write(
            "tcp", source=socket.inet_ntoa(frame[26:30]), target=socket.inet_ntoa(frame[30:34]), sport=sport, dport=dport, flags=flags,
            checksum=right, payload=payload.decode(errors="replace"), isn=seq,
        )  # fmt: skip
        if flags & 0x17 == 2:
            self.answer(frame, sport, dport, seq)

    def answer(self, frame: bytes, sport: int, dport: int, seq: int) -> None:
        """Send a SYN-ACK from the server's address to the client's MAC address, as a transparent socket does."""
        head = struct.pack("!HHIIBBHHH", dport, sport, 1000, (seq + 1) & 0xFFFFFFFF, 5 << 4, 0x12, 65000, 0, 0)
        addresses = frame[30:34] + frame[26:30]
        total = checksum(addresses + struct.pack("!HH", 6, len(head)) + head)
        tcp = head[:16] + struct.pack("!H", total) + head[18:]
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + addresses
        ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
        self.raw.send(frame[6:12] + self.mac + b"\x08\x00" + ip + tcp)

    def end_all(self) -> None:
        for uuid, controller in list(self.sessions.items()):
            del self.sessions[uuid]
            self.send(OrderType.ENDED, order.encode_ended(order.Ended(uuid, 0, 1, 2, 3)), 0, controller)

    def serve(self) -> None:
        due = {"beacon": 0.0, "report": time.monotonic() + 1}
        while True:
            readable, _, _ = select.select([self.udp, self.raw, sys.stdin], [], [], 0.1)
            if self.udp in readable:
                self.obey(self.udp.recv(2048))
            if self.raw in readable:
                self.packet(self.raw.recv(65536))
            if sys.stdin in readable and sys.stdin.readline().strip() == "end":
                self.end_all()
            now = time.monotonic()
            if now >= due["beacon"]:
                due["beacon"] = now + 0.5
                self.beacon()
            if now >= due["report"]:
                due["report"] = now + 1
                self.report()


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) & 1)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


if __name__ == "__main__":
    FakeAgent(sys.argv[1:]).serve()
