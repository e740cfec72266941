"""Compare the controller's OpenFlow encoder with Ryu's, and test input from hostile switches."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Literal

import pytest
from controller_world import packet_in
from hypothesis import assume, given
from hypothesis import strategies as st
from sos_controller.core.openflow.flow_entries import (
    Action,
    AnswerArp,
    DecTtl,
    FinTimeout,
    FlowEntry,
    ForgetPort,
    Goto,
    LearnSource,
    Match,
    Output,
    Resubmit,
    SetEthDst,
    SetEthSrc,
    SetIpv4Dst,
    SetIpv4Src,
    SetTcpDst,
    SetTcpSrc,
    TellApart,
    ToGroup,
)
from sos_controller.core.openflow.groups import ApplyFailovers, ApplyGroups, Bucket, FailoverGroup, SelectGroup
from sos_controller.core.types import (
    DatapathId,
    MacAddress,
    PortNo,
    format_address,
    format_mac,
)
from sos_controller.openflow import framework, ofp, oxm, rewrite

assert framework.eventlet  # Ryu can be imported only after eventlet
from ryu.lib import type_desc  # noqa: E402
from ryu.ofproto import ofproto_protocol, ofproto_v1_3, ofproto_v1_3_parser  # noqa: E402


class _Datapath(ofproto_protocol.ProtocolDesc):
    def __init__(self) -> None:
        super().__init__(version=4)
        self.id = 1


addresses = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 32)).map(
    lambda a: (a[0] & (0xFFFFFFFF << (32 - a[1])) & 0xFFFFFFFF, (0xFFFFFFFF << (32 - a[1])) & 0xFFFFFFFF)
)
macs = st.binary(min_size=6, max_size=6)
ports = st.integers(1, 0xFFFFFF00)
tcp_matches = st.builds(
    Match,
    in_port=st.none() | ports,
    eth_dst=st.none() | macs,
    eth_src=st.none() | macs,
    eth_type=st.just(0x0800),
    ip_proto=st.just(6),
    ipv4_src=st.none() | addresses,
    ipv4_dst=st.none() | addresses,
    tcp_src=st.none() | st.sampled_from([(5000, 0xFFFF), (0x1388, 0xFFF8), (0, 0x8000)]),
    tcp_dst=st.none() | st.sampled_from([(5000, 0xFFFF), (0x1388, 0xFFF8), (0, 0x8000)]),
    reg0=st.none() | st.integers(0, 2**32 - 1),
    reg2=st.none() | st.integers(0, 2**32 - 1),
    reg3=st.none() | st.integers(0, 2**32 - 1),
)
udp_matches = st.builds(Match, eth_type=st.just(0x0800), ip_proto=st.just(17), ipv4_dst=addresses, udp_dst=st.integers(0, 65535))
arp_matches = st.builds(
    Match, eth_type=st.just(0x0806), arp_op=st.none() | st.just(1), arp_sender=st.none() | addresses, arp_target=st.none() | addresses
)
icmp_matches = st.builds(
    Match, eth_type=st.just(0x0800), ip_proto=st.just(1), ipv4_dst=st.none() | addresses, icmp_type=st.integers(0, 255)
)
other_matches = st.sampled_from([Match(eth_type=0x88CC), Match(any_vlan=True)]) | st.builds(Match, eth_dst=macs, any_vlan=st.booleans())
all_matches = st.one_of(icmp_matches, tcp_matches, udp_matches, arp_matches, other_matches)
plain_actions = st.lists(
    st.one_of(st.builds(Output, ports), st.builds(SetEthDst, macs), st.builds(SetEthSrc, macs), st.builds(ToGroup, ports)), max_size=4
)
all_actions = st.tuples(plain_actions, st.none() | st.just(Goto(1))).map(lambda a: (*a[0], a[1]) if a[1] else tuple(a[0]))
entries = st.builds(
    FlowEntry, table=st.integers(0, 1), priority=st.integers(0, 65535), match=all_matches, actions=all_actions,
    cookie=st.integers(0, 2**64 - 1), hard_timeout=st.integers(0, 65535), idle_timeout=st.integers(0, 65535),
)  # fmt: skip


def _ryu_match(m: Match) -> ofproto_v1_3_parser.OFPMatch:
    fields: dict = {}
    same = (
        "in_port",
        "eth_dst",
        "eth_src",
        "eth_type",
        "ip_proto",
        "ipv4_src",
        "ipv4_dst",
        "tcp_src",
        "tcp_dst",
        "udp_dst",
        "arp_op",
        "reg0",
        "reg2",
        "reg3",
    )
    for ours, name in (*((n, n) for n in same), ("icmp_type", "icmpv4_type"), ("arp_sender", "arp_spa"), ("arp_target", "arp_tpa")):
        value = getattr(m, ours)
        if value is None:
            continue
        if name.startswith("eth_d") or name.startswith("eth_s"):
            value = format_mac(value)
        if name.startswith(("ipv4", "arp_s", "arp_t")):
            text = [type_desc.IPv4Addr.to_user(v.to_bytes(4, "big")) for v in value]
            value = text[0] if value[1] == 0xFFFFFFFF else tuple(text)
        if name in ("tcp_src", "tcp_dst"):
            value = value[0] if value[1] == 0xFFFF else value
        fields[name] = value
    if not m.any_vlan:
        fields["vlan_vid"] = ofproto_v1_3.OFPVID_NONE
    return ofproto_v1_3_parser.OFPMatch(**fields)


def _ryu_flow_mod(entry: FlowEntry, command: int) -> bytes:
    parser, datapath = ofproto_v1_3_parser, _Datapath()
    applied = []
    for a in entry.actions:
        if isinstance(a, Output):
            applied.append(parser.OFPActionOutput(a.port_no, 0xFFFF))
        elif isinstance(a, ToGroup):
            applied.append(parser.OFPActionGroup(a.group_id))
        elif not isinstance(a, Goto):
            applied.append(parser.OFPActionSetField(**{"eth_dst" if isinstance(a, SetEthDst) else "eth_src": format_mac(a.mac)}))
    instructions = [parser.OFPInstructionActions(ofproto_v1_3.OFPIT_APPLY_ACTIONS, applied)] if applied else []
    if entry.actions and isinstance(entry.actions[-1], Goto):
        instructions.append(parser.OFPInstructionGotoTable(1))
    adding = command == ofp.ADD
    message = parser.OFPFlowMod(
        datapath, cookie=entry.cookie, cookie_mask=0 if adding else 2**64 - 1, table_id=entry.table, command=command,
        idle_timeout=entry.idle_timeout if adding else 0, hard_timeout=entry.hard_timeout if adding else 0, priority=entry.priority,
        match=_ryu_match(entry.match), instructions=instructions if adding else [],
    )  # fmt: skip
    message.set_xid(77)
    message.out_port = message.out_group = 0xFFFFFFFF
    message.serialize()
    return bytes(message.buf)


@given(entries, st.sampled_from([ofp.ADD, ofp.DELETE_STRICT]))
def test_flow_mods_equal_those_of_ryu(entry: FlowEntry, command: int) -> None:
    assert ofp.flow_mod(entry, command, 77) == _ryu_flow_mod(entry, command)


@given(ports, ports, macs)
def test_failover_group_equals_that_of_ryu(group_id: int, port: int, mac: bytes) -> None:
    parser, datapath, none = ofproto_v1_3_parser, _Datapath(), 0xFFFFFFFF

    def bucket(watch_port: int, watch_group: int, *actions: object) -> object:
        return parser.OFPBucket(0, watch_port, watch_group, list(actions))

    chooser = [
        bucket(port, none, parser.OFPActionSetField(eth_dst=format_mac(mac)), parser.OFPActionOutput(port, 0xFFFF)),
        bucket(none, group_id + 1, parser.OFPActionGroup(group_id + 1)),
    ]
    normal = [bucket(none, none, parser.OFPActionOutput(ofproto_v1_3.OFPP_NORMAL, 0xFFFF))]
    add, delete, chosen, plain = 0x8000, ofproto_v1_3.OFPGC_DELETE, ofproto_v1_3.OFPGT_FF, ofproto_v1_3.OFPGT_INDIRECT
    made = [(add, plain, group_id + 1, normal), (add, chosen, group_id, chooser)]
    gone = [(delete, chosen, group_id, []), (delete, plain, group_id + 1, [])]
    ours = (ofp.failover_group(group_id, PortNo(port), MacAddress(mac)), ofp.failover_group(group_id, PortNo(0), None))
    for messages, sent in zip((made, gone), ours, strict=True):
        expected = b""
        for command, kind, number, buckets in messages:
            message = parser.OFPGroupMod(datapath, command, kind, number, buckets)
            message.set_xid(0)
            message.serialize()
            expected += bytes(message.buf)
        assert sent == expected


@given(ports, plain_actions.filter(bool), st.binary(max_size=100))  # Ryu overwrites the data of a packet-out without actions
def test_packet_outs_equal_those_of_ryu(in_port: int, actions: list, data: bytes) -> None:
    assume(not any(isinstance(a, ToGroup) for a in actions))  # `theirs` contains no group actions
    parser = ofproto_v1_3_parser
    theirs = [
        parser.OFPActionOutput(a.port_no, 0xFFFF)
        if isinstance(a, Output)
        else parser.OFPActionSetField(**{"eth_dst" if isinstance(a, SetEthDst) else "eth_src": format_mac(a.mac)})
        for a in actions
    ]
    message = parser.OFPPacketOut(_Datapath(), buffer_id=0xFFFFFFFF, in_port=in_port, actions=theirs, data=data)
    message.set_xid(0)
    message.serialize()
    assert ofp.packet_out(in_port, tuple(actions), data) == bytes(message.buf)


def test_requests_equal_those_of_ryu() -> None:
    parser, datapath = ofproto_v1_3_parser, _Datapath()
    stats = parser.OFPFlowStatsRequest(datapath, 0, 0xFF, 0xFFFFFFFF, 0xFFFFFFFF, 0x534F0101 << 32, 0xFFFFFFFF << 32, parser.OFPMatch())
    for ours, theirs in (
        (ofp.flow_stats_request(5, 0x534F0101 << 32, 0xFFFFFFFF << 32), stats),
        (ofp.barrier_request(5), parser.OFPBarrierRequest(datapath)),
        (ofp.echo_request(5), parser.OFPEchoRequest(datapath)),
    ):
        theirs.set_xid(5)
        theirs.serialize()
        assert ours == bytes(theirs.buf)


def _ryu_action(a: Action) -> object:
    parser = ofproto_v1_3_parser
    if isinstance(a, Output):
        return parser.OFPActionOutput(a.port_no, 0xFFFF)
    if isinstance(a, ToGroup):
        return parser.OFPActionGroup(a.group_id)
    if isinstance(a, SetIpv4Src | SetIpv4Dst):
        return parser.OFPActionSetField(**{"ipv4_dst" if isinstance(a, SetIpv4Dst) else "ipv4_src": format_address(a.address)})
    if isinstance(a, SetTcpSrc | SetTcpDst):
        return parser.OFPActionSetField(**{"tcp_dst" if isinstance(a, SetTcpDst) else "tcp_src": a.port})
    if isinstance(a, ForgetPort):
        return parser.OFPActionSetField(in_port_nxm=0)
    if isinstance(a, DecTtl):
        return parser.OFPActionDecNwTtl()
    if isinstance(a, FinTimeout):
        return parser.NXActionFinTimeout(fin_idle_timeout=a.idle_s, fin_hard_timeout=0)
    return parser.OFPActionSetField(**{"eth_dst" if isinstance(a, SetEthDst) else "eth_src": format_mac(a.mac)})


rewriting = st.lists(
    st.one_of(
        st.builds(SetIpv4Src, address=st.integers(0, 2**32 - 1)), st.builds(SetIpv4Dst, address=st.integers(0, 2**32 - 1)),
        st.builds(SetTcpSrc, port=st.integers(0, 65535)), st.builds(SetTcpDst, port=st.integers(0, 65535)),
        st.builds(DecTtl), st.builds(ForgetPort), st.builds(ToGroup, group_id=st.integers(0, 2**32 - 256)),
        st.builds(FinTimeout, idle_s=st.integers(0, 65535)),
        st.builds(SetEthDst, mac=st.binary(min_size=6, max_size=6)), st.builds(SetEthSrc, mac=st.binary(min_size=6, max_size=6)),
        st.builds(Output, port_no=st.integers(1, 65279)),
    ),
    max_size=5,
)  # fmt: skip


@given(rewriting)
def test_rewriting_actions_equal_those_of_ryu_and_survive_a_round_trip(actions: list) -> None:
    bodies = []
    for action in actions:
        buffer = bytearray()
        _ryu_action(action).serialize(buffer, 0)  # type: ignore[attr-defined]
        bodies.append(bytes(buffer))
    encoded = ofp.encode_actions(tuple(actions))
    assert encoded == b"".join(bodies)
    entry = FlowEntry(0, 1, Match(), tuple(actions), 7, told=True)
    message = ofp.flow_mod(entry, ofp.ADD, 1)
    assert message[44:46] == b"\0\1"
    assert ofp._parse_instructions(ofp.encode_instructions(tuple(actions))) == tuple(actions)


@pytest.mark.parametrize("field", [{"arp_op": 2}, {"arp_sender": (10, 0xFFFFFFFF)}, {"arp_target": (8, 0xFFFFFFF8)}])
def test_arp_fields_survive_a_round_trip_with_any_ethertype(field: dict) -> None:
    match = Match(eth_type=0x0800, **field)
    encoded = oxm.encode_match(match)
    assert oxm.decode_match(encoded[4 : int.from_bytes(encoded[2:4], "big")]) == match


def _serialized(theirs: list) -> bytes:
    made = b""
    for action in theirs:
        buffer = bytearray()
        action.serialize(buffer, 0)
        made += bytes(buffer)
    return made


@given(macs, rewriting)
def test_arp_answer_equals_that_of_ryu_and_survives_a_round_trip(mac: MacAddress, others: list) -> None:
    parser = ofproto_v1_3_parser
    moves = [("eth_src_nxm", "eth_dst_nxm", 48), ("arp_sha_nxm", "arp_tha_nxm", 48)]
    moves += [("arp_tpa_nxm", "reg0", 32), ("arp_spa_nxm", "arp_tpa_nxm", 32), ("reg0", "arp_spa_nxm", 32)]
    theirs = [parser.NXActionRegMove(src_field=source, dst_field=target, n_bits=bits) for source, target, bits in moves]
    theirs += [parser.OFPActionSetField(**field) for field in ({"arp_op": 2}, {"arp_sha": format_mac(mac)}, {"eth_src": format_mac(mac)})]
    expected = _serialized(theirs)
    actions = (AnswerArp(mac), *others)
    assert ofp.encode_actions(actions[:1]) == expected
    assert ofp._parse_instructions(ofp.encode_instructions(actions)) == actions


@pytest.mark.parametrize(("ports", "fields"), [("source", ["tcp_src"]), ("target", ["tcp_dst"]), ("both", ["tcp_src", "tcp_dst"])])
def test_tell_apart_equals_ryus_encoding_and_survives_a_round_trip(ports: Literal["source", "target", "both"], fields: list[str]) -> None:
    parser = ofproto_v1_3_parser
    moves = [("ipv4_src_nxm", 32), ("ipv4_dst_nxm", 32), *((f"{field}_nxm", 16) for field in fields)]
    theirs = [parser.NXActionRegMove(src_field=source, dst_field="reg1", n_bits=bits) for source, bits in moves]
    theirs += [parser.OFPActionSetField(reg0=1), parser.NXActionResubmitTable(in_port=0xFFF8, table_id=0)]
    assert ofp.encode_actions((TellApart(ports),)) == _serialized(theirs)
    assert ofp._parse_instructions(ofp.encode_instructions((TellApart(ports),))) == (TellApart(ports),)


@given(rewriting)
def test_learn_source_equals_ryus_encoding_and_survives_a_round_trip(others: list) -> None:
    parser = ofproto_v1_3_parser
    field = {"field": "eth_dst_nxm", "start": 0, "end": 48}
    push, pop = (_serialized([action(**field)]) for action in (parser.NXActionStackPush, parser.NXActionStackPop))
    between = [
        parser.NXActionRegMove(src_field="eth_src_nxm", dst_field="eth_dst_nxm", n_bits=48),
        parser.OFPActionOutput(ofproto_v1_3.OFPP_NORMAL, 0),
    ]
    length = int.from_bytes(push[2:4], "big")  # Ryu leaves out padding that its own length includes
    expected = push.ljust(length, b"\0") + _serialized(between) + pop.ljust(length, b"\0")
    assert ofp.encode_actions((LearnSource(),)) == expected
    actions = (LearnSource(), *others)
    assert ofp._parse_instructions(ofp.encode_instructions(actions)) == actions


@given(st.integers(0, 254), st.none() | st.integers(0, 2**32 - 1), st.none() | macs)
def test_resubmit_equals_ryus_encoding_and_survives_a_round_trip(table: int, place: int | None, marked: bytes | None) -> None:
    parser = ofproto_v1_3_parser
    theirs = [] if place is None else [parser.OFPActionSetField(reg3=place)]
    theirs.append(parser.NXActionResubmitTable(in_port=0xFFF8, table_id=table))
    assert ofp.encode_actions((Resubmit(table, place),)) == _serialized(theirs)
    actions: tuple[Action, ...] = (Resubmit(table, place),)
    if marked is not None and place is None:
        actions = (SetEthSrc(MacAddress(marked)), *actions)
    assert ofp._parse_instructions(ofp.encode_instructions(actions)) == actions


@given(st.lists(st.tuples(st.integers(1, 65279), macs), max_size=8), st.integers(1, 2**24))
def test_failovers_equal_those_of_ryu(ways: list[tuple[int, bytes]], number: int) -> None:
    parser, datapath, none = ofproto_v1_3_parser, _Datapath(), 0xFFFFFFFF
    plain, add = number + 1, 0x8000
    buckets = [
        parser.OFPBucket(0, port, none, [parser.OFPActionSetField(eth_dst=format_mac(mac)), parser.OFPActionOutput(port, 0xFFFF)])
        for port, mac in ways
    ]
    buckets.append(parser.OFPBucket(0, none, plain, [parser.OFPActionGroup(plain)]))
    normal = [parser.OFPBucket(0, none, none, [parser.OFPActionOutput(ofproto_v1_3.OFPP_NORMAL, 0xFFFF)])]
    expected = b""
    for command, kind, group_id, own in (
        (add, ofproto_v1_3.OFPGT_INDIRECT, plain, normal),
        (add, ofproto_v1_3.OFPGT_FF, number, buckets),
        (ofproto_v1_3.OFPGC_DELETE, ofproto_v1_3.OFPGT_FF, 7, []),
    ):
        message = parser.OFPGroupMod(datapath, command, kind, group_id, own)
        message.set_xid(0)
        message.serialize()
        expected += bytes(message.buf)
    group = FailoverGroup(number, tuple((PortNo(port), MacAddress(mac)) for port, mac in ways))
    assert ofp.apply_failovers(ApplyFailovers(DatapathId(1), plain, (group,), (7,))) == expected


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 65279), rewriting), max_size=5), st.integers(1, 2**32 - 256))
def test_group_add_and_group_modify_equal_those_of_ryu(buckets: list, number: int) -> None:
    parser, expected = ofproto_v1_3_parser, []
    for command, xid in ((rewrite.GROUP_ADD, rewrite.UNHEARD), (rewrite.GROUP_MODIFY, 0)):
        theirs = [parser.OFPBucket(w, port, 0xFFFFFFFF, [_ryu_action(a) for a in actions]) for w, port, actions in buckets]
        message = parser.OFPGroupMod(_Datapath(), command, ofproto_v1_3.OFPGT_SELECT, number, theirs)
        message.set_xid(xid)
        message.serialize()
        expected.append(bytes(message.buf))
    group = SelectGroup(number, tuple(Bucket(w, port, tuple(actions)) for w, port, actions in buckets))
    assert rewrite.encode_groups(ApplyGroups(1, (group,))) == b"".join(expected)
    assert rewrite.encode_groups(ApplyGroups(1, changes=(group,))) == expected[1]


def test_groups_are_deleted_by_id() -> None:
    message = ofproto_v1_3_parser.OFPGroupMod(_Datapath(), ofproto_v1_3.OFPGC_DELETE, ofproto_v1_3.OFPGT_SELECT, 77, [])
    message.set_xid(0)
    message.serialize()
    assert rewrite.encode_groups(ApplyGroups(1, deletes=(77,))) == bytes(message.buf)


@given(st.binary(max_size=120))
def test_flow_removed_yields_cookie_and_match_or_a_wire_error(data: bytes) -> None:
    try:
        assert ofp.parse_flow_removed(data)[0] == int.from_bytes(data[8:16], "big")
    except ofp.WireError:
        length = int.from_bytes(data[50:52], "big")
        assert len(data) < 56 or length < 4 or 48 + length > len(data)


@given(entries)
def test_flow_removed_identifies_its_entry(entry: FlowEntry) -> None:
    head = bytes(8) + entry.cookie.to_bytes(8, "big") + bytes(32)
    assert ofp.parse_flow_removed(head + oxm.encode_match(entry.match)) == (entry.cookie, entry.match)


@given(entries)
def test_flow_stats_decode_to_their_entries(entry: FlowEntry) -> None:
    rest = oxm.encode_match(entry.match) + ofp.encode_instructions(entry.actions)
    fixed = struct.pack(
        "!HBxIIHHHH4xQQQ", 48 + len(rest), entry.table, 1, 2, entry.priority, entry.idle_timeout, entry.hard_timeout, 0, entry.cookie, 3, 4
    )
    assert ofp.parse_flow_stats((fixed + rest) * 2) == [entry, entry]


def test_tcp_flags_encoding_equals_that_of_open_vswitch() -> None:
    match = Match(eth_type=0x0800, ipv4_src=(0x0A00000B, 0xFFFFFFFF), ip_proto=6, tcp_flags=(0, 2))
    shown = bytes.fromhex("80000a02080080000c02000080001401068000" + "1604" + "0a00000b" + "ffff55084f4e460000000002")
    assert oxm.encode_match(match)[4 : 4 + len(shown)] == shown and oxm.decode_match(shown) == match
    for broken in (shown[:-1], shown[:-12] + bytes.fromhex("ffff55084f4e470000000002")):
        assert oxm.decode_match(broken).raw == broken


def test_unknown_matches_are_kept_as_raw_bytes() -> None:
    for vlan in map(bytes.fromhex, ("80000c021005", "80000c021000", "80000d0410001000")):
        match = oxm.decode_match(vlan)
        assert match.raw == vlan and oxm.encode_match(match)[4 : 4 + len(vlan)] == vlan


TRANSPORT_FIELDS = ("80001a020050", "80001b0405780fff", "80001c020050", "80002002264c", "8000260106", "ffff55084f4e460000000002")


@pytest.mark.parametrize("field", TRANSPORT_FIELDS)
def test_transport_field_without_its_protocol_is_kept_as_raw_bytes(field: str) -> None:
    """The field lacks its prerequisite (OpenFlow 1.3.5, 7.2.3.8). An entry re-encoded from parsed fields would lose this field."""
    shown = bytes.fromhex("80000a020800" + "80000c020000" + field)
    match = oxm.decode_match(shown)
    assert match.raw == shown and oxm.encode_match(match)[4 : 4 + len(shown)] == shown


def test_match_without_a_vlan_field_differs_from_untagged() -> None:
    """Earlier versions left such entries on switches. They must compare as different, so that the controller replaces them."""
    ip, untagged = bytes.fromhex("80000a020800"), bytes.fromhex("80000c020000")
    assert oxm.decode_match(ip) == Match(eth_type=0x0800, any_vlan=True) != oxm.decode_match(ip + untagged) == Match(eth_type=0x0800)


@given(st.binary(max_size=200))
def test_any_bytes_from_a_switch_are_parsed_or_refused(data: bytes) -> None:
    for parse in (ofp.parse_packet_in, ofp.parse_flow_stats, ofp.parse_ports, ofp.parse_port_status, ofp.parse_error, ofp.check_hello):
        try:
            parse(data)
        except ofp.WireError as error:
            assert str(error)


def test_zero_lengths_from_a_switch_raise_an_error_instead_of_hanging() -> None:
    hello = struct.pack("!BBHI", 4, 0, 12, 1) + struct.pack("!HH", 1, 0)
    stats = struct.pack("!HBxIIHHHH4xQQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) + struct.pack("!HH4x", 1, 4)
    instructions = (
        struct.pack("!HBxIIHHHH4xQQQ", 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) + struct.pack("!HH4x", 1, 4) + struct.pack("!HH4x", 4, 0)
    )
    for parse, data in ((ofp.check_hello, hello), (ofp.parse_flow_stats, stats), (ofp.parse_flow_stats, instructions)):
        with pytest.raises(ofp.WireError):
            parse(data)


@pytest.mark.parametrize(
    ("hello", "well"),
    [
        (struct.pack("!BBHI", 4, 0, 8, 1), True),
        (struct.pack("!BBHI", 6, 0, 8, 1), True),
        (struct.pack("!BBHI", 1, 0, 8, 1), False),
        (struct.pack("!BBHIHHI", 6, 0, 16, 1, 1, 8, 0x52), True),
        (struct.pack("!BBHIHHI", 6, 0, 16, 1, 1, 8, 0x40), False),
        (struct.pack("!BBHIHH", 4, 0, 12, 1, 1, 4), False),
        (struct.pack("!BBHIHH", 4, 0, 1_008, 1, 1, 1_000) + b"\xff" * 996, False),
    ],
)
def test_hellos_that_offer_our_version_are_accepted(hello: bytes, well: bool) -> None:
    if well:
        ofp.check_hello(hello)
        return
    with pytest.raises(ofp.WireError):
        ofp.check_hello(hello)


def test_packet_in_yields_cookie_port_and_frame() -> None:
    assert ofp.parse_packet_in(packet_in(0x1234, 7, b"frame")) == (0x1234, 7, b"frame")


def whole(kind: int, token: int, body: bytes) -> bytes:
    return struct.pack("!BBHI", ofp.VERSION, kind, 8 + len(body), token) + body


messages = st.tuples(
    st.sampled_from([ofp.BARRIER_REPLY, ofp.PACKET_IN, ofp.ECHO_REQUEST]), st.integers(0, 2**32 - 1), st.binary(max_size=9)
)


@given(st.lists(messages, max_size=12), st.binary(min_size=1, max_size=9), st.data())
def test_stream_splits_into_the_same_messages_at_any_cut(said: list, nonsense: bytes, data: st.DataObject) -> None:
    stream = b"".join(whole(*message) for message in said)
    expected = [token if kind == ofp.BARRIER_REPLY else whole(kind, token, body) for kind, token, body in said]
    cut = data.draw(st.integers(0, len(stream)))
    first, at, sound = ofp.split(stream[:cut])
    second, rest, also = ofp.split(stream[at:])
    found = [one for part in (*first, *second) for one in (part if isinstance(part, tuple) else [part])]
    assert found == expected and (sound, also, at + rest) == (True, True, len(stream))
    # a message with an invalid length after the valid messages
    parts, at, sound = ofp.split(stream + struct.pack("!BBHI", ofp.VERSION, 10, len(nonsense) % 8, 0) + nonsense)
    assert (len(stream), False) == (at, sound)
    assert [one for part in parts for one in (part if isinstance(part, tuple) else [part])] == expected
    assert not any(isinstance(one, tuple) and isinstance(other, tuple) for one, other in pairwise(parts)), "barriers in a row form one part"
