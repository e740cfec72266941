"""OpenFlow 1.3 on the wire, part 3: round robin inside Open vSwitch (ovs-actions(7): "learn", "bundle_load", "resubmit").

Fields have Open vSwitch's names (`nicira`), so that entries read from a switch equal the entries sent.
"""

from __future__ import annotations

import struct
from typing import Final

from sos_controller.core.openflow.flow_entries import Action, GiveTurn, Remember, RememberAnswers, TakeTurn
from sos_controller.core.openflow.pipeline import (
    ETH_IPV4,
    GATEWAY_MAC,
    PRIORITY_ANSWER_CONNECTION,
    PRIORITY_CONNECTION,
    PROTO_TCP,
    TABLE_LEAVE,
    TABLE_REDIRECT,
    TABLE_REMEMBER,
    TABLE_TURN,
    TABLE_UPLINK,
)
from sos_controller.core.types import Address, MacAddress, PortNo
from sos_controller.openflow import nicira

_BUNDLE_LOAD, _LEARN, _LEARN2 = 13, 16, 45
_WRITE_RESULT: Final = 4
"""NX_LEARN_F_WRITE_RESULT: report in a bit whether the entry was made."""

_TURN_BITS, _RESULT_BIT = 16, 16
"""Width in bits of the value in register 0, which is first a turn, then a port; and the bit above this value, which receives the result of
the learn action."""
_TURN_PRIORITY: Final = 1
_MAX_PORTS: Final = 1_024
"""Maximum number of ports of a decoded bundle, far more than there are uplinks: a switch may send any number."""

_LEARN_HEAD = struct.Struct("!HHIHHHHQHBxHH")
_LIMIT = struct.Struct("!IHH")
_BUNDLE = struct.Struct("!HHIHHHHIHHI4x")
_COPY = struct.Struct("!HIHIH")
_PUT_U16, _PUT_U32, _PUT_MAC = struct.Struct("!HHIH"), struct.Struct("!HIIH"), struct.Struct("!H6sIH")
_OUTPUT = struct.Struct("!HIH")
_PUT, _LOAD, _TO_PORT = 0x2000, 0x2800, 0x1000
"""Types of the elements of a learn action: a value to match, a value to load, a field to output to. The low bits of an element's header
contain its width in bits (nx_action_learn)."""


def _copy(source: int, field: int) -> bytes:
    """Match in `field` the value that this packet has in `source`."""
    return _COPY.pack(8 * (field & 0xFF), source, 0, field, 0)


_UNTAGGED: Final = _PUT_U16.pack(_PUT | 13, 0, nicira.VLAN_TCI, 0)
"""Match of untagged frames, as in the controller's own entries: VLAN id and tag-present bit (bit 12) are 0."""
_IS_TCP: Final = _UNTAGGED + _PUT_U16.pack(_PUT | 16, ETH_IPV4, nicira.ETH_TYPE, 0) + _PUT_U16.pack(_PUT | 8, PROTO_TCP, nicira.IP_PROTO, 0)
_CONNECTION: Final = _IS_TCP + b"".join(_copy(field, field) for field in (nicira.IP_SRC, nicira.IP_DST, nicira.TCP_SRC, nicira.TCP_DST))
_FROM_SERVER: Final = _IS_TCP + _copy(nicira.IP_DST, nicira.IP_SRC)
_PORTS_BACK: Final = _copy(nicira.TCP_DST, nicira.TCP_SRC) + _copy(nicira.TCP_SRC, nicira.TCP_DST)
_TABLES: Final = b"".join(map(nicira.resubmit, (TABLE_TURN, TABLE_UPLINK, TABLE_REMEMBER, TABLE_LEAVE)))
_TAKE_BYTES: Final = 2 * nicira.SET_REGISTER_BYTES + len(_TABLES)
_LEARN_TURN_BYTES: Final = _LEARN_HEAD.size + _COPY.size + _PUT_U16.size
_REMEMBER_BYTES, _ANSWERS_BYTES = 184, 184


def encode(action: TakeTurn | GiveTurn | Remember | RememberAnswers) -> bytes:
    """Encode an action as OpenFlow actions."""
    if isinstance(action, TakeTurn):
        return nicira.set_register(nicira.REG0, 0) + nicira.set_register(nicira.REG2, action.group_id) + _TABLES
    if isinstance(action, GiveTurn):
        return _encode_give(action)
    return _encode_remember(action) if isinstance(action, Remember) else _encode_answers(action)


def decode_leading(actions: bytes) -> tuple[Action | None, bytes]:
    """Decode our action at the start of a list; return it (None if there is none) and the rest of the list."""
    for decode in (_decode_take, _decode_give, _decode_remember, _decode_answers):
        found = decode(actions)
        if found is not None:
            encoded = encode(found)
            if actions.startswith(encoded):
                return found, actions[len(encoded) :]
    return None, actions


def _decode_take(actions: bytes) -> TakeTurn | None:
    if len(actions) < _TAKE_BYTES:
        return None
    return TakeTurn(int.from_bytes(actions[24:28], "big"))


def _encode_give(action: GiveTurn) -> bytes:
    """Encode the replacement of the turn's entry, then the load of the first port that is up into the register."""
    head = (
        nicira.EXPERIMENTER,
        _LEARN_TURN_BYTES,
        nicira.NICIRA,
        _LEARN,
        action.idle_s,
        0,
        _TURN_PRIORITY,
        action.cookie,
        0,
        TABLE_TURN,
        0,
        0,
    )
    turn = _copy(nicira.REG2, nicira.REG2) + _PUT_U16.pack(_LOAD | _TURN_BITS, action.following, nicira.REG0, 0)
    ports = struct.pack(f"!{len(action.ports)}H", *action.ports)
    size = _BUNDLE.size + len(ports)
    size += -size % 8
    bundle = (
        nicira.EXPERIMENTER,
        size,
        nicira.NICIRA,
        _BUNDLE_LOAD,
        0,
        0,
        0,
        nicira.IN_PORT,
        len(action.ports),
        _TURN_BITS - 1,
        nicira.REG0,
    )
    return _LEARN_HEAD.pack(*head) + turn + (_BUNDLE.pack(*bundle) + ports).ljust(size, b"\0")


def _decode_give(actions: bytes) -> GiveTurn | None:
    at = _LEARN_TURN_BYTES
    if len(actions) < at + _BUNDLE.size:
        return None
    idle, cookie = _LEARN_HEAD.unpack_from(actions)[4], _LEARN_HEAD.unpack_from(actions)[7]
    following = _PUT_U16.unpack_from(actions, at - _PUT_U16.size)[1]
    count = _BUNDLE.unpack_from(actions, at)[8]
    listed = actions[at + _BUNDLE.size : at + _BUNDLE.size + 2 * count]
    if len(listed) < 2 * count or count > _MAX_PORTS:
        return None
    return GiveTurn(following, tuple(PortNo(port) for (port,) in struct.iter_unpack("!H", listed)), idle, cookie)


def _encode_remember(action: Remember) -> bytes:
    """Encode the learning of an entry like the controller's entries for connections; the register contains the port."""
    parts = (
        _limited(action, PRIORITY_CONNECTION, _WRITE_RESULT, _REMEMBER_BYTES),
        _LIMIT.pack(action.limit, _RESULT_BIT, 0) + nicira.REG0.to_bytes(4, "big") + _CONNECTION,
        _PUT_MAC.pack(_LOAD | 48, action.mac, nicira.ETH_SRC, 0) + _PUT_MAC.pack(_LOAD | 48, action.router, nicira.ETH_DST, 0),
        _PUT_U32.pack(_LOAD | 32, action.address, nicira.IP_SRC, 0) + _OUTPUT.pack(_TO_PORT | _TURN_BITS, nicira.REG0, 0),
    )
    return b"".join(parts).ljust(_REMEMBER_BYTES, b"\0")


def _decode_remember(actions: bytes) -> Remember | None:
    if len(actions) < _REMEMBER_BYTES:
        return None
    at = _LEARN_HEAD.size + _LIMIT.size + 4 + len(_CONNECTION)
    mac, router = (MacAddress(_PUT_MAC.unpack_from(actions, at + i * _PUT_MAC.size)[1]) for i in (0, 1))
    address = Address(_PUT_U32.unpack_from(actions, at + 2 * _PUT_MAC.size)[1])
    return Remember(mac, router, address, *_counted(actions))


def _encode_answers(action: RememberAnswers) -> bytes:
    """Encode the learning of an entry for responses, which outputs to the ingress port of the host's packet."""
    parts = (
        _limited(action, PRIORITY_ANSWER_CONNECTION, 0, _ANSWERS_BYTES),
        _LIMIT.pack(action.limit, 0, 0) + _PUT_U16.pack(_PUT | 16, action.port_no, nicira.IN_PORT, 0) + _FROM_SERVER,
        _PUT_U32.pack(_PUT | 32, action.address, nicira.IP_DST, 0) + _PORTS_BACK,
        _PUT_MAC.pack(_LOAD | 48, GATEWAY_MAC, nicira.ETH_SRC, 0) + _PUT_MAC.pack(_LOAD | 48, action.client_mac, nicira.ETH_DST, 0),
        _PUT_U32.pack(_LOAD | 32, action.client, nicira.IP_DST, 0) + _OUTPUT.pack(_TO_PORT | 16, nicira.IN_PORT, 0),
    )
    return b"".join(parts).ljust(_ANSWERS_BYTES, b"\0")


def _decode_answers(actions: bytes) -> RememberAnswers | None:
    if len(actions) < _ANSWERS_BYTES:
        return None
    at = _LEARN_HEAD.size + _LIMIT.size
    port_no = PortNo(_PUT_U16.unpack_from(actions, at)[1])
    at += _PUT_U16.size + len(_FROM_SERVER)
    address = Address(_PUT_U32.unpack_from(actions, at)[1])
    at += _PUT_U32.size + len(_PORTS_BACK) + _PUT_MAC.size
    mac = MacAddress(_PUT_MAC.unpack_from(actions, at)[1])
    client = Address(_PUT_U32.unpack_from(actions, at + _PUT_MAC.size)[1])
    return RememberAnswers(port_no, address, client, mac, *_counted(actions))


def _limited(action: Remember | RememberAnswers, priority: int, flags: int, size: int) -> bytes:
    """Return the head of a `learn` whose entries are counted."""
    times = (action.idle_s, 0, priority, action.cookie, flags, TABLE_REDIRECT, action.ended_idle_s, 0)
    return _LEARN_HEAD.pack(nicira.EXPERIMENTER, size, nicira.NICIRA, _LEARN2, *times)


def _counted(actions: bytes) -> tuple[int, int, int, int]:
    """Return idle timeout, idle timeout after the end, limit and cookie of a `learn` whose entries are counted."""
    head = _LEARN_HEAD.unpack_from(actions)
    return head[4], head[10], _LIMIT.unpack_from(actions, _LEARN_HEAD.size)[0], head[7]
