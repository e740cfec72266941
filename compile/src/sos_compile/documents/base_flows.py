"""Base flow entries of a node's switch (spec/node-config.md section 2): loop-free forwarding without any controller.

The entries are loop-free by construction. Broadcasts leave a switch only by ports that carry base traffic: tunnels of a full mesh, which
never flood into each other (clause 7), or base uplinks, whose graph broadcast_loops.py has checked. Packets from any other uplink are
dropped unless they are on a labelled path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from sos_compile.model.formats.node import BaseFlow, FlowGroup
from sos_compile.model.formats.shared import BEACON_PORT, DISCOVERY_ADDRESS, ORDER_PORT
from sos_compile.model.network import REJECT_OFPORT

REDIRECT = 0
FORWARD = 1
TO_CONTROLLERS = "CONTROLLER:65535"  # the whole packet (OpenFlow 1.3, OFPCML_NO_BUFFER)
TO_FORWARD = f"goto_table:{FORWARD}"
UNTAGGED = "vlan_tci=0x0000/0x1fff"
"""OFPVID_NONE: switches send only frames without an 802.1Q tag to controllers."""

DISCOVERY_PRIORITY = 65000
GUARD_PRIORITY = 45000
REJECT_PRIORITY = 29970
"""Below the punts of all controllers: accelerated connections never reach these entries. Above the entries of observed or balanced
connections."""
REJECT_AGENT_PRIORITY = 45500
REJECT_GUARD_PRIORITY = 45600
REJECT_PORT_PRIORITY = 65050
REJECT_MAC = "02:53:4f:53:00:03"
"""Source MAC address of resets, so that no switch learns the server's location at the reject port."""
BARE_SYN = "tcp_flags=+syn-ack-rst-fin"
ARP_PRIORITY = 20000
NO_BASE_PRIORITY = 1000

NAMES_OTHERS = re.compile(r"(?:in_port=(?!33\d{3}\b)\w+|(?:nw_src|nw_dst|arp_[st]pa)=[0-9./]+)")
"""A port or an address in the match of an entry, except the node's own ports 33000 to 33999 (spec/node-config.md clauses 6 and 35)."""


@dataclass(frozen=True)
class Rejects:
    """Connections that must not be plain. `match`: addresses and ports. `whole`: reject all packets of these connections that leave an
    agent's port, not only bare SYNs. This is right for reactive services: their agents receive only segments of their own sessions, so an
    agent never has to forward such a packet."""

    match: str
    whole: bool


def build_base_flows(
    base_ports: Iterable[int],
    other_ports: Iterable[int],
    agent_ports: Iterable[int],
    agent_addresses: Iterable[IPv4Address],
    rejects: Iterable[Rejects] = (),
) -> list[BaseFlow]:
    """Return the entries, sorted. `base_ports` and `other_ports` lead to other nodes; only `base_ports` carry plain traffic."""
    base, other, own = sorted(base_ports), sorted(other_ports), sorted(agent_ports)
    beacons = [f"{UNTAGGED},udp,nw_dst={DISCOVERY_ADDRESS},tp_dst={port}" for port in (BEACON_PORT, ORDER_PORT)]
    agents = [f"ip,nw_{end}={address}" for address in sorted(set(agent_addresses)) for end in ("src", "dst")]
    return [
        _flow(REDIRECT, DISCOVERY_PRIORITY, f"{UNTAGGED},dl_type=0x88cc", TO_CONTROLLERS),
        *(_flow(REDIRECT, DISCOVERY_PRIORITY, match, TO_CONTROLLERS) for match in beacons),
        *(_flow(REDIRECT, GUARD_PRIORITY, f"in_port={port}", TO_FORWARD) for port in sorted({*base, *other, *own})),
        *(_flow(REDIRECT, GUARD_PRIORITY, match, TO_FORWARD) for match in agents),
        *_reject_flows(list(rejects), own, agents),
        _flow(REDIRECT, ARP_PRIORITY, f"{UNTAGGED},arp", f"{TO_CONTROLLERS},{TO_FORWARD}"),
        _flow(REDIRECT, 0, "", TO_FORWARD),
        *(_flow(FORWARD, NO_BASE_PRIORITY, f"in_port={port}", "drop") for port in other),
        _flow(FORWARD, 0, "", "NORMAL"),
    ]


def group_flows(flows: Iterable[BaseFlow]) -> list[FlowGroup]:
    """Return entries in groups that differ in their matches only (spec/node-config.md clause 47)."""
    groups: dict[tuple[int, int, str], list[str]] = {}
    for flow in flows:
        groups.setdefault((flow.table, flow.priority, flow.actions), []).append(flow.match)
    return [FlowGroup(table=key[0], priority=key[1], actions=key[2], matches=matches) for key, matches in groups.items()]


def _reject_flows(rejects: list[Rejects], agent_ports: list[int], agents: list[str]) -> Iterator[BaseFlow]:
    """Yield entries that reject plain connections: from hosts, and from agents, which forward connections that they do not accept."""
    if not rejects:
        return
    to_reject, reset = f"output:{REJECT_OFPORT}", f"mod_dl_src:{REJECT_MAC},NORMAL"
    yield _flow(REDIRECT, REJECT_PORT_PRIORITY, f"in_port={REJECT_OFPORT},tcp,tcp_flags=+rst", reset)
    yield _flow(REDIRECT, REJECT_PORT_PRIORITY - 1, f"in_port={REJECT_OFPORT}", "drop")
    for match in agents:  # a service may cover agents' own connections
        yield _flow(REDIRECT, REJECT_GUARD_PRIORITY, match, TO_FORWARD)
    for each in rejects:
        yield _flow(REDIRECT, REJECT_PRIORITY, f"{UNTAGGED},tcp,{BARE_SYN},{each.match}", to_reject)
        flags = "" if each.whole else f"{BARE_SYN},"
        for port in agent_ports:
            yield _flow(REDIRECT, REJECT_AGENT_PRIORITY, f"in_port={port},{UNTAGGED},tcp,{flags}{each.match}", to_reject)


def _flow(table: int, priority: int, match: str, actions: str) -> BaseFlow:
    return BaseFlow(table=table, priority=priority, match=match, actions=actions)
