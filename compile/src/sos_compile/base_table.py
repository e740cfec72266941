"""The base entries of a node's switch (spec/node-config.md section 2): it forwards without any controller, and never in a circle.

Loop-free by construction. Broadcasts leave a switch only by ports that carry base traffic: tunnels of a full mesh, which never
flood into each other (clause 7), or base uplinks, whose graph loops.py has checked. What arrives by any other uplink is dropped
unless it is on a labelled path.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address

from sos_compile.documents import BEACON_PORT, DISCOVERY_ADDRESS, ORDER_PORT, BaseFlow

REDIRECT = 0
FORWARD = 1
TO_CONTROLLERS = "CONTROLLER:65535"  # the whole packet (OpenFlow 1.3, OFPCML_NO_BUFFER)
TO_FORWARD = f"goto_table:{FORWARD}"
UNTAGGED = "vlan_tci=0x0000/0x1fff"
"""OFPVID_NONE: what controllers are told of hosts is about frames without an 802.1Q tag."""

DISCOVERY_PRIORITY = 65000
GUARD_PRIORITY = 45000
ARP_PRIORITY = 20000
NO_BASE_PRIORITY = 1000


def build_base_flows(
    base_ports: Iterable[int], other_ports: Iterable[int], agent_ports: Iterable[int], agent_addresses: Iterable[IPv4Address]
) -> list[BaseFlow]:
    """Return the entries, sorted. `base_ports` and `other_ports` lead to other nodes; only the former carry plain traffic."""
    base, other = sorted(base_ports), sorted(other_ports)
    beacons = [f"{UNTAGGED},udp,nw_dst={DISCOVERY_ADDRESS},tp_dst={port}" for port in (BEACON_PORT, ORDER_PORT)]
    agents = [f"ip,nw_{end}={address}" for address in sorted(set(agent_addresses)) for end in ("src", "dst")]
    return [
        _flow(REDIRECT, DISCOVERY_PRIORITY, f"{UNTAGGED},dl_type=0x88cc", TO_CONTROLLERS),
        *(_flow(REDIRECT, DISCOVERY_PRIORITY, match, TO_CONTROLLERS) for match in beacons),
        *(_flow(REDIRECT, GUARD_PRIORITY, f"in_port={port}", TO_FORWARD) for port in sorted({*base, *other, *agent_ports})),
        *(_flow(REDIRECT, GUARD_PRIORITY, match, TO_FORWARD) for match in agents),
        _flow(REDIRECT, ARP_PRIORITY, f"{UNTAGGED},arp", f"{TO_CONTROLLERS},{TO_FORWARD}"),
        _flow(REDIRECT, 0, "", TO_FORWARD),
        *(_flow(FORWARD, NO_BASE_PRIORITY, f"in_port={port}", "drop") for port in other),
        _flow(FORWARD, 0, "", "NORMAL"),
    ]


def _flow(table: int, priority: int, match: str, actions: str) -> BaseFlow:
    return BaseFlow(table=table, priority=priority, match=match, actions=actions)
