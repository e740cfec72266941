"""Tables, priorities, cookies and path MAC addresses (spec/node-config.md, 2), declared once."""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final

from sos_controller.core.types import MacAddress, PortNo

TABLE_REDIRECT: Final = 0
TABLE_FORWARD: Final = 1
TABLE_TURN, TABLE_UPLINK, TABLE_REMEMBER, TABLE_LEAVE = 2, 3, 4, 5
"""Where first packets go whose uplink an Open vSwitch chooses by itself (`turns`)."""

OWN_PORTS: Final = range(32_768, 65_280)
"""Numbers that a node gives its uplinks, agents and tunnels (clause 6): Open vSwitch gives a host's port none of them by itself. What comes
in by an uplink or tunnel is guarded, so no entry of a session meets it."""
REJECT_PORT: Final = PortNo(33_900)
"""Number of the port at which a node resets connections that must not be plain (clause 35)."""
TUNNEL_PORTS: Final = range(35_001, 39_096)
"""Numbers of ports that are tunnels to other nodes (clause 6); nodes have them `protected` (clause 7)."""

SLICES: Final = 1000
"""Priorities that `shared` spreads one over."""

PRIORITY_TO_CONTROLLER: Final = 65000
PRIORITY_PATH: Final = 50000
PRIORITY_REWRITE: Final = 47000
"""Beside an agent whose site rewrites: above the guards, since it is about what agents send and what comes from other nodes."""
PRIORITY_MEASURE: Final = 46200
"""What servers send back that is copied to the controller to measure it: above the guards, since it comes in by a guarded port."""
PRIORITY_ANSWER_CONNECTION: Final = 46100
PRIORITY_ANSWER: Final = 46000
"""What comes back by an uplink to an address that stands for a host: above the guards, which would forward it plainly."""
PRIORITY_GUARD: Final = 44000
"""Below the guards of the base table: an entry with an identical match and priority would replace the base's."""
PRIORITY_REDIRECT: Final = 40000
PRIORITY_SERVICE: Final = 35000
"""Services that stand beforehand: below the sessions that were set up one by one, above the punts."""
PRIORITY_SERVICE_SYN: Final = 36000
"""First packets of those that must not go round their agent (`Service.require`): to a group of their own, armed or not."""
PRIORITY_UNARMED: Final = 34000
"""The same while they take nothing over. Services may overlap: an armed one wins."""
PRIORITY_LED: Final = 39000
"""Fragments between two hosts that are led to the agent of their sessions, or that are not copied for a while."""
PRIORITY_ICMP: Final = 33000
"""ICMP errors that routers send to hosts of a service: copied, and forwarded as if nothing had been."""
PRIORITY_FRAGMENT: Final = PRIORITY_ICMP
"""Fragments between hosts of a service, in the same way. Below services that stand beforehand, which lead them to their agent."""
PRIORITY_TRACK: Final = 32000
"""Segments of a host with sessions at a switch where it is not known to be: above exact entries, below those of sessions and services."""
PRIORITY_EXACT: Final = 31000
"""What belongs to no session of a service, told apart connection by connection before it goes on through the same table (`exact`)."""
PRIORITY_PUNT: Final = 30000
PRIORITY_OBSERVE: Final = 29950
"""First packets that are copied and go on: a service that punts the same ones comes first."""
PRIORITY_TURN: Final = 29900
"""First packets that ask for an uplink: of a datapath's first balance, each further one is one below. Below PUNT: acceleration goes before
spreading. Above the connections' own entries, which outlive their connections, while ports are soon used again."""
PRIORITY_CONNECTION: Final = 29800
PRIORITY_NEXT: Final = 29799
"""First packets that a switch gives an uplink to by itself: of a datapath's first balance, each further one is one below."""
PRIORITY_BALANCE: Final = 29700
"""What goes to the group of a datapath's first balance; each further one is one below."""
PRIORITY_ARP: Final = 20000
PRIORITY_ANSWER_ARP: Final = 900
"""Who asks for an address that nobody has is answered by the switch, and hears it when no controller lives, too."""
PRIORITY_NEIGHBOUR, PRIORITY_STAND_IN = 890, 880
"""What a balance's host asks for on its own subnet, and what it asks for beyond it, having routes but no gateway."""
PRIORITY_ROUTE: Final = 800
"""What is for a host of another routed site; below it what is being asked for (dropped) and what has to be (to the controller)."""
PRIORITY_QUIET: Final = 750
PRIORITY_UNROUTED: Final = 700
PRIORITY_HOST: Final = 500
PRIORITY_BLOCKED: Final = 400
PRIORITY_FLOOD: Final = 300
PRIORITY_MISS: Final = 0

PORT_IN_PORT: Final = PortNo(0xFFFFFFF8)
PORT_NORMAL: Final = PortNo(0xFFFFFFFA)
PORT_CONTROLLER: Final = PortNo(0xFFFFFFFD)
PORT_LOCAL: Final = PortNo(0xFFFFFFFE)
PORT_ANY: Final = PortNo(0xFFFFFFFF)

ETH_IPV4: Final = 0x0800
ETH_ARP: Final = 0x0806
ETH_LLDP: Final = 0x88CC
ARP_REQUEST: Final = 1
PROTO_ICMP: Final = 1
PROTO_TCP: Final = 6
PROTO_UDP: Final = 17

ICMP_UNREACHABLE, ICMP_TIME_EXCEEDED, ICMP_PARAMETER_PROBLEM = 3, 11, 12
ICMP_ERRORS: Final = (ICMP_UNREACHABLE, ICMP_TIME_EXCEEDED, ICMP_PARAMETER_PROBLEM)
"""What a router says about a packet that it could not pass on (RFC 792); the packet's beginning follows."""

TCP_FIN: Final = 0x001
TCP_SYN: Final = 0x002
TCP_RST: Final = 0x004
TCP_ACK: Final = 0x010
BARE_SYN: Final = (TCP_SYN, 0x017)
"""SYN set; ACK, RST and FIN clear."""
NOT_SYN: Final = (0, TCP_SYN)
FRAGMENT: Final = (1, 1)
"""Any fragment, the first one included."""

LEASE_S: Final = 5
"""Hard timeout of punt entries: a dead controller stops punting within this time, and SYNs go plain."""
LEASE_RENEWAL_S: Final = 1.5
"""Two renewals may be lost before a lease runs out."""

SETTLE_S: Final = 0.1
"""Between a change of a flow's entries (the barrier, where there is one) and its SYN. Open vSwitch answers a barrier when its tables have
changed, but for some time more forwards by what it has cached: for less than 25 ms as a rule, and longer where its threads wait for a CPU.
Most sessions need not wait at all (`exact`)."""

MAX_LABELS: Final = 8

_MAGIC: Final = 0x534F
_OWNER_MASK: Final = 0xFFFFFFFF_00000000


GATEWAY_MAC: Final = MacAddress(bytes.fromhex("02534f530002"))
"""Who the controller says a site's gateway is; nobody has it, so what is sent to it is routed by entries or not at all."""


class Kind(IntEnum):
    """What an entry of ours is for (cookie bits 31-24)."""

    PUNT = 1
    GUARD = 2
    REDIRECT = 3
    PATH = 4
    FORWARD = 5
    SERVICE = 6
    BALANCE = 8
    CONNECTION = 9
    MEASURE = 10
    ROUTE = 11
    EXACT = 12
    LEARNED = 13
    TRACK = 14
    ICMP = 15
    FRAGMENT = 16


def owner(controller_id: int) -> tuple[int, int]:
    """Cookie value and mask of everything a controller owns."""
    return (_MAGIC << 48 | ((controller_id + 0x100) & 0xFFFF) << 32, _OWNER_MASK)


def cookie(controller_id: int, kind: Kind, epoch: int, number: int = 0) -> int:
    """Cookie of an entry."""
    return owner(controller_id)[0] | kind << 24 | (epoch & 0xFF) << 16 | (number & 0xFFFF)


def shared(priority: int, cookie: int) -> int:
    """The priority of an entry that several controllers of a switch may make alike. An entry with the match and priority of another takes
    its place, and goes with the controller that made it; so each controller has a priority of its own, and of equal entries one decides."""
    return priority + ((cookie >> 32) - 0x100 & 0xFFFF) % SLICES


def cookie_kind(value: int) -> int:
    """Kind bits of a cookie."""
    return value >> 24 & 0xFF


def cookie_epoch(value: int) -> int:
    """Low byte of the epoch in a cookie."""
    return value >> 16 & 0xFF


def cookie_number(value: int) -> int:
    """Number bits of a cookie."""
    return value & 0xFFFF


UNARMED_MAC: Final = MacAddress(b"\x02SOS\x00\x02")
"""Source of what a service's entry sends to the near agent while the service is not armed (spec/node-config.md 22)."""


def group_id(controller_id: int) -> int:
    """The group of a controller on a datapath that leads to its agent; the number after it is that of the way round (node-config.md 23)."""
    return 0x00520000 + (((controller_id + 0x100) & 0xFFFF) << 1)


def reject_group_id(controller_id: int) -> int:
    """The group for first packets that must not be plain: to the agent, or to the reject port (node-config.md 35)."""
    return 0x00540000 + ((controller_id + 0x100) & 0xFFFF)


def service_number(service_id: str) -> int:
    """Number in the cookies of a service's entries, so that their counters can be told apart."""
    return zlib.crc32(service_id.encode()) & 0xFFFF


def path_mac(label: int, pair: int, side: int) -> MacAddress:
    """Path MAC of a label, a pair of agents and a side (0 = the agent with the lower id)."""
    return MacAddress(bytes((0x02, 0x53, label, pair >> 8, pair & 0xFF, side)))
