"""Specs, and the type of rows, of the tables of admission: complete objects, whose fields the rows change."""

from __future__ import annotations

from typing import Any

SELECT = {"nodeSelector": {"matchLabels": {"sos.network/site": "a"}}}
WAN0 = {"name": "wan0", "base": True}
ENDS = {"from": {"site": "a"}, "to": {"site": "b"}}
LINK = {"a": {"site": "a", "uplink": "wan0"}, "b": {"site": "b", "uplink": "wan0"}}
PAIR = {"a": {"site": "a"}, "b": {"site": "b"}}
TRANSPORT = {"streams": 8, "congestionControl": "BBR", "encryption": "TLS", "protocol": "QUIC"}
BAD_TRANSPORT: list[tuple[str, Any, str | None]] = [
    ("streams", 129, "from 1 to 128"),
    ("streams", 0, "from 1 to 128"),
    ("streams", "many", "from 1 to 128"),
    ("congestionControl", "Vegas", "BBR"),
    ("encryption", "WireGuard", "TLS"),
    ("protocol", "UDT", "QUIC"),
]

BALANCED = {"from": {"site": "a", "prefixes": ["10.1.0.7/32"]}, "to": {"prefixes": ["0.0.0.0/0"]}, "balance": {}}


def weighted(weight: int) -> dict[str, Any]:
    return {**BALANCED, "balance": {"uplinks": [{"name": "wan0", "weight": weight}]}}


def ruled(**rule: Any) -> dict[str, Any]:
    """Return a site with one rule for services."""
    return {**SELECT, "services": {"namespaces": "All", "rules": [rule]}}


def routed(**changes: Any) -> dict[str, Any]:
    """Return a site without a bridge, with these fields changed."""
    return {**SELECT, "prefixes": ["10.1.0.0/16"], "wan": {"type": "Routed"}, "intake": {"type": "Pods"}} | changes


def router(**intake: Any) -> dict[str, Any]:
    """Return a site whose nodes are its hosts' routers, with these fields of its intake."""
    return routed(intake={"type": "Routed", "interface": "eth1", **intake})


def several(*addresses: str) -> dict[str, Any]:
    """Return a `wan` of type Routed with these addresses of a node."""
    return {"type": "Routed", "addresses": [{"node": "a1", "addresses": list(addresses)}]}


def lan(*interfaces: str, **changes: Any) -> dict[str, Any]:
    """Return a site with these LAN interfaces, `NAME` or `NAME@NODE`, and these fields changed; a field with the value None is left out."""
    entries = [dict(zip(("name", "node"), each.split("@"), strict=False)) for each in interfaces]
    site = {**SELECT, "prefixes": ["10.1.0.0/16"], "network": {"lan": entries}} | changes
    return {name: value for name, value in site.items() if value is not None}


def bonded(*bases: bool, prefixes: bool = True, **bond: Any) -> dict[str, Any]:
    """Return a site with an uplink for each element of `bases`, and a bond."""
    uplinks = [{"name": f"wan{i}", "base": base} for i, base in enumerate(bases)]
    return {**SELECT, "prefixes": ["10.1.0.0/16"] if prefixes else [], "wan": {"type": "Uplinks", "uplinks": uplinks, "bond": bond}}


Row = tuple[str, str, dict[str, Any], str | None, str | None]


def addressed(address: str | None, gateway: str | None) -> dict[str, Any]:
    """Return a transit site with one uplink that has this address and gateway, if any."""
    given = {"name": "wan0", "address": address, "gateway": gateway}
    return {**SELECT, "wan": {"type": "Uplinks", "uplinks": [{key: value for key, value in given.items() if value is not None}]}}


def machine(**changes: Any) -> dict[str, Any]:
    """Spec of a SosPeer for a machine; a field with the value None is left out."""
    spec = {"siteID": 9, "addresses": ["192.0.2.9"], "interface": "eth1"} | changes
    return {"prefixes": ["10.3.0.0/16"], "machine": {name: value for name, value in spec.items() if value is not None}}


def pods(selection: dict[str, Any]) -> dict[str, Any]:
    """Return a service that selects client pods."""
    return {**ENDS, "from": {"site": "a", "pods": selection}}
