"""Site for balance tests: one switch, `edge1`, with a host at port 3 and routers that answer ARP at ports 1 and 2 (uplinks p1 and p2)."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

from controller_fake import FakeNetwork, rewritten
from controller_lab import MACS, SWITCHES, document, document_hash
from controller_world import CLIENT_PORT, World, syn_frame
from sos_controller.core.commands import PacketOut
from sos_controller.core.events import PacketIn
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.openflow.pipeline import GATEWAY_MAC, PORT_CONTROLLER, cookie_kind
from sos_controller.core.types import DatapathId, Location, MacAddress, PortNo, parse_address, parse_mac
from sos_controller.core.wire import packets

EDGE = DatapathId(SWITCHES["edge1"])
CLIENT, SERVER, GATEWAY = parse_address("10.0.0.11"), parse_address("198.51.100.7"), parse_address("10.0.0.1")
OUTSIDE = {1: parse_address("192.0.2.2"), 2: parse_address("192.0.2.6")}
ROUTERS = {1: parse_address("192.0.2.1"), 2: parse_address("192.0.2.5")}
ROUTER_MACS = {1: parse_mac("02:aa:00:00:00:01"), 2: parse_mac("02:aa:00:00:00:02")}


def config(at: str = "Controller", weights: tuple[int, int] = (1, 1), generation: int = 1, **changes: Any) -> dict[str, Any]:
    made = document(generation)
    made["sites"][0]["gateway"] = "10.0.0.1"
    uplinks = [
        {"name": f"p{i}", "address": f"192.0.2.{4 * i - 2}", "gateway": f"192.0.2.{4 * i - 3}", "weight": w}
        for i, w in enumerate(weights, start=1)
    ]
    entry = {
        **{"id": "default/spread", "priority": 100, "site": "west", "dpid": f"{EDGE:016x}", "client": "10.0.0.11"},
        **{"to": ["198.51.100.0/24"], "ports": [{"first": 80, "last": 81}], "at": at, "uplinks": uplinks, **changes},
    }
    made["services"], made["balances"] = [], [entry] if entry["at"] else []
    del made["hash"]
    return {**made, "hash": document_hash(made)}


def encode(made: dict[str, Any]) -> bytes:
    import json

    return json.dumps(made).encode()


class Home(World):
    """World of `edge1` only. Its host and two routers answer ARP unless they are in `silent`."""

    def __init__(self, made: dict[str, Any] | None = None, **more: Any) -> None:
        self.silent: set[int] = set()
        self.answers: list[tuple[int, bytes]] = []
        self.places = {CLIENT_PORT: (CLIENT, parse_mac(MACS["client"])), **{i: (ROUTERS[i], ROUTER_MACS[i]) for i in ROUTERS}}
        super().__init__(made if made is not None else config(), network=more.pop("network", FakeNetwork(wires={})), **more)
        for agent in self.agents.values():
            agent.mode = "dead"

    def _packet_out(self, command: PacketOut) -> None:
        self.delivered.append(command)
        asked = packets.parse_arp(command.data)
        for action in command.actions:
            if asked is None or not isinstance(action, Output) or action.port_no not in self.places:
                continue
            address, mac = self.places[action.port_no]
            if asked.request and asked.target == address and action.port_no not in self.silent:
                self.queue.append(PacketIn(command.dpid, action.port_no, 0, packets.build_arp_reply(asked, mac)))
            elif not asked.request:
                self.answers.append((action.port_no, command.data))

    def up(self) -> None:
        self.connect(["edge1"])
        self.tick(4)

    def ask(self, port: int, sender: int, mac: MacAddress, target: int) -> bytes | None:
        """Request an address by ARP. Return the MAC address in the answer of the switch or controller, if any. Two answers are an error."""
        self.answers.clear()
        request = packets.build_arp_request(mac, sender, target)
        self.do(PacketIn(EDGE, PortNo(port), 0, request))
        there = [frame for where, frame in self.answers if where == port]
        there += [frame for where, frame in self.network.walk(Location(EDGE, PortNo(port)), request) if where.port_no == port]
        told = [packets.parse_arp(frame) for frame in there]
        assert len(told) < 2 and all(a and (a.request, a.sender, a.target) == (False, target, sender) for a in told)
        return told[0].sender_mac if told and told[0] is not None else None

    def kinds(self) -> Counter[int]:
        return Counter(cookie_kind(e.cookie) for e in self.network.entries(EDGE))

    def open(self, sport: int, dport: int = 80, isn: int = 1) -> list[tuple[Location, bytes]]:
        """Send a SYN from the host and return its output ports. The controller forwards a punted SYN."""
        out = self.network.walk(Location(EDGE, PortNo(CLIENT_PORT)), segment(sport, dport, isn=isn))
        if [where.port_no for where, _ in out] != [PORT_CONTROLLER]:
            return out
        entry = self.network._lookup(Location(EDGE, PortNo(CLIENT_PORT)), 0, out[0][1])
        return self.punted(entry.cookie, out[0][1])

    def punted(self, cookie: int, frame: bytes) -> list[tuple[Location, bytes]]:
        commands = self.do(PacketIn(EDGE, PortNo(CLIENT_PORT), cookie, frame))
        return [each for command in commands if isinstance(command, PacketOut) for each in self.sent(command)]

    def sent(self, command: PacketOut) -> list[tuple[Location, bytes]]:
        found, frame = [], command.data
        for action in command.actions:
            if isinstance(action, Output):
                found.append((Location(command.dpid, action.port_no), frame))
            else:
                frame = rewritten(frame, action)
        return found

    def row(self) -> dict[str, Any]:
        (row,) = self.engine.balances.status()
        return row


def segment(sport: int, dport: int = 80, flags: int = 2, isn: int = 1) -> bytes:
    """Return a TCP segment from the host to the gateway's MAC address."""
    return GATEWAY_MAC + syn_frame(CLIENT, SERVER, sport, dport, isn, flags)[6:]


def answer(frame: bytes, flags: int = 0x12) -> bytes:
    """Return the server's answer to a frame, as forwarded by the router that has received the frame."""
    sport, dport = struct.unpack_from("!HH", frame, 34)
    back = syn_frame(SERVER, int.from_bytes(frame[26:30], "big"), dport, sport, 1, flags)
    return frame[6:12] + frame[:6] + back[12:]
