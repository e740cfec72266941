"""Simulated network around an engine, without sockets or clocks.

Switches answer barriers, wires carry probes, and agents speak the protocol. Two sites (`west`, `east`) have one edge switch each, joined
over `core1` and `core2`. The client is at port 3 of west, the server at port 3 of east, and agents are at port 4.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from controller_fake import FakeNetwork, one_by_one
from controller_lab import AGENTS, HOSTS, MACS, SITE_KEYS, SWITCHES, document
from sos_controller.core.commands import (
    Apply,
    ApplyGroup,
    Barrier,
    Command,
    Echo,
    Install,
    Notice,
    PacketOut,
    ReadEntries,
    ReadTables,
    SessionOver,
    Withdraw,
)
from sos_controller.core.engine import Engine
from sos_controller.core.events import (
    BarrierReplies,
    ConfigChanged,
    DatapathDown,
    DatapathUp,
    Echoed,
    EntriesRead,
    EntriesUnreadable,
    Event,
    KeysChanged,
    PacketIn,
    PortChanged,
    Rejected,
    TablesRead,
    Tick,
)
from sos_controller.core.openflow import pipeline
from sos_controller.core.openflow.groups import ApplyFailovers, ApplyGroups
from sos_controller.core.state import Identity
from sos_controller.core.types import AgentId, DatapathId, Location, Port, PortNo, parse_address, parse_mac
from sos_controller.core.wire import beacon, keys, order
from sos_controller.core.wire.beacon import Beacon
from sos_controller.core.wire.order import Header, OrderType
from sos_controller.core.wire.packets import UdpTemplate
from sos_controller.files.config import parse

WALL_MS = 1_774_000_000_000
ORDER_PORTS = struct.pack("!HH", 9876, 9876)
CLIENT_PORT, INGRESS_PORT, EGRESS_PORT = 3, 4, 4


def encode(made: dict[str, Any]) -> bytes:
    import json

    return json.dumps(made).encode()


def syn_frame(
    client: int, server: int, sport: int, dport: int, isn: int = 1, flags: int = 2, options: bytes = b"", mac: str = "client", dscp: int = 0
) -> bytes:
    """Return a TCP segment from a host, without a checksum (0)."""
    padded = options + bytes(-len(options) % 4)
    tcp = struct.pack("!HHIIBBHHH", sport, dport, isn & 0xFFFFFFFF, 0, (5 + len(padded) // 4) << 4, flags, 65535, 1, 0) + padded
    ip = struct.pack("!BBHHHBBHII", 0x45, dscp << 2, 20 + len(tcp), 0, 0x4000, 64, 6, 0, client, server)
    return parse_mac(MACS["server"]) + parse_mac(MACS[mac]) + b"\x08\x00" + ip + tcp


def packet_in(cookie: int, in_port: int, data: bytes) -> bytes:
    """Return an OpenFlow packet-in in Open vSwitch's format."""
    match = struct.pack("!HHII", 1, 12, 0x80000004, in_port) + bytes(4)
    return struct.pack("!BBHIIHBBQ", 4, 10, 24 + 16 + 2 + len(data), 0, 0xFFFFFFFF, len(data), 1, 0, cookie) + match + b"\0\0" + data


class FakeAgent:
    """Build an agent's signed beacons, orders and reports."""

    def __init__(self, name: str, boot: int) -> None:
        self.name, self.boot = name, boot
        self.site, self.id = AGENTS[name][1], AgentId(AGENTS[name][2])
        self.where = Location(DatapathId(SWITCHES[HOSTS[name][0]]), PortNo(4))
        self.keys = {p: keys.expand(SITE_KEYS[self.site], p + self.id) for p in (keys.BEACON, keys.TO_AGENT, keys.FROM_AGENT)}
        self.address, self.mac = parse_address(HOSTS[name][1]), parse_mac(MACS[name])
        discovery = (parse_mac("02:53:4f:53:00:01"), parse_address("198.18.255.254"))
        self.up = {p: UdpTemplate((self.mac, discovery[0]), (self.address, discovery[1]), (9876, p)) for p in (9875, 9876)}
        self.sequence = self.beacons = self.reports = 0
        self.flags, self.sessions, self.limit = beacon.FLAG_WILLING, 0, 60_000
        self.held: dict[bytes, int] = {}
        self.flows: tuple[order.ReportedFlow, ...] = ()
        self.watched = False
        self.mode = "ready"
        self.server = "accepts"
        """Server's answer to a connection opened before the client is accepted: "accepts", "refuses" or "silent".

        "unasked" means an old agent that does not connect to the server before the client is accepted.
        """
        self.asked: list[order.Prepare] = []

    def beacon(self, wall_ms: int, **changes: Any) -> bytes:
        self.beacons += 1
        said = Beacon(
            key_id=1, site_id=self.site, flags=self.flags, agent_id=self.id, boot_id=self.boot, sequence=self.beacons, time_ms=wall_ms,
            sessions=self.sessions, session_limit=self.limit, bytes_per_second=0, cpu_permille=0, streams=8, order_port=9876,
            first_stream_port=10000, stream_ports=8, address=self.address, mac=self.mac, capacity_bps=0, name=self.name,
            service_types=("tcp-parallel",),
        )  # fmt: skip
        return self.up[9875].render(beacon.encode(msgspec.structs.replace(said, **changes), self.keys[keys.BEACON]))

    def order(self, kind: OrderType, body: bytes, wall_ms: int, reply_to: int = 0) -> bytes:
        self.sequence += 1
        header = Header(kind, 1, 1, self.id, self.boot, self.sequence, wall_ms, reply_to)
        return self.up[9876].render(order.encode(header, body, self.keys[keys.FROM_AGENT]))

    def report(self, wall_ms: int) -> list[bytes]:
        self.reports += 1
        uuids = sorted(self.held)
        chunks = [uuids[i : i + 64] for i in range(0, len(uuids), 64)] or [[]]
        bodies = [order.encode_report(order.Report(self.reports, i, len(chunks), tuple(c))) for i, c in enumerate(chunks)]
        reports = [self.order(OrderType.SESSION_REPORT, body, wall_ms) for body in bodies]
        if not self.watched:
            return reports
        parts = [self.flows[i : i + 16] for i in range(0, len(self.flows), 16)] or [()]
        flows = [order.encode_flow_report(order.FlowReport(self.reports, i, len(parts), part)) for i, part in enumerate(parts)]
        return reports + [self.order(OrderType.FLOW_REPORT, body, wall_ms) for body in flows]


def fake_port(number: int, up: bool) -> Port:
    """Return port `number`, with the name and MAC address that it has at every fake switch."""
    return Port(PortNo(number), f"p{number}", parse_mac(f"02:00:00:00:00:{number:02x}"), up)


class World:
    """Engine and its environment in virtual time."""

    def __init__(
        self, config: dict[str, Any] | None = None, network: FakeNetwork | None = None, epoch: int = 1, now: float = 100.0
    ) -> None:
        self.now = now
        seed = 12345 * epoch + int(now)  # every run has its own seed, even within the same epoch
        self.engine = Engine(Identity(epoch, epoch * 10**18, seed, b"probe-key-%d" % epoch))
        self.network = network if network is not None else FakeNetwork()
        self.agents = {name: FakeAgent(name, 1_700_000_000 * 10**9) for name in AGENTS}
        self.delivered: list[PacketOut] = []
        self.notices: list[Notice] = []
        self.over: list[SessionOver] = []
        self.prepared: set[bytes] = set()
        self.west, self.east = DatapathId(SWITCHES["edge1"]), DatapathId(SWITCHES["edge2"])
        self.punt_cookie = pipeline.cookie(1, pipeline.Kind.PUNT, epoch)
        self.mute: set[DatapathId] = set()
        self.table_sizes: dict[DatapathId, dict[int, int]] = {}
        """Table sizes of the switches that report them."""
        self.reads: Counter[DatapathId] = Counter()
        self.unreadable: set[DatapathId] = set()
        """Switches that have more entries of the controller than a datapath can have."""
        self.refused = 0
        """Number of flow-mods refused because a table was full."""
        self.unheard: set[DatapathId] = set()
        self.wedged: set[DatapathId] = set()
        """Switches that forward but neither send nor execute messages, although their control connections look alive."""
        self.queue: list[Event] = []
        self.do(KeysChanged({site: {1: key} for site, key in SITE_KEYS.items()}))
        self.tick()
        self.do(ConfigChanged(parse(encode(config if config is not None else document()))))

    def wall(self, now: float) -> int:
        return WALL_MS + int(now * 1000)

    # -- running

    def do(self, event: Event) -> list[Command]:
        """Handle an event and all events that follow from it immediately."""
        if self._is_lost(event):
            return []
        commands = self.engine.handle(event, self.now)
        self.follow(commands)
        return commands

    def follow(self, commands: list[Command]) -> None:
        """Execute the engine's commands, and handle all events that follow from them immediately."""
        for command in commands:
            self._obey(command)
        while self.queue:
            event = self.queue.pop(0)
            for command in [] if self._is_lost(event) else self.engine.handle(event, self.now):
                self._obey(command)

    def _is_lost(self, event: Event) -> bool:
        """Return whether the event comes from a switch that is silent although its control connection looks alive."""
        if isinstance(event, PortChanged) and event.dpid in self.wedged:
            return True
        return isinstance(event, PacketIn | BarrierReplies | Echoed) and event.dpid in self.unheard | self.wedged

    def _obey(self, command: Command) -> None:
        if getattr(command, "dpid", None) in self.wedged:
            return
        if isinstance(command, Notice):
            self.notices.append(command)
        elif isinstance(command, SessionOver):
            self.over.append(command)
        elif isinstance(command, ReadEntries | ReadTables):
            self._read(command)
        elif isinstance(command, Echo):
            self.queue.append(Echoed(command.dpid, command.marker_ms))
        elif isinstance(command, ApplyGroup):
            self.network.apply_group(command)
        elif isinstance(command, Apply | Barrier | Install | Withdraw):
            self._apply(command)
        elif isinstance(command, ApplyFailovers):
            self.network.apply_failovers(command)
        elif isinstance(command, ApplyGroups):
            self.network.apply_groups(command)
        else:
            self._packet_out(command)

    def _apply(self, command: Apply | Barrier | Install | Withdraw) -> None:
        for apply in one_by_one(command):
            if apply.dpid in self.wedged:
                continue
            for entry in self.network.apply(apply, self.now):
                self.refused += 1
                self.queue.append(Rejected(apply.dpid, apply.token, entry.table))
            if apply.barrier and apply.dpid not in self.mute:
                self.queue.append(BarrierReplies(apply.dpid, (apply.token,)))

    def _read(self, command: ReadEntries | ReadTables) -> None:
        if isinstance(command, ReadEntries):
            self.reads[command.dpid] += 1
            if command.dpid in self.unreadable:
                self.queue.append(EntriesUnreadable(command.dpid))
                return
            found = [e for e in self.network.entries(command.dpid) if e.cookie & command.mask == command.cookie]
            self.queue.append(EntriesRead(command.dpid, tuple(found)))
        elif command.dpid in self.table_sizes:
            self.queue.append(TablesRead(command.dpid, self.table_sizes[command.dpid]))

    def _packet_out(self, command: PacketOut) -> None:
        self.delivered.append(command)
        told = self._order_in(command)
        if told is not None and told[1].type == OrderType.PREPARE:
            self.prepared.add(order.decode_prepare(told[2]).uuid)
        for arrived in self.network.emit(command):
            dpid, port, frame = arrived
            if frame[12:14] == b"\x88\xcc":
                self.queue.append(PacketIn(dpid, port, 0, frame))
                continue
            for agent in self.agents.values():
                if (dpid, port) == agent.where and frame[12:14] == b"\x08\x00" and frame[23] == 17:
                    answer = self.answer(command)
                    if answer is not None:
                        self.queue.append(PacketIn(DatapathId(answer[0]), PortNo(answer[1]), 0, answer[2]))

    def _order_in(self, command: PacketOut) -> tuple[FakeAgent, Header, bytes] | None:
        """Return the order that a packet-out delivers to an agent's port, or None if the agent would not accept the packet as an order.

        Hosts may send packets that look like orders, and the controller forwards frames of hosts.
        """
        data = command.data[42:]
        port = getattr(command.actions[0], "port_no", None)
        agent = next((a for a in self.agents.values() if a.where == (command.dpid, port)), None)
        if agent is None or command.data[34:38] != ORDER_PORTS or not order.signed_by(data, agent.keys[keys.TO_AGENT]):
            return None
        return agent, order.decode_header(data), order.body(data)

    def answer(self, command: PacketOut) -> tuple[int, int, bytes] | None:
        """Return the answer of the agent that receives an order."""
        told = self._order_in(command)
        if told is None:
            return None
        agent, header, body = told
        agent.watched = agent.watched or header.type == OrderType.WATCH
        if header.type == OrderType.RELEASE:
            agent.held.pop(body, None)
        if header.type != OrderType.PREPARE or agent.mode == "silent":
            return None
        prepare = order.decode_prepare(body)
        uuid = prepare.uuid
        if prepare.accept and agent.mode == "ready" and agent.server != "unasked":
            return self._ahead(agent, prepare, header.sequence)
        if agent.mode == "refuse":
            frame = agent.order(OrderType.REFUSED, order.encode_refused(uuid, 2), self.wall(self.now), header.sequence)
        else:
            agent.held[uuid] = 1
            frame = agent.order(OrderType.READY, uuid, self.wall(self.now), header.sequence)
        return (*agent.where, frame)

    def _ahead(self, agent: FakeAgent, prepare: order.Prepare, sequence: int) -> tuple[int, int, bytes] | None:
        """Return the answer of an agent that connects to the server before it answers."""
        agent.asked.append(prepare)
        if agent.server == "silent":
            return None
        if agent.server == "refuses":
            return (*agent.where, agent.order(OrderType.REFUSED, order.encode_refused(prepare.uuid, 9), self.wall(self.now), sequence))
        agent.held[prepare.uuid] = 1
        return (*agent.where, agent.order(OrderType.READY, order.encode_accepted(prepare.uuid), self.wall(self.now), sequence))

    def ended(self, uuid: bytes, names: Iterable[str] = ("agent1", "agent2"), reason: int = 0) -> list[tuple[int, int, bytes]]:
        """Return the Ended orders of the named agents for a session."""
        body = order.encode_ended(order.Ended(uuid, reason, 1, 2, 3))
        told = []
        for name in names:
            agent = self.agents[name]
            agent.held.pop(uuid, None)
            told.append((*agent.where, agent.order(OrderType.ENDED, body, self.wall(self.now))))
        return told

    # -- events

    def tick(self, seconds: float = 0.0, step: float = 0.025, beacons: bool = True) -> None:
        """Advance time, with beacons each half second and reports each second."""
        end = self.now + seconds
        while True:
            self.do(Tick(self.wall(self.now)))
            half = int(self.now * 2)
            if beacons and self.engine.state.config is not None and half != getattr(self, "_half", None):
                self._half = half
                self.beacons()
                if half % 2:
                    self.reports()
            if self.now >= end:
                return
            self.now += step

    def beacons(self) -> None:
        for agent in self.agents.values():
            if agent.mode != "dead":
                self.do(PacketIn(*agent.where, 0, agent.beacon(self.wall(self.now))))

    def reports(self) -> None:
        for agent in self.agents.values():
            if agent.mode != "dead":
                for frame in agent.report(self.wall(self.now)):
                    self.do(PacketIn(*agent.where, 0, frame))

    def connect(self, names: Iterable[str] = tuple(SWITCHES)) -> None:
        for name in names:
            dpid = DatapathId(SWITCHES[name])
            ports = (fake_port(n, Location(dpid, PortNo(n)) not in self.network.down) for n in range(1, 6))
            self.do(DatapathUp(dpid, tuple(ports)))

    def disconnect(self, name: str) -> None:
        self.do(DatapathDown(DatapathId(SWITCHES[name])))

    def cut(self, one: str, other: str, up: bool = False) -> None:
        """Cut or restore a wire, and deliver the port status messages of both ends."""
        for dpid, port in self.network.cut(SWITCHES[one], SWITCHES[other], up):
            self.do(PortChanged(dpid, fake_port(port, up), False))

    def converge(self) -> None:
        """Connect everything and wait until the service is armed."""
        self.connect()
        self.tick(3.5)

    def syn(self, sport: int, isn: int = 1, dport: int = 5001, **more: Any) -> list[Command]:
        """Send a client's SYN to the punt entry at west."""
        frame = syn_frame(10 << 24 | 11, 10 << 24 | 139, sport, dport, isn, **more)
        return self.do(PacketIn(self.west, PortNo(CLIENT_PORT), self.punt_cookie, frame))

    def do_packet(self, where: Location, frame: bytes) -> None:
        """Deliver a packet-in that does not come from an entry of the controller."""
        self.do(PacketIn(where.dpid, where.port_no, 0, frame))

    def end(self, uuid: bytes, names: Iterable[str] = ("agent1", "agent2"), reason: int = 0) -> None:
        for dpid, port, frame in self.ended(uuid, names, reason):
            self.do(PacketIn(DatapathId(dpid), PortNo(port), 0, frame))

    def service(self) -> str:
        found = self.engine.plan.status()[0]
        return f"{found.state}/{found.reason}"
