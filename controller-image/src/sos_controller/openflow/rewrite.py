"""OpenFlow 1.3 on the wire, part 2: actions that rewrite addresses or point to groups, and groups (clauses as in `ofp`)."""

from __future__ import annotations

import struct

from sos_controller.core.openflow.flow_entries import (
    Action,
    AnswerArp,
    DecTtl,
    FinTimeout,
    ForgetPort,
    GiveTurn,
    LearnSource,
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
from sos_controller.core.openflow.groups import ApplyGroups, Bucket, SelectGroup
from sos_controller.core.openflow.pipeline import PORT_NORMAL, TABLE_REDIRECT
from sos_controller.core.types import Address, MacAddress
from sos_controller.openflow import learn, nicira

VERSION = 4
GROUP_MOD = 15
GROUP_ADD, GROUP_MODIFY, GROUP_DELETE = 0, 1, 2
TYPE_SELECT = 1
NO_GROUP = 0xFFFFFFFF
UNHEARD = 0xFFFFFFFF
"""Transaction id of messages whose refusal is ignored, such as the addition of an existing group. In practice no token reaches this
value."""

_ACTION_OUTPUT, _ACTION_GROUP, _ACTION_SET_FIELD, _ACTION_DEC_TTL = 0, 22, 25, 24
_OXM_IPV4_SRC, _OXM_IPV4_DST = 0x8000_1604, 0x8000_1804
_OXM_TCP_SRC, _OXM_TCP_DST = 0x8000_1A02, 0x8000_1C02
_OXM_ETH_DST, _OXM_ETH_SRC = 0x8000_0606, 0x8000_0806
_REG_MOVE, _FIN_TIMEOUT = 6, 19
_WHOLE_PACKET = 0xFFFF
_RESUBMIT_TABLE_AT = 12
"""Offset of the table in a resubmission, whose type and length take the first 4 bytes."""
_DEC_TTL = struct.pack("!HH4x", 24, 8)

_OXM_ARP_OP, _OXM_ARP_SHA = 0x8000_2A02, 0x8000_3006
_ARP_REPLY = 2

_MOVE = struct.Struct("!HHIHHHHII")
_SET_OP = struct.Struct("!HHIH6x")
_SET_ADDRESS = struct.Struct("!HHII4x")
_SET_PORT = struct.Struct("!HHIH6x")
_SET_ETH = struct.Struct("!HHI6s2x")
_OUTPUT = struct.Struct("!HHIH6x")
_TO_GROUP = struct.Struct("!HHI")
_FIN = struct.Struct("!HHIHHH2x")
_GROUP_MOD = struct.Struct("!BBHIHBxI")
_BUCKET = struct.Struct("!HHII4x")

_FORGET_PORT = _SET_PORT.pack(_ACTION_SET_FIELD, 16, nicira.IN_PORT, 0)


def _move(source: int, target: int) -> bytes:
    return _MOVE.pack(nicira.EXPERIMENTER, 24, nicira.NICIRA, _REG_MOVE, 8 * (source & 0xFF), 0, 0, source, target)


_ARP_TURN = (
    _move(nicira.ETH_SRC, nicira.ETH_DST)
    + _move(nicira.ARP_SHA, nicira.ARP_THA)
    + _move(nicira.ARP_TPA, nicira.REG0)
    + _move(nicira.ARP_SPA, nicira.ARP_TPA)
    + _move(nicira.REG0, nicira.ARP_SPA)
    + _SET_OP.pack(_ACTION_SET_FIELD, 16, _OXM_ARP_OP, _ARP_REPLY)
)
"""Turn the request into a reply to its sender (RFC 826): swap the IP addresses, and copy the sender's MAC address to the target;
`_arp_answer` then sets the reply's sender MAC address."""


_TELL_APART = {
    told: b"".join(_move(field, nicira.REG1) for field in (nicira.IP_SRC, nicira.IP_DST, *ports))
    + nicira.set_register(nicira.REG0, 1)
    + nicira.resubmit(TABLE_REDIRECT)
    for told, ports in (
        (TellApart("source"), (nicira.TCP_SRC,)),
        (TellApart("target"), (nicira.TCP_DST,)),
        (TellApart("both"), (nicira.TCP_SRC, nicira.TCP_DST)),
    )
}
"""A `move` from a field makes the megaflow match all bits of the field; the target, register 1, is otherwise unused."""

_LEARN_SOURCE = (
    nicira.push(nicira.ETH_DST)
    + _move(nicira.ETH_SRC, nicira.ETH_DST)
    + _OUTPUT.pack(_ACTION_OUTPUT, 16, PORT_NORMAL, 0)
    + nicira.pop(nicira.ETH_DST)
)
"""NORMAL learns the source address, then drops the packet, because the address that it has just learned is also the destination: NORMAL
never outputs to the ingress port. The length 0 is that of an entry restored from text, as `sos-node` does after a restart of Open
vSwitch."""


def _arp_answer(mac: MacAddress) -> bytes:
    return _ARP_TURN + b"".join(_SET_ETH.pack(_ACTION_SET_FIELD, 16, field, mac) for field in (_OXM_ARP_SHA, _OXM_ETH_SRC))


def _decode_arp_answer(actions: bytes) -> tuple[AnswerArp | None, bytes]:
    """Decode the start of a list of actions if it answers an ARP request; return the action and the rest of the list."""
    at = len(_ARP_TURN) + _SET_ETH.size - 8
    mac = MacAddress(actions[at : at + 6])
    answer = _arp_answer(mac)
    return (AnswerArp(mac), actions[len(answer) :]) if len(mac) == 6 and actions.startswith(answer) else (None, actions)


def decode_leading(actions: bytes) -> tuple[Action | None, bytes]:
    """If a list starts with the several OpenFlow actions that encode one `Action`, return this `Action` and the rest of the list; otherwise
    return None and the whole list."""
    for told, written in _TELL_APART.items():
        if actions.startswith(written):
            return told, actions[len(written) :]
    if actions.startswith(_LEARN_SOURCE):
        return LearnSource(), actions[len(_LEARN_SOURCE) :]
    placed = _decode_placed(actions)
    if placed[0] is not None:
        return placed
    answer = _decode_arp_answer(actions)
    return learn.decode_leading(actions) if answer[0] is None else answer


def encode_action(action: Action) -> bytes:
    """Encode an action (7.2.5) that `ofp` does not encode itself, or any action of a bucket except Goto."""
    if isinstance(action, Output):
        return _OUTPUT.pack(_ACTION_OUTPUT, 16, action.port_no, _WHOLE_PACKET)
    if isinstance(action, ToGroup):
        return _TO_GROUP.pack(_ACTION_GROUP, 8, action.group_id)
    if isinstance(action, DecTtl):
        return _DEC_TTL
    if isinstance(action, FinTimeout | AnswerArp | TellApart | LearnSource | ForgetPort | Resubmit):
        return _encode_extension(action)
    if isinstance(action, TakeTurn | GiveTurn | Remember | RememberAnswers):
        return learn.encode(action)
    return _encode_set_field(action)


def _encode_extension(action: FinTimeout | AnswerArp | TellApart | LearnSource | ForgetPort | Resubmit) -> bytes:
    """Encode an action that only Open vSwitch has."""
    if isinstance(action, FinTimeout):
        return _FIN.pack(nicira.EXPERIMENTER, 16, nicira.NICIRA, _FIN_TIMEOUT, action.idle_s, 0)
    if isinstance(action, ForgetPort):
        return _FORGET_PORT
    if isinstance(action, LearnSource):
        return _LEARN_SOURCE
    if isinstance(action, Resubmit):
        return _encode_resubmit(action)
    return _arp_answer(action.mac) if isinstance(action, AnswerArp) else _TELL_APART[action]


def _encode_resubmit(action: Resubmit) -> bytes:
    into = nicira.resubmit(action.table)
    return into if action.place is None else nicira.set_register(nicira.REG3, action.place) + into


def _decode_placed(actions: bytes) -> tuple[Resubmit | None, bytes]:
    """Decode the start of a list of actions if it sets register 3 and resubmits; return the action and the rest of the list."""
    end = nicira.SET_REGISTER_BYTES + nicira.RESUBMIT_BYTES
    if len(actions) < end:
        return None, actions
    found = Resubmit(actions[nicira.SET_REGISTER_BYTES + _RESUBMIT_TABLE_AT], int.from_bytes(actions[8:12], "big"))
    return (found, actions[end:]) if actions.startswith(_encode_resubmit(found)) else (None, actions)


def _encode_set_field(action: Action) -> bytes:
    if isinstance(action, SetIpv4Src | SetIpv4Dst):
        field = _OXM_IPV4_DST if isinstance(action, SetIpv4Dst) else _OXM_IPV4_SRC
        return _SET_ADDRESS.pack(_ACTION_SET_FIELD, 16, field, action.address)
    if isinstance(action, SetTcpSrc | SetTcpDst):
        field = _OXM_TCP_DST if isinstance(action, SetTcpDst) else _OXM_TCP_SRC
        return _SET_PORT.pack(_ACTION_SET_FIELD, 16, field, action.port)
    if isinstance(action, SetEthDst | SetEthSrc):
        field = _OXM_ETH_DST if isinstance(action, SetEthDst) else _OXM_ETH_SRC
        return _SET_ETH.pack(_ACTION_SET_FIELD, 16, field, action.mac)
    raise ValueError(f"{type(action).__name__} is an instruction")


def decode_action(kind: int, body: bytes) -> Action | None:
    """Decode an action of ours from its type and the bytes after type and length; return None for other actions."""
    if kind == _ACTION_GROUP and len(body) == _TO_GROUP.size - 4:
        return ToGroup(int.from_bytes(body, "big"))
    if kind == _ACTION_DEC_TTL and len(body) == len(_DEC_TTL) - 4:
        return DecTtl()
    if kind == _ACTION_SET_FIELD and len(body) == _SET_ADDRESS.size - 4:
        return _decode_set_field(*struct.unpack_from("!II", body))
    if kind == nicira.EXPERIMENTER and len(body) == _FIN.size - 4:
        vendor, subtype, idle, hard = struct.unpack_from("!IHHH", body)
        if (vendor, subtype, hard) == (nicira.NICIRA, _FIN_TIMEOUT, 0):
            return FinTimeout(idle)
        into = Resubmit(body[_RESUBMIT_TABLE_AT - 4])
        return into if _encode_resubmit(into)[4:] == body else None
    return None


def _decode_set_field(field: int, value: int) -> Action | None:
    if field in (_OXM_IPV4_SRC, _OXM_IPV4_DST):
        return SetIpv4Dst(Address(value)) if field == _OXM_IPV4_DST else SetIpv4Src(Address(value))
    if field in (_OXM_TCP_SRC, _OXM_TCP_DST):
        return SetTcpDst(value >> 16) if field == _OXM_TCP_DST else SetTcpSrc(value >> 16)
    return ForgetPort() if (field, value) == (nicira.IN_PORT, 0) else None


def encode_groups(command: ApplyGroups) -> bytes:
    """Return ofp_group_mod (7.3.4.3): a group that may exist is added and then modified; the addition fails if the group exists."""
    parts = [_group_mod(GROUP_ADD, group, UNHEARD) for group in command.puts]
    parts += [_group_mod(GROUP_MODIFY, group, 0) for group in (*command.puts, *command.changes)]
    parts += [_group_mod(GROUP_DELETE, SelectGroup(number, ()), 0) for number in command.deletes]
    return b"".join(parts)


def _group_mod(command: int, group: SelectGroup, xid: int) -> bytes:
    buckets = b"".join(_encode_bucket(bucket) for bucket in group.buckets)
    return _GROUP_MOD.pack(VERSION, GROUP_MOD, _GROUP_MOD.size + len(buckets), xid, command, TYPE_SELECT, group.group_id) + buckets


def _encode_bucket(bucket: Bucket) -> bytes:
    actions = b"".join(encode_action(action) for action in bucket.actions)
    return _BUCKET.pack(_BUCKET.size + len(actions), bucket.weight, bucket.watch_port, NO_GROUP) + actions
