"""Several agents of one datapath for proactive services, without state per connection (docs/adr/0074).

A connection's *slot* is six bits of its client's port. Each slot belongs to one agent, which gets the connection's SYN and so its session.
Peers choose an egress agent by the same rule (spec/node-config.md 11), so a packet's first agent is the session's agent, as long as slots
do not change.

After a change of the agents, a packet's first agent may not have the session. Its kernel then forwards the packet, and the switch gets it
from the agent's port. This port and the slot tell the switch which agents have had the packet: it sends the packet to the next one. The
packet so makes a *round* of all agents until the agent with its session takes it; after the last agent, the packet is plain. So agents may
come and go at any time without breaking a session of another agent.

    table 0   service, from a host            -> table 6 (client to server) or 7 (server to client)
              service, from an agent's port   -> the same
    table 6/7 slot                            -> table 8, register 3 := place of the slot's agent
    table 8   register 3                      -> group: the agents from this place on
              agent's port and register 3     -> group: the agents after this port's agent, up to the start of the round

Groups skip agents whose ports are down. An agent keeps its place while it is a member. A new member joins in two steps: first the switch
gets the entries for packets from the member's port, then the groups that send packets to the member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from sos_controller.core.openflow.flow_entries import FlowEntry, Goto, Match, Resubmit, ToGroup
from sos_controller.core.openflow.groups import FailoverGroup
from sos_controller.core.openflow.pipeline import (
    BARE_SYN,
    ETH_IPV4,
    NOT_SYN,
    PRIORITY_RING,
    PRIORITY_RING_GUARD,
    PROTO_TCP,
    RING_PLACES,
    TABLE_FORWARD,
    TABLE_FROM_CLIENT,
    TABLE_FROM_SERVER,
    TABLE_REDIRECT,
    TABLE_RING,
    ring_group_id,
    ring_place,
    shared,
)
from sos_controller.core.types import Address, AgentId, MacAddress, PortNo

SLOTS: Final = 64
SLOT_BIT: Final = 1
"""Lowest bit of a slot in a client's port. Bit 0 is left out: Linux gives ports of one parity to `connect` (kernel documentation,
ip-sysctl, "ip_local_port_range")."""
_SLOT_MASK: Final = SLOTS - 1 << SLOT_BIT
_EXACT: Final = 0xFFFFFFFF

_FROM_AGENT, _CHOSEN, _OTHER = 20_000, 10_000, 0
"""Priorities within the tables of this module: packets from an agent; slots, and packets from a host; all others."""


class Member(NamedTuple):
    """An agent of the datapath. `joined`: groups may send packets to it. `takes`: slots may belong to it."""

    place: int
    port_no: PortNo
    mac: MacAddress
    address: Address
    joined: bool
    takes: bool


Members = Mapping[AgentId, Member]


def slot_of(port: int) -> int:
    """Return the slot of a client's port."""
    return (port & _SLOT_MASK) >> SLOT_BIT


def owners(declared: Sequence[AgentId], takes: Collection[AgentId]) -> list[AgentId]:
    """Return the agent of each slot; [] if no agent takes sessions. `declared`: all agents in the order of the configuration. A slot whose
    own agent takes none goes to the others in turn, and no other slot changes."""
    order = [agent for agent in declared if agent in takes]
    if not order:
        return []
    found = []
    for slot in range(SLOTS):
        own = declared[slot % len(declared)]
        found.append(own if own in takes else order[slot // len(declared) % len(order)])
    return found


def place_for(agent_id: AgentId, declared: Sequence[AgentId], taken: Collection[int]) -> int | None:
    """Return a free place: preferably an agent's place in the configuration, so that places are the same after a restart; None if all are
    taken."""
    own = declared.index(agent_id) if agent_id in declared else RING_PLACES
    free = [place for place in range(RING_PLACES) if place not in taken]
    return own if own in free else (free[-1] if free else None)


def groups(members: Members, controller_id: int) -> list[FailoverGroup]:
    """Return the groups of all rounds that can begin at a member."""
    ways = {m.place: (m.port_no, m.mac) for m in members.values() if m.joined}
    found = []
    for start in sorted(m.place for m in members.values()):
        for step in range(RING_PLACES):
            rest = [(start + later) % RING_PLACES for later in range(step, RING_PLACES)]
            group_id = ring_group_id(controller_id, start, rest[0])
            found.append(FailoverGroup(group_id, tuple(ways[place] for place in rest if place in ways)))
    return found


def tables(members: Members, declared: Sequence[AgentId], controller_id: int, cookie: int) -> list[FlowEntry]:
    """Return the entries of slots, of rounds, and those that exempt packets from members' own addresses."""
    plain = (Resubmit(TABLE_FORWARD),)
    from_agent, chosen = shared(_FROM_AGENT, cookie), shared(_CHOSEN, cookie)
    made = [FlowEntry(TABLE_RING, shared(_OTHER, cookie), Match(), plain, cookie)]
    for start in sorted(m.place for m in members.values()):
        first = (ToGroup(ring_group_id(controller_id, start, start)),)
        made.append(FlowEntry(TABLE_RING, chosen, Match(reg3=start), first, cookie))
        for member in members.values():
            following = (member.place + 1) % RING_PLACES
            rest = plain if following == start else (ToGroup(ring_group_id(controller_id, start, following)),)
            made.append(FlowEntry(TABLE_RING, from_agent, Match(in_port=member.port_no, reg3=start), rest, cookie))
    made += _slots(members, declared, cookie)
    for member in members.values():
        own = Match(in_port=member.port_no, eth_type=ETH_IPV4, ipv4_src=(member.address, _EXACT))
        made.append(FlowEntry(TABLE_REDIRECT, shared(PRIORITY_RING_GUARD, cookie), own, (Goto(TABLE_FORWARD),), cookie))
    return made


def _slots(members: Members, declared: Sequence[AgentId], cookie: int) -> list[FlowEntry]:
    """Return the entries that map a client's port to a place. Packets without a port (ICMP errors) begin at the agent of slot 0."""
    joined = [agent_id for agent_id, member in members.items() if member.joined]
    takes = [agent_id for agent_id in joined if members[agent_id].takes and agent_id in declared]
    order = declared if takes else joined  # if no agent takes sessions, packets of running sessions still make their round
    made = []
    places = [members[agent_id].place for agent_id in owners(order, takes or joined)]
    for table in (TABLE_FROM_CLIENT, TABLE_FROM_SERVER):
        others = Resubmit(TABLE_RING, places[0]) if places else Resubmit(TABLE_FORWARD)
        made.append(FlowEntry(table, shared(_OTHER, cookie), Match(), (others,), cookie))
        for slot, place in enumerate(places):
            port, first = (slot << SLOT_BIT, _SLOT_MASK), table == TABLE_FROM_CLIENT
            match = Match(eth_type=ETH_IPV4, ip_proto=PROTO_TCP, tcp_src=port if first else None, tcp_dst=None if first else port)
            made.append(FlowEntry(table, shared(_CHOSEN, cookie), match, (Resubmit(TABLE_RING, place),), cookie))
    return made


def places_of(entries: Iterable[FlowEntry]) -> dict[PortNo, int]:
    """Return the places of members by their ports, from the entries of an earlier run."""
    found = {}
    for entry in entries:
        port_no, start = entry.match.in_port, entry.match.reg3
        if entry.table == TABLE_RING and port_no is not None and start is not None and entry.actions:
            rest = entry.actions[0]
            following = ring_place(rest.group_id) if isinstance(rest, ToGroup) else start
            found[port_no] = (following - 1) % RING_PLACES
    return found


def onward(members: Members, matches: Iterable[Match], ingress: bool, cookie: int) -> list[FlowEntry]:
    """Return the entries by which packets that a member has forwarded continue their round. A client's SYN does not: the agent that got it
    has decided that its connection is plain."""
    made = []
    table = TABLE_FROM_CLIENT if ingress else TABLE_FROM_SERVER
    for match in matches:
        if match.tcp_flags == BARE_SYN:
            continue
        not_first = ingress and match.ip_proto == PROTO_TCP and match.ip_frag is None
        for member in members.values():
            flags = NOT_SYN if not_first else match.tcp_flags
            led = msgspec.structs.replace(match, in_port=member.port_no, tcp_flags=flags)
            made.append(FlowEntry(TABLE_REDIRECT, shared(PRIORITY_RING, cookie), led, (Resubmit(table),), cookie))
    return made
