"""Open vSwitch's extensions of OpenFlow 1.3 on the wire: field names (the names that replies contain, whatever names a request contains),
and the actions that `rewrite` and `learn` share (ovs-fields(7), ovs-actions(7))."""

from __future__ import annotations

import struct
from typing import Final

EXPERIMENTER: Final = 0xFFFF
NICIRA: Final = 0x2320

IN_PORT: Final = 0x0000_0002
ETH_DST, ETH_SRC, ETH_TYPE = 0x0000_0206, 0x0000_0406, 0x0000_0602
VLAN_TCI: Final = 0x0000_0802
IP_PROTO, IP_SRC, IP_DST = 0x0000_0C01, 0x0000_0E04, 0x0000_1004
TCP_SRC, TCP_DST = 0x0000_1202, 0x0000_1402
ARP_SPA, ARP_TPA, ARP_SHA, ARP_THA = 0x0000_2004, 0x0000_2204, 0x0001_2206, 0x0001_2406
IP_FRAG_M: Final = 0x0001_3502
REG0, REG1, REG2, REG3 = 0x0001_0004, 0x0001_0204, 0x0001_0404, 0x0001_0604

_SET_FIELD, _RESUBMIT_TABLE, _SAME_PORT = 25, 14, 0xFFF8
_STACK_PUSH, _STACK_POP = 27, 28
_RESUBMIT = struct.Struct("!HHIHHB3x")
_SET_REGISTER = struct.Struct("!HHII4x")
_STACK = struct.Struct("!HHIHHIH6x")
SET_REGISTER_BYTES: Final = 16
RESUBMIT_BYTES: Final = 16


def resubmit(table: int) -> bytes:
    """Return the action that resubmits a packet to a table with the same ingress port."""
    return _RESUBMIT.pack(EXPERIMENTER, _RESUBMIT.size, NICIRA, _RESUBMIT_TABLE, _SAME_PORT, table)


def set_register(register: int, value: int) -> bytes:
    """Return the action that sets a register (OFPAT_SET_FIELD)."""
    return _SET_REGISTER.pack(_SET_FIELD, SET_REGISTER_BYTES, register, value)


def push(field: int) -> bytes:
    """Return the action that pushes a field onto the switch's stack for this packet."""
    return _STACK.pack(EXPERIMENTER, _STACK.size, NICIRA, _STACK_PUSH, 0, field, 8 * (field & 0xFF))


def pop(field: int) -> bytes:
    """Return the action that restores a field from the stack."""
    return _STACK.pack(EXPERIMENTER, _STACK.size, NICIRA, _STACK_POP, 0, field, 8 * (field & 0xFF))
