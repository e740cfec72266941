"""Weighted round robin over a balance's uplinks inside Open vSwitch (docs/adr/0013). Pure functions.

A bare SYN goes through four tables after `TABLE_REDIRECT`. `TABLE_TURN` has one entry for each balance, which contains the current turn;
the switch replaces this entry without the controller. `TABLE_UPLINK` picks the first uplink with a live port, starting at that turn.
`TABLE_REMEMBER` makes the switch learn an entry for the connection's further segments. `TABLE_LEAVE` makes the switch learn an entry for
the responses, and sends the SYN out. If the limit of learned entries is reached, all packets of a new connection, including its SYN, use
the balance's select group.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Final, NamedTuple

from sos_controller.core.balance.entries import ENDED_IDLE_S, IDLE_S, ResolvedBalance, UplinkRoute, conditions, only_first, out_actions
from sos_controller.core.balance.weighted_round_robin import WeightedRoundRobin
from sos_controller.core.openflow.flow_entries import FlowEntry, GiveTurn, Match, Remember, RememberAnswers, TakeTurn, ToGroup
from sos_controller.core.openflow.pipeline import (
    ETH_IPV4,
    PRIORITY_NEXT,
    PROTO_TCP,
    TABLE_LEAVE,
    TABLE_REDIRECT,
    TABLE_REMEMBER,
    TABLE_UPLINK,
)
from sos_controller.core.types import PortNo

MAX_TURNS: Final = 256
"""Maximum length of the cycle of turns; weights that need a longer cycle are rounded."""
MAX_PORT: Final = 0xFEFF
"""Highest port number of Open vSwitch."""
MAX_REMEMBERED = 16_384
"""Maximum number of learned connections of one balance. It is limited because the switch counts these connections at each new
connection."""
REMEMBERED: Final = 0x10000
"""Bit of register 0 that marks a SYN whose connection is learned; the lower bits contain the uplink's port number (spec/node-config.md
2)."""

_FOUND, _ANY = 2, 1


def sequence(weights: Mapping[str, int]) -> tuple[str, ...]:
    """Return the cycle of turns: each name occurs in proportion to its weight, spread out evenly."""
    common = gcd(*weights.values())
    least = {name: weight // common for name, weight in weights.items()}
    total = sum(least.values())
    if total > MAX_TURNS:
        least = {name: max(1, weight * (MAX_TURNS - len(least)) // total) for name, weight in least.items()}
    round_robin = WeightedRoundRobin(least)
    return tuple(round_robin.turn() for _ in range(sum(least.values())))


class Learned(NamedTuple):
    """Cookies of learned entries. The switch counts the entries of each cookie."""

    out: int
    back: int


def entries(ready: ResolvedBalance, cookie: int, learned: Learned) -> list[FlowEntry]:
    """Return all standing entries of one balance."""
    return [*_take(ready, cookie), *_give(ready, cookie, learned), *_remember(ready, cookie, learned), *_leave(ready, cookie, learned)]


def _take(ready: ResolvedBalance, cookie: int) -> list[FlowEntry]:
    priority, take = PRIORITY_NEXT - ready.number, (TakeTurn(ready.group_id),)
    return [FlowEntry(TABLE_REDIRECT, priority, only_first(match), take, cookie) for match in conditions(ready.balance)]


def _give(ready: ResolvedBalance, cookie: int, learned: Learned) -> list[FlowEntry]:
    """Return one entry for each turn, and one entry for the turns of an earlier, longer cycle."""
    ports = {way.name: way.port_no for way in ready.ways}
    turns = sequence({way.name: way.weight for way in ready.ways if way.up} or {way.name: way.weight for way in ready.ways})
    given = [GiveTurn((turn + 1) % len(turns), _from(name, ports), IDLE_S, learned.back) for turn, name in enumerate(turns)]
    found = [FlowEntry(TABLE_UPLINK, _FOUND, _of(ready, turn), (action,), cookie) for turn, action in enumerate(given)]
    return [*found, FlowEntry(TABLE_UPLINK, _ANY, Match(reg2=ready.group_id), (given[0],), cookie)]


def _from(first: str, ports: Mapping[str, PortNo]) -> tuple[PortNo, ...]:
    """Return the ports in cyclic order, starting with the port of uplink `first`."""
    names = list(ports)
    at = names.index(first)
    return tuple(ports[name] for name in names[at:] + names[:at])


def _remember(ready: ResolvedBalance, cookie: int, learned: Learned) -> list[FlowEntry]:
    def action(way: UplinkRoute) -> Remember:
        return Remember(way.mac, way.router, way.address, IDLE_S, ENDED_IDLE_S, MAX_REMEMBERED, learned.out)

    return [FlowEntry(TABLE_REMEMBER, _FOUND, _of(ready, way.port_no), (action(way),), cookie) for way in ready.ways]


def _leave(ready: ResolvedBalance, cookie: int, learned: Learned) -> list[FlowEntry]:
    def answers(way: UplinkRoute) -> RememberAnswers:
        times = (IDLE_S, ENDED_IDLE_S, MAX_REMEMBERED, learned.back)
        return RememberAnswers(way.port_no, way.address, ready.client, ready.client_mac, *times)

    found = [(_of(ready, REMEMBERED | way.port_no), (answers(way), *out_actions(way))) for way in ready.ways]
    rest = FlowEntry(TABLE_LEAVE, _ANY, Match(reg2=ready.group_id), (ToGroup(ready.group_id),), cookie)
    return [*(FlowEntry(TABLE_LEAVE, _FOUND, match, actions, cookie) for match, actions in found), rest]


def _of(ready: ResolvedBalance, register: int) -> Match:
    """Match the first packet of a balanced connection by register 0, which the previous table has set."""
    return Match(eth_type=ETH_IPV4, ip_proto=PROTO_TCP, reg0=register, reg2=ready.group_id)
