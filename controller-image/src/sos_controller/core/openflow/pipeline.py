"""Tables, priorities, cookies and path MAC addresses (spec/node-config.md, 2), declared once."""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final

from sos_controller.core.types import MacAddress, PortNo

TABLE_REDIRECT: Final = 0
TABLE_FORWARD: Final = 1
TABLE_TURN, TABLE_UPLINK, TABLE_REMEMBER, TABLE_LEAVE = 2, 3, 4, 5
"""Tables for first packets whose uplink an Open vSwitch chooses by itself (`balance.ovs_round_robin`)."""
TABLE_FROM_CLIENT, TABLE_FROM_SERVER, TABLE_RING = 6, 7, 8
"""Tables that choose one of a datapath's agents for packets of proactive services (`services.agent_ring`): by the client's port, which is
the source or the destination, and by the agent that has already had the packet."""

OWN_PORTS: Final = range(32_768, 65_280)
"""Port numbers that a node assigns to its uplinks, agents and tunnels (clause 6): Open vSwitch never assigns them to a host's port by
itself. Packets from an uplink or tunnel are guarded, so they match no entry of a session."""
REJECT_PORT: Final = PortNo(33_900)
"""Number of the port at which a node resets connections that must not be plain (clause 35)."""
TUNNEL_PORTS: Final = range(35_001, 39_096)
"""Port numbers of tunnels to other nodes (clause 6); nodes make these ports `protected` (clause 7)."""

SLICES: Final = 1000
"""Number of priorities over which `shared` spreads one priority."""

PRIORITY_TO_CONTROLLER: Final = 65000
PRIORITY_PATH: Final = 50000
PRIORITY_REWRITE: Final = 47000
"""Entries at the switch of an agent whose site rewrites: above the guards, since they match packets of agents and of other nodes."""
PRIORITY_MEASURE: Final = 46200
"""Servers' packets that are copied to the controller for measurement: above the guards, since these packets arrive on a guarded port."""
PRIORITY_ANSWER_CONNECTION: Final = 46100
PRIORITY_ANSWER: Final = 46000
"""Responses from an uplink to an address that represents a host: above the guards, which would forward them as plain traffic."""
PRIORITY_GUARD: Final = 44000
"""Guards of the controller: below the guards of the base table, since an entry with the same match and priority would replace the base
table's guard."""
PRIORITY_RING_GUARD, PRIORITY_RING = 49000, 48000
"""Packets of proactive services that an agent's kernel has forwarded because they are not of its own sessions: above the guards, which
would forward them as plain traffic. RING_GUARD exempts packets from the agent's own address."""
PRIORITY_REDIRECT: Final = 40000
PRIORITY_SERVICE: Final = 35000
"""Proactive services: below entries of single sessions, above punts."""
PRIORITY_SERVICE_SYN: Final = 36000
"""First packets that must not bypass their service's agent (`Service.require`): sent to a separate group, armed or not."""
PRIORITY_UNARMED: Final = 34000
"""Proactive services before they are armed. Services may overlap: an armed service wins."""
PRIORITY_REDIRECTED: Final = 39000
"""Fragments between two hosts that are redirected to the agent of their sessions, or that are temporarily not copied."""
PRIORITY_ICMP: Final = 33000
"""ICMP errors that routers send to hosts of a service: copied, and forwarded as if the entry did not exist."""
PRIORITY_FRAGMENT: Final = PRIORITY_ICMP
"""Fragments between hosts of a service: copied and forwarded like ICMP errors. Below proactive services, which redirect them to their
agent."""
PRIORITY_TRACK: Final = 32000
"""Segments that a host with sessions sends at a switch other than its known switch: above exact entries, below entries of sessions and
services."""
PRIORITY_EXACT: Final = 31000
"""Packets of a service that belong to no session, matched by connection before they continue through the same table
(`services.cache_guard`)."""
PRIORITY_PUNT: Final = 30000
PRIORITY_OBSERVE: Final = 29950
"""First packets that are copied and continue: a service that punts the same packets takes precedence."""
PRIORITY_TURN: Final = 29900
"""First packets that need an uplink, for a datapath's first balance; each further balance is one below. Below PUNT: acceleration takes
precedence over balancing. Above the entries of connections: these outlive their connections, and hosts soon reuse ports."""
PRIORITY_CONNECTION: Final = 29800
PRIORITY_NEXT: Final = 29799
"""First packets to which a switch assigns an uplink by itself, for a datapath's first balance; each further balance is one below."""
PRIORITY_BALANCE: Final = 29700
"""Packets to the group of a datapath's first balance; each further balance is one below."""
PRIORITY_ARP: Final = 20000
PRIORITY_ANSWER_ARP: Final = 900
"""Entries by which the switch answers requests for an address that no host has, even if no controller runs."""
PRIORITY_NEIGHBOUR, PRIORITY_STAND_IN = 890, 880
"""A balance host's ARP requests for its own subnet, and for addresses beyond the subnet if the host has routes but no gateway."""
PRIORITY_ROUTE: Final = 800
"""Packets for a host of another routed site. Below: PRIORITY_QUIET drops packets to destinations being resolved, and PRIORITY_UNROUTED
punts packets to other destinations."""
PRIORITY_QUIET: Final = 750
PRIORITY_UNROUTED: Final = 700
PRIORITY_HOST: Final = 500
PRIORITY_BLOCKED: Final = 400
PRIORITY_FLOOD: Final = 300
PRIORITY_TEST: Final = 1
"""Entries by which `entry_check` checks a switch: with the actions of the miss entry."""
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
"""Types of a router's errors about a packet that it could not forward (RFC 792). Each error quotes the start of the packet."""

TCP_FIN: Final = 0x001
TCP_SYN: Final = 0x002
TCP_RST: Final = 0x004
TCP_ACK: Final = 0x010
BARE_SYN: Final = (TCP_SYN, 0x017)
"""SYN set; ACK, RST and FIN clear."""
NOT_SYN: Final = (0, TCP_SYN)
FRAGMENT: Final = (1, 1)
"""Any fragment, including the first."""

LEASE_S: Final = 5
"""Hard timeout of punt entries: a dead controller stops punting within this time, and SYNs go plain."""
LEASE_RENEWAL_S: Final = 1.5
"""Two renewals may be lost before a lease runs out."""

SETTLE_S: Final = 0.1
"""Delay between a change of a flow's entries (its barrier reply, if a barrier is sent) and the flow's SYN. Open vSwitch answers a barrier
when its tables have changed, but still forwards by cached megaflows for some time: usually less than 25 ms, longer if its threads wait for
a CPU. Most sessions need no delay (`services.cache_guard`)."""

MAX_LABELS: Final = 8

RING_PLACES: Final = 8
"""Maximum number of agents of one datapath that serve proactive services. A packet of a plain connection may pass each of them, and each
decrements its TTL."""

_RING_GROUPS: Final = 0x00600000
_MAGIC: Final = 0x534F
_OWNER_MASK: Final = 0xFFFFFFFF_00000000


GATEWAY_MAC: Final = MacAddress(bytes.fromhex("02534f530002"))
"""MAC address of a site's virtual gateway; no device has it, so packets to it are routed by entries or not at all."""


class Kind(IntEnum):
    """Purpose of an entry of ours (cookie bits 31-24)."""

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
    RING = 17


def owner(controller_id: int) -> tuple[int, int]:
    """Return cookie value and mask of all entries that a controller owns."""
    return (_MAGIC << 48 | ((controller_id + 0x100) & 0xFFFF) << 32, _OWNER_MASK)


def cookie(controller_id: int, kind: Kind, epoch: int, number: int = 0) -> int:
    """Return the cookie of an entry."""
    return owner(controller_id)[0] | kind << 24 | (epoch & 0xFF) << 16 | (number & 0xFFFF)


def shared(priority: int, cookie: int) -> int:
    """Return the priority of an entry that several controllers may install on a switch with the same match. With equal priorities, one
    entry would replace the other and be removed with its controller; so each controller has its own priority, and the highest takes
    precedence."""
    return priority + ((cookie >> 32) - 0x100 & 0xFFFF) % SLICES


def cookie_kind(value: int) -> int:
    """Return the kind bits of a cookie."""
    return value >> 24 & 0xFF


def cookie_epoch(value: int) -> int:
    """Return the low byte of the epoch in a cookie."""
    return value >> 16 & 0xFF


def cookie_number(value: int) -> int:
    """Return the number bits of a cookie."""
    return value & 0xFFFF


UNARMED_MAC: Final = MacAddress(b"\x02SOS\x00\x02")
"""Source of packets that a service's entry sends to the ingress agent while the service is not armed (spec/node-config.md 22)."""


def group_id(controller_id: int) -> int:
    """Return the id of a controller's group that points to the datapath's agent; the next id is the group that bypasses the agent
    (node-config.md 23)."""
    return 0x00520000 + (((controller_id + 0x100) & 0xFFFF) << 1)


def reject_group_id(controller_id: int) -> int:
    """Return the id of the group for first packets that must not be plain: it points to the agent, or to the reject port (node-config.md
    35)."""
    return 0x00540000 + ((controller_id + 0x100) & 0xFFFF)


def ring_group_id(controller_id: int, start: int, place: int) -> int:
    """Return the id of a controller's group for packets whose round of the datapath's agents began at place `start` and continues at
    `place` (node-config.md 44)."""
    return _RING_GROUPS + (start * RING_PLACES + place << 16) + ((controller_id + 0x100) & 0xFFFF)


def ring_place(group_id: int) -> int:
    """Return the place at which the round of a group of `ring_group_id` continues."""
    return (group_id - _RING_GROUPS >> 16) % RING_PLACES


def ring_plain_group_id(controller_id: int) -> int:
    """Return the id of the group to which the groups of `ring_group_id` fall back: plain forwarding."""
    return 0x00A00000 + ((controller_id + 0x100) & 0xFFFF)


def service_number(service_id: str) -> int:
    """Return the number in the cookies of a service's entries, which separates the counters of services."""
    return zlib.crc32(service_id.encode()) & 0xFFFF


def path_mac(label: int, pair: int, side: int) -> MacAddress:
    """Return the path MAC of a label, a pair of agents and a side (0 = the agent with the lower id)."""
    return MacAddress(bytes((0x02, 0x53, label, pair >> 8, pair & 0xFF, side)))
