"""Redirect entries of one flow (node-config.md, 2).

A site either redirects or rewrites. To redirect a packet, a switch changes only its destination MAC address (`Transparent`). To rewrite
packets, the agent's switch sets their destination to the agent's own address, and restores the addresses that the hosts expect
(`OpenFlow`; thesis, tables 2 and 6). In packets to an agent, only the host's address and port then identify the flow, so each host port
can have only one session at an agent.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Final, NamedTuple

from sos_controller.core.openflow import pipeline
from sos_controller.core.openflow.flow_entries import (
    Action,
    FlowEntry,
    Goto,
    LearnSource,
    Match,
    Output,
    Placed,
    SetEthDst,
    SetIpv4Dst,
    SetIpv4Src,
    SetTcpDst,
    SetTcpSrc,
)
from sos_controller.core.openflow.pipeline import ETH_IPV4, PRIORITY_REDIRECT, PRIORITY_REWRITE, PROTO_TCP, TABLE_FORWARD, TABLE_REDIRECT
from sos_controller.core.tables.agents import Agent
from sos_controller.core.types import Address, DatapathId, FlowKey, MacAddress, flow_key

_EXACT: Final = 0xFFFFFFFF
_EXACT_PORT: Final = 0xFFFF
_ENDS: Final = struct.Struct("!IIHH").unpack
"""A flow's client and server address, client and server port."""


class Leg(NamedTuple):
    """One agent's side of a flow: the client's (`ingress`) or the server's. `port`: the agent's port if its site rewrites, else 0.
    `learns`: the agent's switch is an Open vSwitch that forwards by itself, and learns where hosts are."""

    agent: Agent
    ingress: bool
    port: int
    learns: bool = False


class Adopted(NamedTuple):
    """Purpose of an entry that was found on a switch. `mac`: the agent's MAC address, if the entry shows it."""

    key: FlowKey
    ingress: bool
    mac: MacAddress | None


def entries(key: FlowKey, leg: Leg, dpids: Collection[DatapathId], cookie: int) -> list[Placed]:
    """Return the entries of one side: at the switches where its host's packets arrive (`dpids`), and at the agent's switch."""
    here = leg.agent.location.dpid
    if not leg.port:
        return _redirects(key, leg, dpids, cookie)
    elsewhere = _redirects(key, leg, [dpid for dpid in dpids if dpid != here], cookie)
    return [((here,), _restore(key, leg, cookie)), ((here,), _arrive(key, leg, cookie)), *elsewhere]


def redirects(key: FlowKey, leg: Leg, dpid: DatapathId, cookie: int) -> list[Placed]:
    """Return the entries for a datapath that the leg's host has moved to. At the switch of an agent that rewrites, the entries already
    exist."""
    return [] if leg.port and leg.agent.location.dpid == dpid else _redirects(key, leg, (dpid,), cookie)


def arrival(leg: Leg) -> tuple[Action, ...]:
    """Return the actions on a client's packet at the ingress agent's switch."""
    out = Output(leg.agent.location.port_no)
    if not leg.port:
        return (out,)
    return (SetIpv4Dst(leg.agent.beacon.address), SetTcpDst(leg.port), out)


def parse(entry: FlowEntry) -> Adopted | None:
    """Identify an entry of `entries`; return None for other entries."""
    m = entry.match
    if m.ipv4_src is None or m.ipv4_dst is None or m.tcp_src is None or m.tcp_dst is None:
        return None
    source, target, sport, dport = Address(m.ipv4_src[0]), Address(m.ipv4_dst[0]), m.tcp_src[0], m.tcp_dst[0]
    host = next((a.address for a in entry.actions if isinstance(a, SetIpv4Src)), None)
    if host is not None:
        port = next((a.port for a in entry.actions if isinstance(a, SetTcpSrc)), None)
        if port is None:  # the egress agent uses the client's port
            return Adopted(flow_key(host, target, sport, dport), False, None)
        return Adopted(flow_key(target, host, dport, port), True, None)
    mac = next((a.mac for a in entry.actions if isinstance(a, SetEthDst)), None)
    if mac is None:
        return None
    ingress = m.tcp_flags is not None
    return Adopted(flow_key(source, target, sport, dport) if ingress else flow_key(target, source, dport, sport), ingress, mac)


def _towards(key: FlowKey, ingress: bool) -> Match:
    """Match client to server on the ingress side, without SYNs, which the punts match; server to client on the egress side."""
    client, server, client_port, server_port = _ENDS(key)
    if not ingress:
        client, server, client_port, server_port = server, client, server_port, client_port
    return Match(
        eth_type=ETH_IPV4,
        ip_proto=PROTO_TCP,
        ipv4_src=(client, _EXACT),
        ipv4_dst=(server, _EXACT),
        tcp_src=(client_port, _EXACT_PORT),
        tcp_dst=(server_port, _EXACT_PORT),
        tcp_flags=pipeline.NOT_SYN if ingress else None,
    )


def _redirects(key: FlowKey, leg: Leg, dpids: Collection[DatapathId], cookie: int) -> list[Placed]:
    """Return the redirecting entry, the same on all datapaths except the agent's."""
    location, match, towards = leg.agent.location, _towards(key, leg.ingress), SetEthDst(leg.agent.beacon.mac)
    elsewhere = tuple(dpid for dpid in dpids if dpid != location.dpid)
    placed: list[Placed] = []
    if location.dpid in dpids:
        there: tuple[Action, ...] = (*_learn(leg), towards, Output(location.port_no))
        placed.append(((location.dpid,), FlowEntry(TABLE_REDIRECT, PRIORITY_REDIRECT, match, there, cookie)))
    if elsewhere:
        onwards = (towards, Goto(TABLE_FORWARD))
        placed.append((elsewhere, FlowEntry(TABLE_REDIRECT, PRIORITY_REDIRECT, match, onwards, cookie)))
    return placed


def _learn(leg: Leg) -> tuple[Action, ...]:
    """Return the action that makes the agent's switch learn a host's port, to which it forwards the agent's packets. A host may move
    without an announcement."""
    return (LearnSource(),) if leg.learns else ()


def _arrive(key: FlowKey, leg: Leg, cookie: int) -> FlowEntry:
    """Rewrite the host's packets to the agent's addresses (thesis, table 2)."""
    actions: tuple[Action, ...] = (*_learn(leg), SetEthDst(leg.agent.beacon.mac), *arrival(leg))
    return FlowEntry(TABLE_REDIRECT, PRIORITY_REWRITE, _towards(key, leg.ingress), actions, cookie)


def _restore(key: FlowKey, leg: Leg, cookie: int) -> FlowEntry:
    """Restore the other host's addresses in the agent's packets (thesis, table 2, second entry, and table 6, the last hop)."""
    client, server, client_port, server_port = _ENDS(key)
    address, port = (client, client_port) if leg.ingress else (server, server_port)
    match = Match(
        in_port=leg.agent.location.port_no,
        eth_type=ETH_IPV4,
        ip_proto=PROTO_TCP,
        ipv4_src=(leg.agent.beacon.address, _EXACT),
        ipv4_dst=(address, _EXACT),
        tcp_src=(leg.port, _EXACT_PORT),
        tcp_dst=(port, _EXACT_PORT),
    )
    on = Goto(TABLE_FORWARD)
    actions: tuple[Action, ...] = (SetIpv4Src(server), SetTcpSrc(server_port), on) if leg.ingress else (SetIpv4Src(client), on)
    return FlowEntry(TABLE_REDIRECT, PRIORITY_REWRITE, match, actions, cookie)
