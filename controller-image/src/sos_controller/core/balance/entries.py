"""Entries and groups of a balance (docs/adr/0013). Pure functions of what is known of the host, the uplinks and their routers.

Out: from the host to `GATEWAY_MAC`, with the uplink's addresses put in. Back: what comes by the uplink for its address, with the host's.
Nobody opens a connection to the host this way: only segments with ACK or RST are let back.
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
"""An established connection may be silent for 2 hours 4 minutes (RFC 5382, REQ-5)."""
ENDED_IDLE_S = 60
"""After a FIN or RST: longer than a lost last segment is sent again."""
MAX_CONDITIONS = 1_024
"""Entries that select the connections of one balance; one with more is not carried out."""

_EXACT = 0xFFFFFFFF
_EXACT_PORT = 0xFFFF
_ACK, _RST = (0x010, 0x010), (0x004, 0x004)


class Way(NamedTuple):
    """An uplink whose router has answered. `mac` and `port_no` are the port's; `up` is whether it is."""

    name: str
    weight: int
    port_no: PortNo
    mac: MacAddress
    address: Address
    router: MacAddress
    up: bool


class Ready(NamedTuple):
    """A balance that can be carried out: where the host is, and its ways out. `number` is its place in the datapath's order.

    `takes_turns`: the switch is Open vSwitch, and can be asked to (`turns`).
    """

    balance: Balance
    number: int
    group_id: int
    client: Address
    client_mac: MacAddress
    client_port: PortNo
    ways: tuple[Way, ...]
    takes_turns: bool


def conditions(balance: Balance) -> list[Match]:
    """What selects the connections; more than MAX_CONDITIONS are cut off one beyond, so that nobody makes a million."""
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


def group(ready: Ready) -> SelectGroup:
    """The group that decides by hash."""
    return SelectGroup(ready.group_id, tuple(Bucket(way.weight, way.port_no, out_actions(way)) for way in ready.ways))


def standing(ready: Ready, cookie: int) -> list[FlowEntry]:
    """Entries that stay: the host's connections go to the group, answers go back. None is a connection's own."""
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


def punts(ready: Ready, cookie: int) -> list[FlowEntry]:
    """Leases that hand first packets to the controller. When they have run out, an older connection's entry or the group decides."""
    action: tuple[Action, ...] = (Output(PORT_CONTROLLER),)
    priority = PRIORITY_TURN - ready.number
    return [FlowEntry(TABLE_REDIRECT, priority, only_first(match), action, cookie, LEASE_S) for match in conditions(ready.balance)]


def listening(port_no: PortNo, cookie: int) -> FlowEntry:
    """ARP that comes by an uplink is copied to the controller; what is plain goes on as before."""
    match = Match(in_port=port_no, eth_type=ETH_ARP)
    return FlowEntry(TABLE_REDIRECT, PRIORITY_ANSWER, match, (Output(PORT_CONTROLLER), Goto(TABLE_FORWARD)), cookie)


def connection(ready: Ready, syn: Syn, way: Way, cookie: int, *, ours: bool) -> tuple[FlowEntry, FlowEntry]:
    """The two entries of one connection. `ours`: the switch is Open vSwitch, and can be asked to watch for the end."""
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
    """Whose entry a connection's way out is; None when it is nothing that `connection` makes."""
    if match.ipv4_src is None or match.ipv4_dst is None or match.tcp_src is None or match.tcp_dst is None:
        return None
    return flow_key(match.ipv4_src[0], match.ipv4_dst[0], match.tcp_src[0], match.tcp_dst[0])


def out_actions(way: Way) -> tuple[Action, ...]:
    """Out by an uplink, with its addresses (the paper's algorithm 1)."""
    return (SetEthSrc(way.mac), SetEthDst(way.router), SetIpv4Src(way.address), Output(way.port_no))


def _back_actions(ready: Ready) -> tuple[Action, ...]:
    return (SetEthSrc(GATEWAY_MAC), SetEthDst(ready.client_mac), SetIpv4Dst(ready.client), Output(ready.client_port))


def only_first(match: Match) -> Match:
    """What selects the first packets of the connections that a condition selects."""
    return Match(
        eth_dst=match.eth_dst,
        eth_type=match.eth_type,
        ip_proto=match.ip_proto,
        ipv4_src=match.ipv4_src,
        ipv4_dst=match.ipv4_dst,
        tcp_dst=match.tcp_dst,
        tcp_flags=BARE_SYN,
    )
