"""Entries and groups of a balance (docs/adr/0013). Pure functions of host, uplinks and their routers.

Outgoing packets, sent to `GATEWAY_MAC`, are rewritten to the uplink's addresses. Responses, sent to the uplink's address, are rewritten to
the host's addresses. Connections to the host cannot be opened from outside: only segments with ACK or RST are forwarded to it.
"""

from __future__ import annotations

from typing import NamedTuple

from sos_controller.core.config import Balance
from sos_controller.core.openflow.flow_entries import (
    Action,
    FinTimeout,
    FlowEntry,
    Goto,
    Match,
    Output,
    SetEthDst,
    SetEthSrc,
    SetIpv4Dst,
    SetIpv4Src,
    ToGroup,
)
from sos_controller.core.openflow.groups import Bucket, SelectGroup
from sos_controller.core.openflow.pipeline import (
    BARE_SYN,
    ETH_ARP,
    ETH_IPV4,
    GATEWAY_MAC,
    LEASE_S,
    PORT_CONTROLLER,
    PRIORITY_ANSWER,
    PRIORITY_ANSWER_CONNECTION,
    PRIORITY_BALANCE,
    PRIORITY_CONNECTION,
    PRIORITY_TURN,
    PROTO_TCP,
    TABLE_FORWARD,
    TABLE_REDIRECT,
)
from sos_controller.core.openflow.port_masks import masks
from sos_controller.core.tables.policies import outermost
from sos_controller.core.types import Address, FlowKey, MacAddress, PortNo, flow_key
from sos_controller.core.wire.packets import Syn

IDLE_S = 7_440
"""Idle timeout of an established connection: 2 hours 4 minutes (RFC 5382, REQ-5)."""
ENDED_IDLE_S = 60
"""Idle timeout after a FIN or RST: long enough to retransmit a lost last segment."""
MAX_CONDITIONS = 1_024
"""Maximum number of entries that select the connections of one balance; a balance that needs more is not programmed."""

_EXACT = 0xFFFFFFFF
_EXACT_PORT = 0xFFFF
_ACK, _RST = (0x010, 0x010), (0x004, 0x004)


class UplinkRoute(NamedTuple):
    """An uplink whose router has answered. `mac`, `port_no` and `up` describe its port."""

    name: str
    weight: int
    port_no: PortNo
    mac: MacAddress
    address: Address
    router: MacAddress
    up: bool


class ResolvedBalance(NamedTuple):
    """A balance that can be programmed: its host's location, and its uplinks. `number`: position among the balances of its datapath.

    `takes_turns`: the switch is Open vSwitch and does round robin itself (`ovs_round_robin`).
    """

    balance: Balance
    number: int
    group_id: int
    client: Address
    client_mac: MacAddress
    client_port: PortNo
    ways: tuple[UplinkRoute, ...]
    takes_turns: bool


def conditions(balance: Balance) -> list[Match]:
    """Return the matches that select the connections; at most MAX_CONDITIONS + 1, even if the policy would need a million."""
    found: list[Match] = []
    client = (balance.host, _EXACT)
    ports = dict.fromkeys(m for r in balance.ports for m in masks(r.first, r.last))
    for prefix in outermost(balance.destinations()):
        for value, mask in ports:
            port = (value, mask) if mask else None
            found.append(
                Match(
                    eth_dst=GATEWAY_MAC,
                    eth_type=ETH_IPV4,
                    ip_proto=PROTO_TCP,
                    ipv4_src=client,
                    ipv4_dst=prefix.masked,
                    tcp_dst=port,
                )
            )
            if len(found) > MAX_CONDITIONS:
                return found
    return found


def group(ready: ResolvedBalance) -> SelectGroup:
    """Return the group that selects an uplink by hash."""
    return SelectGroup(ready.group_id, tuple(Bucket(way.weight, way.port_no, out_actions(way)) for way in ready.ways))


def standing(ready: ResolvedBalance, cookie: int) -> list[FlowEntry]:
    """Return the standing entries, whose number is independent of connections: they send the host's connections to the group, and responses
    to the host."""
    priority = PRIORITY_BALANCE - ready.number
    decide: tuple[Action, ...] = (ToGroup(ready.group_id),)
    found = [FlowEntry(TABLE_REDIRECT, priority, match, decide, cookie) for match in conditions(ready.balance)]
    back = _back_actions(ready)
    for way in ready.ways:
        for prefix in outermost(ready.balance.destinations()):
            for flags in (_ACK, _RST):
                match = Match(
                    in_port=way.port_no,
                    eth_type=ETH_IPV4,
                    ip_proto=PROTO_TCP,
                    ipv4_src=prefix.masked,
                    ipv4_dst=(way.address, _EXACT),
                    tcp_flags=flags,
                )
                found.append(FlowEntry(TABLE_REDIRECT, PRIORITY_ANSWER, match, back, cookie))
    return found


def punts(ready: ResolvedBalance, cookie: int) -> list[FlowEntry]:
    """Return leases that punt first packets. If no controller renews them, an earlier connection's entry, the switch's round robin or the
    group decides."""
    action: tuple[Action, ...] = (Output(PORT_CONTROLLER),)
    priority = PRIORITY_TURN - ready.number
    return [FlowEntry(TABLE_REDIRECT, priority, only_first(match), action, cookie, LEASE_S) for match in conditions(ready.balance)]


def listening(port_no: PortNo, cookie: int) -> FlowEntry:
    """Return the entry that copies ARP from an uplink to the controller; plain forwarding continues as before."""
    match = Match(in_port=port_no, eth_type=ETH_ARP)
    return FlowEntry(TABLE_REDIRECT, PRIORITY_ANSWER, match, (Output(PORT_CONTROLLER), Goto(TABLE_FORWARD)), cookie)


def connection(ready: ResolvedBalance, syn: Syn, way: UplinkRoute, cookie: int, *, ours: bool) -> tuple[FlowEntry, FlowEntry]:
    """Return the two entries of one connection. `ours`: the switch is Open vSwitch, and can detect the end of the connection."""
    end: tuple[Action, ...] = (FinTimeout(ENDED_IDLE_S),) if ours else ()
    out = Match(
        eth_type=ETH_IPV4,
        ip_proto=PROTO_TCP,
        ipv4_src=(syn.client, _EXACT),
        ipv4_dst=(syn.server, _EXACT),
        tcp_src=(syn.client_port, _EXACT_PORT),
        tcp_dst=(syn.server_port, _EXACT_PORT),
    )
    back = Match(
        in_port=way.port_no,
        eth_type=ETH_IPV4,
        ip_proto=PROTO_TCP,
        ipv4_src=(syn.server, _EXACT),
        ipv4_dst=(way.address, _EXACT),
        tcp_src=(syn.server_port, _EXACT_PORT),
        tcp_dst=(syn.client_port, _EXACT_PORT),
    )
    return (
        FlowEntry(TABLE_REDIRECT, PRIORITY_CONNECTION, out, (*end, *out_actions(way)), cookie, 0, IDLE_S, told=True),
        FlowEntry(TABLE_REDIRECT, PRIORITY_ANSWER_CONNECTION, back, (*end, *_back_actions(ready)), cookie, 0, IDLE_S),
    )


def connection_key(match: Match) -> FlowKey | None:
    """Return the flow of a connection's outgoing entry; None if `connection` does not make such an entry."""
    if match.ipv4_src is None or match.ipv4_dst is None or match.tcp_src is None or match.tcp_dst is None:
        return None
    return flow_key(match.ipv4_src[0], match.ipv4_dst[0], match.tcp_src[0], match.tcp_dst[0])


def out_actions(way: UplinkRoute) -> tuple[Action, ...]:
    """Return the actions that send a packet out of an uplink, with the uplink's addresses (the paper's algorithm 1)."""
    return (SetEthSrc(way.mac), SetEthDst(way.router), SetIpv4Src(way.address), Output(way.port_no))


def _back_actions(ready: ResolvedBalance) -> tuple[Action, ...]:
    return (SetEthSrc(GATEWAY_MAC), SetEthDst(ready.client_mac), SetIpv4Dst(ready.client), Output(ready.client_port))


def only_first(match: Match) -> Match:
    """Narrow a condition to the first packets of its connections."""
    return Match(
        eth_dst=match.eth_dst,
        eth_type=match.eth_type,
        ip_proto=match.ip_proto,
        ipv4_src=match.ipv4_src,
        ipv4_dst=match.ipv4_dst,
        tcp_dst=match.tcp_dst,
        tcp_flags=BARE_SYN,
    )
