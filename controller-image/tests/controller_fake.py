"""Fake network that forwards test packets.

It consists of flow tables, filled by the engine's own commands, of wires, and of hosts and agents behind ports.
"""

from __future__ import annotations

import struct
import zlib

import msgspec
from controller_lab import SWITCHES
from sos_controller.core.balance.ovs_round_robin import REMEMBERED
from sos_controller.core.commands import Apply, ApplyGroup, Barrier, Install, PacketOut, Withdraw
from sos_controller.core.openflow.flow_entries import (
    Action,
    AnswerArp,
    DecTtl,
    Entries,
    FinTimeout,
    FlowEntry,
    ForgetPort,
    Goto,
    LearnSource,
    Match,
    Output,
    Remember,
    RememberAnswers,
    Resubmit,
    SetEthDst,
    SetEthSrc,
    SetIpv4Dst,
    SetIpv4Src,
    SetTcpDst,
    SetTcpSrc,
    TakeTurn,
    TellApart,
    ToGroup,
)
from sos_controller.core.openflow.groups import ApplyFailovers, ApplyGroups, FailoverGroup, Groups
from sos_controller.core.openflow.pipeline import (
    ETH_IPV4,
    GATEWAY_MAC,
    PORT_CONTROLLER,
    PORT_IN_PORT,
    PORT_NORMAL,
    PRIORITY_ANSWER_CONNECTION,
    PRIORITY_CONNECTION,
    PROTO_TCP,
    TABLE_LEAVE,
    TABLE_REDIRECT,
    TABLE_REMEMBER,
    TABLE_UPLINK,
    Kind,
    cookie_kind,
)
from sos_controller.core.types import DatapathId, Location, PortNo

MAX_HOPS = 64
TPID = b"\x81\x00"
"""EtherType of a frame with an 802.1Q tag."""

E1, E2, C1, C2 = (DatapathId(SWITCHES[n]) for n in ("edge1", "edge2", "core1", "core2"))
WIRES = {
    Location(E1, PortNo(1)): Location(C1, PortNo(1)),
    Location(C1, PortNo(2)): Location(E2, PortNo(1)),
    Location(E1, PortNo(2)): Location(C2, PortNo(1)),
    Location(C2, PortNo(2)): Location(E2, PortNo(2)),
}


class LoopError(AssertionError):
    """A packet looped."""


def matches(m: Match, in_port: int, frame: bytes) -> bool:
    """Return whether a frame matches (OpenFlow 1.3.5, 7.2.3), for the fields in use."""
    if frame[12:14] == TPID:
        return m.any_vlan and matches(m, in_port, frame[:12] + frame[16:])  # fields behind a tag match, too (ovs-fields(7))
    ethertype = frame[12] << 8 | frame[13]
    wanted_ethernet = ((m.in_port, in_port), (m.eth_dst, frame[:6]), (m.eth_src, frame[6:12]), (m.eth_type, ethertype))
    if any(wanted not in (None, found) for wanted, found in wanted_ethernet):
        return False
    ip = ethertype == 0x0800
    if m.ip_proto is not None and (not ip or m.ip_proto != frame[23]):
        return False
    for wanted, at in ((m.ipv4_src, 26), (m.ipv4_dst, 30)):
        if wanted is not None and (not ip or int.from_bytes(frame[at : at + 4], "big") & wanted[1] != wanted[0] & wanted[1]):
            return False
    if m.arp_op is not None and (ethertype != 0x0806 or m.arp_op != int.from_bytes(frame[20:22], "big")):
        return False
    for wanted, at in ((m.arp_sender, 28), (m.arp_target, 38)):
        if wanted is not None and int.from_bytes(frame[at : at + 4], "big") & wanted[1] != wanted[0] & wanted[1]:
            return False
    tcp, udp = ip and frame[23] == 6, ip and frame[23] == 17
    sport, dport = int.from_bytes(frame[34:36], "big"), int.from_bytes(frame[36:38], "big")
    if m.tcp_src is not None and (not tcp or sport & m.tcp_src[1] != m.tcp_src[0]):
        return False
    if m.tcp_dst is not None and (not tcp or dport & m.tcp_dst[1] != m.tcp_dst[0]):
        return False
    if m.udp_dst is not None and (not udp or m.udp_dst != dport):
        return False
    if not _matches_ip(m, frame if ip else None):
        return False
    return m.tcp_flags is None or (tcp and frame[47] & m.tcp_flags[1] == m.tcp_flags[0])


def _matches_ip(m: Match, frame: bytes | None) -> bool:
    """Return whether the IPv4-only fields match."""
    if m.icmp_type is not None and (frame is None or frame[23] != 1 or frame[34] != m.icmp_type):
        return False
    if m.ip_frag is None:
        return True
    return frame is not None and int((frame[20] << 8 | frame[21]) & 0x3FFF != 0) & m.ip_frag[1] == m.ip_frag[0]


def rewritten(frame: bytes, action: Action) -> bytes:
    """Return a frame after an action that rewrites it. Checksums stay unchanged."""
    if isinstance(action, SetEthDst):
        return action.mac + frame[6:]
    if isinstance(action, SetEthSrc):
        return frame[:6] + action.mac + frame[12:]
    if isinstance(action, SetIpv4Src):
        return frame[:26] + action.address.to_bytes(4, "big") + frame[30:]
    if isinstance(action, SetIpv4Dst):
        return frame[:30] + action.address.to_bytes(4, "big") + frame[34:]
    if isinstance(action, DecTtl):
        return frame[:22] + bytes((frame[22] - 1,)) + frame[23:]
    if isinstance(action, SetTcpSrc):
        return frame[:34] + action.port.to_bytes(2, "big") + frame[36:]
    if isinstance(action, SetTcpDst):
        return frame[:36] + action.port.to_bytes(2, "big") + frame[38:]
    if isinstance(action, AnswerArp):
        return frame[6:12] + action.mac + frame[12:20] + b"\0\2" + action.mac + frame[38:42] + frame[22:32] + frame[42:]
    assert isinstance(action, FinTimeout | ForgetPort | LearnSource), action
    return frame


def connection(source: int, target: int, sport: int, dport: int, in_port: PortNo | None = None) -> Match:
    """Return the match of one direction of a connection."""
    ends = {"ipv4_src": (source, 0xFFFFFFFF), "ipv4_dst": (target, 0xFFFFFFFF), "tcp_src": (sport, 0xFFFF), "tcp_dst": (dport, 0xFFFF)}
    return Match(in_port=in_port, eth_type=ETH_IPV4, ip_proto=PROTO_TCP, **ends)


def one_by_one(command: Apply | Barrier | Install | Withdraw) -> list[Apply]:
    """Split a command into one per datapath."""
    if isinstance(command, Install):
        return [Apply(dpid, (command.entry,), (), command.token, False) for dpid in command.dpids]
    if isinstance(command, Barrier):
        return [Apply(dpid, (), (), command.token, True) for dpid in command.dpids]
    if isinstance(command, Withdraw):
        return [Apply(dpid, (), (command.entry,), 0, False) for dpid in command.dpids]
    return [command]


class FakeNetwork:
    """Tables of all switches, and the wires between them."""

    def __init__(self, wires: dict[Location, Location] | None = None, ports: int = 5) -> None:
        pairs = WIRES if wires is None else wires
        self.wires = {**pairs, **{b: a for a, b in pairs.items()}}
        self.down: set[Location] = set()
        self.tables: dict[DatapathId, Entries] = {}
        self.groups: dict[DatapathId, Groups] = {}
        self.failovers: dict[tuple[DatapathId, int], ApplyGroup] = {}
        self.rounds: dict[tuple[DatapathId, int], FailoverGroup] = {}
        self.turns: dict[tuple[DatapathId, int], int] = {}
        self.expires: dict[tuple[DatapathId, object], float] = {}
        self.ports = range(1, ports + 1)
        self.sizes: dict[tuple[DatapathId, int | None], int] = {}
        """Table sizes, by datapath and table; None = all tables together."""

    def entries(self, dpid: DatapathId) -> list[FlowEntry]:
        return list(self.tables.get(dpid, {}).values())

    def _is_full(self, dpid: DatapathId, entry: FlowEntry) -> bool:
        there = self.tables.get(dpid, {})
        here = self.sizes.get((dpid, entry.table)), sum(e.table == entry.table for e in there.values())
        everywhere = self.sizes.get((dpid, None)), len(there)
        return entry.key not in there and any(size is not None and count >= size for size, count in (here, everywhere))

    def apply(self, command: Apply, now: float) -> list[FlowEntry]:
        """Carry out flow-mods; return the entries refused because a table is full (OpenFlow 1.3.5, 7.4.4.6)."""
        table, refused = self.tables.setdefault(command.dpid, {}), []
        for entry in command.adds:
            if self.sizes and self._is_full(command.dpid, entry):
                refused.append(entry)
                continue
            named = [a.group_id for a in entry.actions if isinstance(a, ToGroup)]
            there = {*self.groups.get(command.dpid, {}), *(n for dpid, n in (*self.failovers, *self.rounds) if dpid == command.dpid)}
            assert there.issuperset(named), f"a switch refuses an entry whose group does not exist: {entry}"
            plain = cookie_kind(entry.cookie) == Kind.FORWARD
            assert plain or not entry.match.any_vlan, f"only forwarding entries may match frames of every VLAN: {entry}"
            table[entry.key] = entry
            self.expires[command.dpid, entry.key] = now + entry.hard_timeout if entry.hard_timeout else float("inf")
        for entry in command.deletes:
            there = table.get(entry.key)
            if there is not None and there.cookie == entry.cookie:
                del table[entry.key]
        return refused

    def apply_groups(self, command: ApplyGroups) -> None:
        there = self.groups.setdefault(command.dpid, {})
        assert all(group.group_id in there for group in command.changes), "a switch refuses to modify a group that it does not have"
        there.update((group.group_id, group) for group in (*command.puts, *command.changes))
        for number in command.deletes:
            there.pop(number, None)
            gone = [k for k, e in self.tables.get(command.dpid, {}).items() if ToGroup(number) in e.actions]
            for key in gone:
                del self.tables[command.dpid][key]

    def apply_group(self, command: ApplyGroup) -> None:
        """Create or remove a group. With a group, a switch also removes the entries that point to it (6.4.4), so assert that there are no
        such entries."""
        if command.mac is not None:
            self.failovers[command.dpid, command.group_id] = command
            return
        self.failovers.pop((command.dpid, command.group_id), None)
        table = self.tables.setdefault(command.dpid, {})
        for entry in list(table.values()):
            assert ToGroup(command.group_id) not in entry.actions, f"an entry would be removed with its group: {entry}"

    def apply_failovers(self, command: ApplyFailovers) -> None:
        self.rounds.update(((command.dpid, group.group_id), group) for group in command.groups)
        for number in command.deletes:
            self.rounds.pop((command.dpid, number), None)
            for entry in self.entries(command.dpid):
                assert ToGroup(number) not in entry.actions, f"an entry would be removed with its group: {entry}"

    def expire(self, now: float) -> None:
        """Remove entries whose hard timeout has expired."""
        for dpid, table in self.tables.items():
            for key in [k for k in table if self.expires.get((dpid, k), float("inf")) <= now]:
                del table[key]

    def cut(self, one: int, other: int, up: bool) -> list[Location]:
        ends = [e for a, b in self.wires.items() if (a.dpid, b.dpid) == (one, other) for e in (a, b)]
        for end in ends:
            (self.down.discard if up else self.down.add)(end)
        return ends

    def emit(self, command: PacketOut) -> list[tuple[DatapathId, PortNo, bytes]]:
        """Return the ports that a packet-out reaches: the other end of a wire, or the output port itself at a host or agent."""
        found = []
        for action in command.actions:
            if isinstance(action, Output) and action.port_no < 0xFFFFFF00:
                found.append(self._other_end(Location(command.dpid, action.port_no), command.data))
        return [f for f in found if f is not None]

    def walk(self, where: Location, frame: bytes) -> list[tuple[Location, bytes]]:
        """Return the output ports of a frame that enters at `where`, each with the frame as sent.

        An output port is an edge port, PORT_CONTROLLER, or PORT_NORMAL (the switch itself forwards the frame).
        """
        out: list[tuple[Location, bytes]] = []
        todo = [(where, frame)]
        for _ in range(MAX_HOPS):
            if not todo:
                return out
            at, data = todo.pop()
            for port, sent in self._switch(at, data):
                end = Location(at.dpid, port)
                if port >= 0xFFFFFF00 or end not in self.wires:
                    out.append((end, sent))
                elif end not in self.down:
                    todo.append((self.wires[end], sent))
        raise LoopError(f"{len(todo)} copies after {MAX_HOPS} hops")

    def _switch(self, at: Location, frame: bytes) -> list[tuple[PortNo, bytes]]:
        """Run a frame through a switch's tables. A miss in table 0 continues in the base table, table 1. A miss there means NORMAL."""
        found, table, reg3 = [], 0, 0
        while table is not None:
            entry = self._lookup(at, table, frame, reg3=reg3)
            following = 1 if table == 0 and entry is None else None
            if entry is None and table == 1:
                found.append((PORT_NORMAL, frame))
            if entry is not None and entry.actions and isinstance(entry.actions[0], TellApart):
                found.extend((action.port_no, frame) for action in entry.actions[1:])
                entry = self._lookup(at, table, frame, 1)
                following = 1 if table == 0 and entry is None else None
            if entry is not None and isinstance(entry.actions[0] if entry.actions else None, TakeTurn):
                entry = self._take_turn(at, frame, entry.actions[0].group_id)
            for action in self._expand(at.dpid, entry, frame) if entry is not None else ():
                if isinstance(action, Resubmit):
                    following, reg3 = action.table, reg3 if action.place is None else action.place
                elif isinstance(action, ToGroup) and (at.dpid, action.group_id) in self.rounds:
                    found.append(self._first_live(at, self.rounds[at.dpid, action.group_id], frame))
                elif isinstance(action, ToGroup):
                    found.append(self._choose(self.failovers[at.dpid, action.group_id], frame))
                elif isinstance(action, Goto):
                    following = action.table
                elif not isinstance(action, Output):
                    frame = rewritten(frame, action)
                elif action.port_no == PORT_IN_PORT:
                    found.append((at.port_no, frame))
                elif action.port_no != at.port_no:
                    found.append((action.port_no, frame))
            table = following
        return found

    def _expand(self, dpid: DatapathId, entry: FlowEntry, frame: bytes) -> list[Action]:
        """Return the actions of an entry, with each group replaced by the actions of a bucket. A hash of the connection selects the
        bucket."""
        found: list[Action] = []
        for action in entry.actions:
            if isinstance(action, ToGroup) and (dpid, action.group_id) not in self.failovers.keys() | self.rounds.keys():
                buckets = [b for b in self.groups[dpid][action.group_id].buckets for _ in range(b.weight)]
                found.extend(buckets[zlib.crc32(frame[26:38]) % len(buckets)].actions if buckets else ())
            else:
                found.append(action)
        return found

    def _take_turn(self, at: Location, frame: bytes, group_id: int) -> FlowEntry | None:
        """Return the entry that forwards a connection's first packet. Advance the round robin and learn the connection's entries."""

        def look(table: int, reg0: int) -> FlowEntry | None:
            return self._lookup(at, table, frame, reg0, group_id)

        uplink = look(TABLE_UPLINK, self.turns.get((at.dpid, group_id), 0))
        if uplink is None:
            return look(TABLE_LEAVE, 0)
        self.turns[at.dpid, group_id] = uplink.actions[0].following
        port = next((port for port in uplink.actions[0].ports if Location(at.dpid, port) not in self.down), 0xFFFF)
        source, target, sport, dport = struct.unpack_from("!IIHH", frame, 26)
        remember = look(TABLE_REMEMBER, port)
        if remember is None:
            return look(TABLE_LEAVE, port)
        how = remember.actions[0]
        there = (SetEthSrc(how.mac), SetEthDst(how.router), SetIpv4Src(how.address), Output(PortNo(port)))
        done = self._learn(at.dpid, PRIORITY_CONNECTION, connection(source, target, sport, dport), how, there)
        leave = look(TABLE_LEAVE, REMEMBERED | port if done else port)
        if leave is None or not isinstance(how := leave.actions[0], RememberAnswers):
            return leave
        back = (SetEthSrc(GATEWAY_MAC), SetEthDst(how.client_mac), SetIpv4Dst(how.client), Output(at.port_no))
        match = connection(target, how.address, dport, sport, how.port_no)
        self._learn(at.dpid, PRIORITY_ANSWER_CONNECTION, match, how, back)
        return msgspec.structs.replace(leave, actions=leave.actions[1:])

    def _learn(self, dpid: DatapathId, priority: int, match: Match, how: Remember | RememberAnswers, actions: tuple[Action, ...]) -> bool:
        table = self.tables[dpid]
        if sum(entry.cookie == how.cookie for entry in table.values()) >= how.limit:
            return False
        made = FlowEntry(TABLE_REDIRECT, priority, match, (FinTimeout(how.ended_idle_s), *actions), how.cookie, 0, how.idle_s)
        table[made.key] = made
        return True

    def _first_live(self, at: Location, group: FailoverGroup, frame: bytes) -> tuple[PortNo, bytes]:
        live = [(port_no, mac + frame[6:]) for port_no, mac in group.ways if Location(at.dpid, port_no) not in self.down]
        assert not live or live[0][0] != at.port_no, "a switch sends no packet back to its ingress port"
        return live[0] if live else (PORT_NORMAL, frame)

    def _choose(self, group: ApplyGroup, frame: bytes) -> tuple[PortNo, bytes]:
        if Location(group.dpid, group.port_no) in self.down:
            return (group.otherwise, frame)
        return (group.port_no, group.mac + frame[6:])

    def _lookup(self, at: Location, table: int, frame: bytes, reg0: int = 0, reg2: int = 0, reg3: int = 0) -> FlowEntry | None:
        registers = (reg0, reg2, reg3)
        there = [e for e in self.tables.get(at.dpid, {}).values() if e.table == table and e.match.in_port in (None, at.port_no)]
        hits = [e for e in there if self._in_registers(e.match, registers) and matches(e.match, at.port_no, frame)]
        best = max(hits, key=lambda e: e.priority, default=None)
        rivals = [e for e in hits if best is not None and e.priority == best.priority and e.actions != best.actions]
        assert not rivals, f"entries of equal priority disagree: {best} {rivals}"
        return best

    @staticmethod
    def _in_registers(match: Match, registers: tuple[int, int, int]) -> bool:
        wanted = (match.reg0, match.reg2, match.reg3)
        return all(value in (None, found) for value, found in zip(wanted, registers, strict=True))

    def _other_end(self, end: Location, data: bytes) -> tuple[DatapathId, PortNo, bytes] | None:
        if end in self.down:
            return None
        there = self.wires.get(end, end)
        return (there.dpid, there.port_no, data)


__all__ = ["C1", "C2", "E1", "E2", "PORT_CONTROLLER", "WIRES", "FakeNetwork", "LoopError", "matches"]
