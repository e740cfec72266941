"""Table of objects with the expected results of admission. It tests `admit` here, and can also test a real API server.

A row is (name, kind, spec, path in the error, part of the message). The last two elements are None for valid objects.
"""

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


SITES: list[Row] = [
    ("transit", "SosSite", SELECT, None, None),
    ("overlay with uplinks", "SosSite", {**SELECT, "prefixes": ["10.1.0.0/16"], "wan": {"uplinks": [{"name": "wan1"}]}}, None, None),
    ("pods without a bridge", "SosSite", routed(), None, None),
    ("hosts with routes", "SosSite", routed(intake={"type": "Routed", "interface": "eth1"}), None, None),
    (
        "routed without an intake",
        "SosSite",
        {**SELECT, "prefixes": ["10.1.0.0/16"], "wan": {"type": "Routed"}},
        "spec",
        "needs spec.intake",
    ),
    ("routed without prefixes", "SosSite", routed(prefixes=[]), "spec", "needs spec.intake, spec.nodeSelector and spec.prefixes"),
    ("intake beside a bridge", "SosSite", {**SELECT, "intake": {"type": "Pods"}}, "spec", "spec.intake is for sites without a bridge"),
    ("routed with a gateway", "SosSite", routed(gateway="10.1.0.1/16"), "spec", "has no bridge and no switches"),
    ("routed with an MTU", "SosSite", routed(network={"mtu": 9000}), "spec", "has no bridge and no switches"),
    ("routed with rewriting", "SosSite", routed(datapath={"rewrite": "OpenFlow"}), "spec", "has no bridge and no switches"),
    ("routed with addresses", "SosSite", routed(wan=several("192.0.2.1", "198.51.100.1")), None, None),
    ("overlay with addresses", "SosSite", {**SELECT, "wan": {"addresses": []}}, "spec.wan", "remove addresses"),
    ("WAN address with a length", "SosSite", routed(wan=several("192.0.2.1/30")), "spec.wan.addresses[0].addresses[0]", "like 192.0.2.7"),
    ("loopback as a WAN address", "SosSite", routed(wan=several("127.0.0.1")), "spec.wan.addresses[0].addresses[0]", "no other machine"),
    ("link-local WAN address", "SosSite", routed(wan=several("169.254.1.1")), "spec.wan.addresses[0].addresses[0]", "no other machine"),
    ("the same WAN address twice", "SosSite", routed(wan=several("192.0.2.1", "192.0.2.1")), "spec.wan.addresses[0].addresses[1]", None),
    ("routed with uplinks", "SosSite", routed(wan={"type": "Routed", "uplinks": [WAN0]}), "spec.wan", "the nodes' own routes"),
    ("pods at an interface", "SosSite", routed(intake={"type": "Pods", "interface": "eth1"}), "spec.intake", "type Pods takes none"),
    ("routes without an interface", "SosSite", routed(intake={"type": "Routed"}), "spec.intake", "type Routed needs interface"),
    ("LAN interfaces", "SosSite", lan("eth1", "eth1@a1", "eth1@a2", "eth2.100"), None, None),
    ("LAN beside uplinks", "SosSite", lan("eth1", wan={"type": "Uplinks", "uplinks": [WAN0]}), None, None),
    ("LAN at an uplink", "SosSite", lan("wan0@a1", wan={"type": "Uplinks", "uplinks": [WAN0]}), "spec", "is in spec.wan.uplinks, too"),
    ("LAN without nodes", "SosSite", lan("eth1", nodeSelector=None, datapaths=[{"dpid": "0" * 16}]), "spec", "set spec.nodeSelector and"),
    ("LAN without prefixes", "SosSite", lan("eth1", prefixes=[]), "spec", "and spec.prefixes, or remove spec.network.lan"),
    ("LAN without a bridge", "SosSite", routed(network={"lan": [{"name": "eth1"}]}), "spec", "has no bridge and no switches"),
    ("LAN interface twice", "SosSite", lan("eth1@a1", "eth1@a1"), "spec.network.lan[1]", None),
    ("LAN interface without a name", "SosSite", {**SELECT, "network": {"lan": [{"node": "a1"}]}}, "spec.network.lan[0].name", None),
    ("long LAN interface", "SosSite", lan("e" * 16), "spec.network.lan[0].name", "15 characters"),
    ("odd LAN interface", "SosSite", lan("a b"), "spec.network.lan[0].name", "like eth1"),
    *(
        (f"LAN interface {name}", "SosSite", lan(name), "spec.network.lan[0].name", "no LAN interfaces")
        for name in ("br-sos", "sosag0", "lo")
    ),
    ("65 LAN interfaces", "SosSite", lan(*(f"e{i}" for i in range(65))), "spec.network.lan", "64"),
    ("policies ignored", "SosSite", routed(intake={"type": "Pods", "networkPolicies": "Ignore"}), None, None),
    (
        "policies of hosts",
        "SosSite",
        routed(intake={"type": "Routed", "interface": "eth1", "networkPolicies": "Ignore"}),
        "spec.intake",
        "networkPolicies is for type Pods",
    ),
    ("virtual address", "SosSite", router(virtualAddress="10.1.0.1"), None, None),
    ("virtual address of pods", "SosSite", routed(intake={"type": "Pods", "virtualAddress": "10.1.0.1"}), "spec.intake", "for type Routed"),
    ("virtual address with a length", "SosSite", router(virtualAddress="10.1.0.1/16"), "spec.intake.virtualAddress", "like 10.1.0.1"),
    ("virtual address of IPv6", "SosSite", router(virtualAddress="fd00::1"), "spec.intake.virtualAddress", "like 10.1.0.1"),
    ("multicast virtual address", "SosSite", router(virtualAddress="224.0.0.18"), "spec.intake.virtualAddress", "cannot use"),
    ("unknown intake", "SosSite", routed(intake={"type": "Bridge"}), "spec.intake.type", "Pods"),
    ("interface with a slash", "SosSite", routed(intake={"type": "Routed", "interface": "a/b"}), "spec.intake.interface", "like"),
    ("long interface", "SosSite", routed(intake={"type": "Routed", "interface": "x" * 16}), "spec.intake.interface", "15 characters"),
    ("switches", "SosSite", {"datapaths": [{"dpid": "00000000000000ff"}]}, None, None),
    (
        "full",
        "SosSite",
        {
            **SELECT,
            "prefixes": ["10.1.0.0/16"],
            "gateway": "10.1.0.1/16",
            "network": {"mtu": 9000, "ipam": {"type": "whereabouts", "range": "10.1.0.0/17"}, "routes": [{"to": "10.0.0.0/8"}]},
            "services": {"namespaces": "Selector", "selector": {"matchLabels": {"team": "x"}}},
            "controllers": [{"name": "a"}, {"name": "b"}],
        },
        None,
        None,
    ),
    ("three nodes at a time", "SosSite", {**SELECT, "update": {"maxUnavailable": 3}}, None, None),
    ("a quarter at a time", "SosSite", {**SELECT, "update": {"maxUnavailable": "25%"}}, None, None),
    ("no node at a time", "SosSite", {**SELECT, "update": {"maxUnavailable": 0}}, "spec.update.maxUnavailable", "1"),
    ("no share", "SosSite", {**SELECT, "update": {"maxUnavailable": "0%"}}, "spec.update.maxUnavailable", "%"),
    *(
        (f"hosts at {prefix}", "SosSite", {**SELECT, "prefixes": [prefix]}, "spec.prefixes", "hosts cannot have addresses of")
        for prefix in ("0.0.0.0/0", "0.0.0.0/8", "127.0.0.0/24", "169.254.0.0/16", "224.0.0.0/8", "255.255.255.255/32", "198.18.0.0/15")
    ),
    ("hosts beside the discovery address", "SosSite", {**SELECT, "prefixes": ["198.18.0.0/24", "223.255.255.0/24"]}, None, None),
    *(
        (
            f"uplink {name}",
            "SosSite",
            {**SELECT, "wan": {"type": "Uplinks", "uplinks": [{"name": name}]}},
            "spec.wan.uplinks[0].name",
            "no uplinks",
        )
        for name in ("lo", "br-sos", "sosag0", "sosvx17", "ovs-system", "vxlan_sys_4789")
    ),
    ("empty spec", "SosSite", {}, "spec", "a site needs spec.nodeSelector"),
    ("remote", "SosSite", {**SELECT, "remote": True, "siteID": 7}, "spec.remote", "unknown field"),
    ("id too large", "SosSite", {**SELECT, "siteID": 65536}, "spec.siteID", "65535"),
    ("id zero", "SosSite", {**SELECT, "siteID": 0}, "spec.siteID", "1"),
    ("empty selector", "SosSite", {"nodeSelector": {}}, "spec.nodeSelector", "every node"),
    (
        "expression without values",
        "SosSite",
        {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        "spec.nodeSelector.matchExpressions[0]",
        "need values",
    ),
    (
        "expression with values",
        "SosSite",
        {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}},
        "spec.nodeSelector.matchExpressions[0]",
        "need values",
    ),
    ("host bits", "SosSite", {**SELECT, "prefixes": ["10.1.0.5/16"]}, "spec.prefixes[0]", "host bits"),
    ("not a prefix", "SosSite", {**SELECT, "prefixes": ["10.1.0.0/99"]}, "spec.prefixes[0]", "like 10.1.0.0/16"),
    ("an address", "SosSite", {**SELECT, "prefixes": ["10.1.0.0"]}, "spec.prefixes[0]", "like 10.1.0.0/16"),
    ("IPv6", "SosSite", {**SELECT, "prefixes": ["2001:db8::/32"]}, "spec.prefixes[0]", "only IPv4"),
    ("prefix twice", "SosSite", {**SELECT, "prefixes": ["10.1.0.0/16", "10.1.0.0/16"]}, "spec.prefixes[1]", None),
    ("too many prefixes", "SosSite", {**SELECT, "prefixes": [f"10.{i}.0.0/16" for i in range(65)]}, "spec.prefixes", "64"),
    ("uplinks missing", "SosSite", {**SELECT, "wan": {"type": "Uplinks"}}, "spec.wan", "at least one"),
    (
        "no base uplink",
        "SosSite",
        {**SELECT, "prefixes": ["10.1.0.0/16"], "wan": {"type": "Uplinks", "uplinks": [{"name": "wan0"}]}},
        "spec",
        "exactly one uplink",
    ),
    (
        "two base uplinks",
        "SosSite",
        {**SELECT, "prefixes": ["10.1.0.0/16"], "wan": {"type": "Uplinks", "uplinks": [WAN0, {"name": "wan1", "base": True}]}},
        "spec",
        "exactly one uplink",
    ),
    ("bond", "SosSite", bonded(True, True, False), None, None),
    ("bond with LACP", "SosSite", bonded(True, True, mode="BalanceTCP", upDelaySeconds=600), None, None),
    ("bond of one uplink", "SosSite", bonded(True, False), "spec.wan", "bond needs several base uplinks"),
    ("bond without base uplinks", "SosSite", bonded(False, False), "spec.wan", "bond needs several base uplinks"),
    ("bond of an overlay", "SosSite", {**bonded(True), "wan": {"bond": {}}}, "spec.wan", "bond needs several base uplinks"),
    ("bond of a transit site", "SosSite", bonded(True, True, prefixes=False), "spec", "remove spec.wan.bond, or set spec.prefixes"),
    ("bond without a bridge", "SosSite", routed(wan={"type": "Routed", "bond": {}}), "spec.wan", "bond needs several base uplinks"),
    ("unknown bond", "SosSite", bonded(True, True, mode="BalanceSLB"), "spec.wan.bond.mode", "ActiveBackup"),
    ("bond without delay", "SosSite", bonded(True, True, upDelaySeconds=0), None, None),
    ("bond with a long delay", "SosSite", bonded(True, True, upDelaySeconds=601), "spec.wan.bond.upDelaySeconds", "600"),
    ("uplink with an address", "SosSite", addressed("192.0.2.2/30", "192.0.2.1"), None, None),
    ("uplink without gateway", "SosSite", addressed("192.0.2.2/30", None), "spec.wan.uplinks[0]", "go together"),
    ("uplink without address", "SosSite", addressed(None, "192.0.2.1"), "spec.wan.uplinks[0]", "go together"),
    ("uplink with half an address", "SosSite", addressed("192.0.2.2", "192.0.2.1"), "spec.wan.uplinks[0].address", "like 192.0.2.2/30"),
    ("uplink with an IPv6 address", "SosSite", addressed("2001:db8::2/64", "192.0.2.1"), "spec.wan.uplinks[0].address", "IPv4"),
    ("uplink with a gateway by name", "SosSite", addressed("192.0.2.2/30", "router"), "spec.wan.uplinks[0].gateway", "like 192.0.2.1"),
    ("base uplink of an overlay", "SosSite", {**SELECT, "wan": {"uplinks": [WAN0]}}, "spec.wan", "no uplink may"),
    (
        "uplink twice",
        "SosSite",
        {**SELECT, "wan": {"type": "Uplinks", "uplinks": [{"name": "wan0"}, {"name": "wan0"}]}},
        "spec.wan.uplinks[1]",
        None,
    ),
    ("long uplink", "SosSite", {**SELECT, "wan": {"type": "Uplinks", "uplinks": [{"name": "w" * 16}]}}, "spec.wan.uplinks[0].name", "15"),
    ("odd uplink", "SosSite", {**SELECT, "wan": {"type": "Uplinks", "uplinks": [{"name": "a b"}]}}, "spec.wan.uplinks[0].name", None),
    ("unknown wan", "SosSite", {**SELECT, "wan": {"type": "Pigeons"}}, "spec.wan.type", "Pigeons"),
    ("gateway of a transit site", "SosSite", {**SELECT, "gateway": "10.1.0.1/16"}, "spec", "transit site"),
    ("IPv6 gateway", "SosSite", {**SELECT, "prefixes": ["10.1.0.0/16"], "gateway": "2001:db8::1/64"}, "spec.gateway", "IPv4"),
    ("mtu too small", "SosSite", {**SELECT, "network": {"mtu": 576}}, "spec.network.mtu", "1280"),
    ("subnet with host bits", "SosSite", {**SELECT, "network": {"subnet": "10.0.0.1/24"}}, "spec.network.subnet", "host bits"),
    (
        "route with host bits",
        "SosSite",
        {**SELECT, "network": {"routes": [{"to": "10.0.0.1/8"}]}},
        "spec.network.routes[0].to",
        "host bits",
    ),
    (
        "invalid next hop",
        "SosSite",
        {**SELECT, "network": {"routes": [{"to": "10.0.0.0/8", "via": "10.0.0.300"}]}},
        "spec.network.routes[0].via",
        "like 192.0.2.1",
    ),
    (
        "selector without need",
        "SosSite",
        {**SELECT, "services": {"namespaces": "All", "selector": {}}},
        "spec.services",
        "remove selector",
    ),
    ("selector missing", "SosSite", {**SELECT, "services": {"namespaces": "Selector"}}, "spec.services", "needs a selector"),
    ("a rule", "SosSite", ruled(namespaces=["a"], ports=[{"port": 80, "endPort": 90}], band=0, transport=[]), None, None),
    ("a rule without namespaces or a selector", "SosSite", ruled(band=5), "spec.services.rules[0]", "namespaces to apply to"),
    (
        "a rule's ports reversed",
        "SosSite",
        ruled(namespaces=["a"], ports=[{"port": 9, "endPort": 8}]),
        "spec.services.rules[0].ports[0].endPort",
        "swap",
    ),
    ("a rule's band too high", "SosSite", ruled(namespaces=["a"], band=1001), "spec.services.rules[0].band", "1000"),
    ("a rule's prefix", "SosSite", ruled(namespaces=["a"], prefixes=["10.1.0.1/24"]), "spec.services.rules[0].prefixes[0]", "host bits"),
    ("no controllers", "SosSite", {**SELECT, "controllers": []}, "spec.controllers", "1"),
    ("controller twice", "SosSite", {**SELECT, "controllers": [{"name": "a"}, {"name": "a"}]}, "spec.controllers[1]", None),
    ("short dpid", "SosSite", {"datapaths": [{"dpid": "ff"}]}, "spec.datapaths[0].dpid", None),
    (
        "datapath by a name with capitals",
        "SosSite",
        {"datapaths": [{"dpid": "00000000000000ff", "name": "Core 1"}]},
        "spec.datapaths[0].name",
        "lower-case letters",
    ),
    ("no datapaths", "SosSite", {"datapaths": []}, "spec.datapaths", "1"),
    ("wrong type", "SosSite", {**SELECT, "siteID": "yes"}, "spec.siteID", "integer"),
    ("unknown field", "SosSite", {**SELECT, "prefix": ["10.1.0.0/16"]}, "spec.prefix", "unknown field"),
]

SERVICES: list[Row] = [
    ("least", "SosService", ENDS, None, None),
    ("prefixes only", "SosService", {"from": {"prefixes": ["10.1.0.0/24"]}, "to": {"site": "b"}}, None, None),
    (
        "full",
        "SosService",
        {
            **ENDS,
            "ports": [{"port": 22}, {"port": 5000, "endPort": 5999}],
            "mode": "Observe",
            "percent": 50,
            "setup": "Proactive",
            "priority": 7,
            "transport": {
                "streams": 16,
                "congestionControl": "BBR",
                "encryption": "TLS",
                "compression": "Adaptive",
                "protocol": "QUIC",
                "blockKiB": 64,
                "queueMiB": 8,
            },
            "paths": {"mode": "Disjoint", "max": 2},
        },
        None,
        None,
    ),
    ("accept Confirmed", "SosService", {**ENDS, "accept": "Confirmed"}, None, None),
    ("accept Learned, reactive", "SosService", {**ENDS, "accept": "Learned", "setup": "Reactive"}, None, None),
    ("accept Early, proactive", "SosService", {**ENDS, "accept": "Early", "setup": "Proactive"}, None, None),
    ("accept Confirmed, proactive", "SosService", {**ENDS, "accept": "Confirmed", "setup": "Proactive"}, None, None),
    ("accept Learned, proactive", "SosService", {**ENDS, "accept": "Learned", "setup": "Proactive"}, None, None),
    ("Kubernetes Service", "SosService", {**ENDS, "to": {"site": "b", "service": {"name": "web", "namespace": "shop"}}}, None, None),
    (
        "Service without a site",
        "SosService",
        {**ENDS, "to": {"prefixes": ["10.2.0.0/24"], "service": {"name": "web"}}},
        "spec.to.service",
        "name the site",
    ),
    (
        "Service and prefixes",
        "SosService",
        {**ENDS, "to": {"site": "b", "prefixes": ["10.2.0.0/24"], "service": {"name": "web"}}},
        "spec.to.service",
        "remove prefixes",
    ),
    ("Service without a name", "SosService", {**ENDS, "to": {"site": "b", "service": {}}}, "spec.to.service.name", None),
    ("Service with a wrong name", "SosService", {**ENDS, "to": {"site": "b", "service": {"name": "Web"}}}, "spec.to.service.name", None),
    ("source Preserve", "SosService", {**ENDS, "to": {"site": "b", "source": "Preserve", "proxyProtocol": "None"}}, None, None),
    ("source Agent", "SosService", {**ENDS, "to": {"site": "b", "source": "Agent"}}, None, None),
    ("source Agent with a header", "SosService", {**ENDS, "to": {"site": "b", "source": "Agent", "proxyProtocol": "V2"}}, None, None),
    ("unknown source", "SosService", {**ENDS, "to": {"site": "b", "source": "Client"}}, "spec.to.source", None),
    ("unknown PROXY protocol", "SosService", {**ENDS, "to": {"site": "b", "proxyProtocol": "V1"}}, "spec.to.proxyProtocol", None),
    (
        "PROXY protocol from the client's address",
        "SosService",
        {**ENDS, "to": {"site": "b", "proxyProtocol": "V2"}},
        "spec.to.proxyProtocol",
        "set source to Agent",
    ),
    ("unknown accept", "SosService", {**ENDS, "accept": "Sometimes"}, "spec.accept", None),
    ("streams by number", "SosService", {**ENDS, "transport": {"streams": 128}}, None, None),
    ("explicit encryption None", "SosService", {**ENDS, "transport": {"encryption": "None"}}, None, None),
    ("unknown encryption", "SosService", {**ENDS, "transport": {"encryption": "SSL"}}, "spec.transport.encryption", None),
    ("explicit compression None", "SosService", {**ENDS, "transport": {"compression": "None"}}, None, None),
    ("unknown compression", "SosService", {**ENDS, "transport": {"compression": "zstd"}}, "spec.transport.compression", None),
    ("explicit protocol TCP", "SosService", {**ENDS, "transport": {"protocol": "TCP"}}, None, None),
    ("unknown protocol", "SosService", {**ENDS, "transport": {"protocol": "UDT"}}, "spec.transport.protocol", None),
    ("too many streams", "SosService", {**ENDS, "transport": {"streams": 129}}, "spec.transport.streams", "from 1 to 128"),
    ("no streams", "SosService", {**ENDS, "transport": {"streams": 0}}, "spec.transport.streams", "from 1 to 128"),
    ("streams in words", "SosService", {**ENDS, "transport": {"streams": "many"}}, "spec.transport.streams", "from 1 to 128"),
    ("same site", "SosService", {"from": {"site": "a"}, "to": {"site": "a"}}, "spec", "must differ"),
    ("no to", "SosService", {"from": {"site": "a"}}, "spec.to", None),
    ("nowhere", "SosService", {"from": {}, "to": {"site": "b"}}, "spec.from", "name a site"),
    (
        "host bits",
        "SosService",
        {"from": {"site": "a", "prefixes": ["10.1.0.5/16"]}, "to": {"site": "b"}},
        "spec.from.prefixes[0]",
        "host bits",
    ),
    ("range backwards", "SosService", {**ENDS, "ports": [{"port": 90, "endPort": 80}]}, "spec.ports[0].endPort", "must not be less"),
    ("port zero", "SosService", {**ENDS, "ports": [{"port": 0}]}, "spec.ports[0].port", "1"),
    ("port too large", "SosService", {**ENDS, "ports": [{"port": 65536}]}, "spec.ports[0].port", "65535"),
    ("port missing", "SosService", {**ENDS, "ports": [{"endPort": 80}]}, "spec.ports[0].port", None),
    ("port by name", "SosService", {**ENDS, "ports": [{"port": "http"}]}, "spec.ports[0].port", "integer"),
    ("over a hundred", "SosService", {**ENDS, "percent": 101}, "spec.percent", "100"),
    ("unknown mode", "SosService", {**ENDS, "mode": "Drop"}, "spec.mode", "Drop"),
    ("typo", "SosService", {**ENDS, "transprt": {"streams": 8}}, "spec.transprt", "unknown field"),
    ("balanced", "SosService", BALANCED, None, None),
    (
        "balanced by weight at the switch",
        "SosService",
        {**BALANCED, "balance": {"at": "Switch", "uplinks": [{"name": "wan0"}, {"name": "wan1", "weight": 2}]}},
        None,
        None,
    ),
    ("balanced, default transport", "SosService", {**BALANCED, "transport": {"streams": "Auto"}}, None, None),
    ("balance and transport", "SosService", {**BALANCED, "transport": {"streams": 8}}, "spec.transport", "remove one of the two"),
    ("balance and encryption", "SosService", {**BALANCED, "transport": {"encryption": "TLS"}}, "spec.transport", "remove one of the two"),
    (
        "balance and compression",
        "SosService",
        {**BALANCED, "transport": {"compression": "Adaptive"}},
        "spec.transport",
        "remove one of the two",
    ),
    ("balance and protocol", "SosService", {**BALANCED, "transport": {"protocol": "QUIC"}}, "spec.transport", "remove one of the two"),
    ("balance and block size", "SosService", {**BALANCED, "transport": {"blockKiB": 64}}, "spec.transport", "remove one of the two"),
    ("balance and paths", "SosService", {**BALANCED, "paths": {"mode": "Disjoint"}}, "spec.paths", "remove one of the two"),
    ("balance and mode", "SosService", {**BALANCED, "mode": "Observe"}, "spec", "all connections are spread"),
    ("balance and percent", "SosService", {**BALANCED, "percent": 50}, "spec", "all connections are spread"),
    ("balance and accept", "SosService", {**BALANCED, "accept": "Early"}, "spec", "remove spec.accept"),
    (
        "balance and source",
        "SosService",
        {**BALANCED, "to": {**BALANCED["to"], "source": "Agent"}},
        "spec.to",
        "remove spec.to.source",
    ),
    ("balance and requirement", "SosService", {**BALANCED, "require": ["Accelerated"]}, "spec.require", "remove spec.require"),
    ("requirement and observation", "SosService", {**ENDS, "mode": "Observe", "require": ["Accelerated"]}, "spec.require", "remove"),
    ("requirement in part", "SosService", {**ENDS, "percent": 50, "require": ["Accelerated"]}, "spec.require", "remove"),
    ("nothing required", "SosService", {**ENDS, "percent": 50, "require": []}, None, None),
    ("accelerated or refused", "SosService", {**ENDS, "require": ["Accelerated"]}, None, None),
    ("encrypted or refused", "SosService", {**ENDS, "require": ["Encrypted"], "transport": {"encryption": "TLS"}}, None, None),
    ("encrypted by a SosLink, or refused", "SosService", {**ENDS, "require": ["Encrypted"]}, None, None),
    ("requirement twice", "SosService", {**ENDS, "require": ["Accelerated", "Accelerated"]}, "spec.require[1]", "given twice"),
    ("unknown requirement", "SosService", {**ENDS, "require": ["Inspected"]}, "spec.require[0]", "Accelerated"),
    ("balance to a site", "SosService", {**BALANCED, "to": {"site": "b"}}, "spec.to", "replace spec.to.site"),
    ("balance nowhere", "SosService", {**BALANCED, "balance": {"uplinks": []}}, "spec.balance.uplinks", "1"),
    ("balance without weight", "SosService", weighted(0), "spec.balance.uplinks[0].weight", "1"),
    ("balance with too much weight", "SosService", weighted(101), "spec.balance.uplinks[0].weight", "100"),
    (
        "balance over one uplink twice",
        "SosService",
        {**BALANCED, "balance": {"uplinks": [{"name": "wan0"}, {"name": "wan0"}]}},
        "spec.balance.uplinks[1]",
        None,
    ),
    ("unknown balance.at", "SosService", {**BALANCED, "balance": {"at": "Agent"}}, "spec.balance.at", "Agent"),
    ("deep typo", "SosService", {**ENDS, "ports": [{"port": 80, "endport": 90}]}, "spec.ports[0].endport", "unknown field"),
]

OTHERS: list[Row] = [
    ("least", "SosAgent", {}, None, None),
    (
        "full",
        "SosAgent",
        {
            "siteSelector": {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]},
            "attach": "Host",
            "limits": {"sessions": 10, "memoryMiB": 64, "sessionMemoryMiB": 8},
            "drainSeconds": 0,
            "image": "registry.example/agent:1",
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": 2}},
        },
        None,
        None,
    ),
    (
        "session larger than agent",
        "SosAgent",
        {"limits": {"memoryMiB": 64, "sessionMemoryMiB": 65}},
        "spec.limits",
        "lower sessionMemoryMiB",
    ),
    ("odd quantity", "SosAgent", {"resources": {"limits": {"cpu": "lots"}}}, "spec.resources.limits.cpu", None),
    ("image with a space", "SosAgent", {"image": "a b"}, "spec.image", None),
    ("site behind NAT", "SosSite", routed(wan={"type": "Routed", "inbound": "Blocked"}), None, None),
    ("overlay behind NAT", "SosSite", {**SELECT, "wan": {"inbound": "Blocked"}}, "spec.wan", "remove inbound"),
    ("least", "SosController", {}, None, None),
    ("external", "SosController", {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"]}}, None, None),
    (
        "external, pushed",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"], "apiURL": "http://192.0.2.1:8080", "tokenSecretName": "t"}},
        None,
        None,
    ),
    (
        "external pair",
        "SosController",
        {"type": "External", "replicas": 2, "external": {"endpoints": ["tcp:192.0.2.1:6653", "tcp:192.0.2.2:6653"]}},
        None,
        None,
    ),
    (
        "external pair with one endpoint",
        "SosController",
        {"type": "External", "replicas": 2, "external": {"endpoints": ["tcp:192.0.2.1:6653"]}},
        "spec",
        "needs an endpoint for each",
    ),
    (
        "external pair with one URL",
        "SosController",
        {
            "type": "External",
            "replicas": 2,
            "external": {
                "endpoints": ["tcp:192.0.2.1:6653", "tcp:192.0.2.2:6653"],
                "apiURL": "http://192.0.2.1:8080",
                "tokenSecretName": "token",
            },
        },
        "spec",
        "apiURL and standbyURL go together",
    ),
    (
        "standby of one external controller",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"], "standbyURL": "http://192.0.2.2:8080"}},
        "spec",
        "remove standbyURL",
    ),
    ("external without endpoints", "SosController", {"type": "External"}, "spec", "needs spec.external"),
    ("managed with endpoints", "SosController", {"external": {"endpoints": ["tcp:192.0.2.1:6653"]}}, "spec", "remove spec.external"),
    (
        "external with an image",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"]}, "image": "x"},
        "spec",
        "not run here",
    ),
    (
        "external with a placement",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"]}, "nodeSelector": {"a": "b"}},
        "spec",
        "not run here",
    ),
    (
        "placement",
        "SosController",
        {
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [
                {"operator": "Exists"},
                {"key": "a", "value": "b"},
                {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},
            ],
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        },
        None,
        None,
    ),
    ("toleration of nothing", "SosController", {"tolerations": [{"value": "b"}]}, "spec.tolerations[0]", "set key"),
    (
        "toleration of any value with a value",
        "SosController",
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        "spec.tolerations[0]",
        "remove value",
    ),
    (
        "toleration for a time without NoExecute",
        "SosController",
        {"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 5}]},
        "spec.tolerations[0]",
        "effect NoExecute",
    ),
    ("agents on some nodes", "SosAgent", {"nodeSelector": {"matchLabels": {"gateway": "yes"}}}, None, None),
    (
        "node label of no value",
        "SosAgent",
        {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        "spec.nodeSelector.matchExpressions[0]",
        "need values",
    ),
    (
        "token missing",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"], "apiURL": "http://192.0.2.1"}},
        "spec.external",
        "go together",
    ),
    (
        "token of another namespace",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"], "apiURL": "http://192.0.2.1", "tokenSecretName": "other/t"}},
        "spec.external.tokenSecretName",
        "without the namespace",
    ),
    (
        "endpoint that is no address",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.300:6653"]}},
        "spec.external.endpoints[0]",
        "like tcp:192.0.2.1:6653",
    ),
    (
        "endpoint by name",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:controller:6653"]}},
        "spec.external.endpoints[0]",
        None,
    ),
    (
        "API that is no URL",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"], "apiURL": "192.0.2.1:8080", "tokenSecretName": "t"}},
        "spec.external.apiURL",
        "write a URL",
    ),
    ("less than nothing", "SosAgent", {"resources": {"requests": {"cpu": -1}}}, "spec.resources.requests.cpu", "like 500m"),
    ("external agents", "SosAgent", {"external": {"addresses": ["10.0.0.1"]}}, "spec.external", "unknown"),
    ("peer", "SosPeer", {"prefixes": ["10.2.0.0/16"], "endpoints": ["192.0.2.7:14790"]}, None, None),
    ("unreachable peer", "SosPeer", {"prefixes": ["10.2.0.0/16"]}, None, None),
    ("peer of anything", "SosPeer", {"endpoints": ["192.0.2.7:14790"]}, "spec.prefixes", None),
    ("peer of no prefix", "SosPeer", {"prefixes": []}, "spec.prefixes", None),
    ("peer with host bits", "SosPeer", {"prefixes": ["10.2.0.1/16"]}, "spec.prefixes[0]", "set the host bits to zero"),
    ("peer without a length", "SosPeer", {"prefixes": ["10.2.0.0"]}, "spec.prefixes[0]", "write a prefix"),
    ("peer of IPv6", "SosPeer", {"prefixes": ["2001:db8::/32"]}, "spec.prefixes[0]", "only IPv4"),
    *(
        (f"endpoint {text}", "SosPeer", {"prefixes": ["10.2.0.0/16"], "endpoints": [text]}, "spec.endpoints[0]", "like 192.0.2.7:14790")
        for text in ("192.0.2.7", "192.0.2.256:1", "192.0.2.7:0", "192.0.2.7:65536", "host.example:14790", "192.0.2.7:14790x")
    ),
    ("endpoint twice", "SosPeer", {"prefixes": ["10.2.0.0/16"], "endpoints": ["192.0.2.7:1"] * 2}, "spec.endpoints[1]", None),
    ("peer with a transport", "SosPeer", {"prefixes": ["10.2.0.0/16"], "transport": TRANSPORT}, None, None),
    ("peer with a default transport", "SosPeer", {"prefixes": ["10.2.0.0/16"], "transport": {}}, None, None),
    ("peer's former field", "SosPeer", {"prefixes": ["10.2.0.0/16"], "encryption": "None"}, "spec.encryption", "unknown field"),
    *(
        (f"peer's {field}", "SosPeer", {"prefixes": ["10.2.0.0/16"], "transport": {field: value}}, f"spec.transport.{field}", said)
        for field, value, said in BAD_TRANSPORT
    ),
    ("machine", "SosPeer", machine(), None, None),
    (
        "machine with two paths",
        "SosPeer",
        machine(addresses=["192.0.2.9", "198.51.100.9"], inbound="Blocked", limits={"sessions": 9}, drainSeconds=5),
        None,
        None,
    ),
    ("machine with an endpoint", "SosPeer", {**machine(), "endpoints": ["192.0.2.7:14790"]}, "spec", "remove spec.endpoints"),
    ("machine without an id", "SosPeer", machine(siteID=None), "spec.machine.siteID", None),
    ("machine with id 0", "SosPeer", machine(siteID=0), "spec.machine.siteID", None),
    ("machine without an address", "SosPeer", machine(addresses=[]), "spec.machine.addresses", None),
    ("machine by name", "SosPeer", machine(addresses=["gw.example"]), "spec.machine.addresses[0]", "write an IPv4 address"),
    ("machine at loopback", "SosPeer", machine(addresses=["127.0.0.1"]), "spec.machine.addresses[0]", "no other machine reaches"),
    ("machine with one address twice", "SosPeer", machine(addresses=["192.0.2.9"] * 2), "spec.machine.addresses[1]", None),
    ("machine's loopback", "SosPeer", machine(interface="lo"), "spec.machine.interface", "write the interface's name"),
    ("machine with a long interface", "SosPeer", machine(interface="a" * 16), "spec.machine.interface", None),
    ("unknown inbound", "SosPeer", machine(inbound="NAT"), "spec.machine.inbound", None),
    (
        "session larger than its machine",
        "SosPeer",
        machine(limits={"memoryMiB": 64, "sessionMemoryMiB": 65}),
        "spec.machine.limits",
        "lower sessionMemoryMiB",
    ),
    ("link", "SosLink", {**LINK, "cost": 5, "capacityMbps": 1000}, None, None),
    ("link to itself", "SosLink", {**LINK, "b": {"site": "a", "uplink": "wan1"}}, "spec", "two different sites"),
    ("free link", "SosLink", {**LINK, "cost": 0}, "spec.cost", "1"),
    ("transport of two sites", "SosLink", {**PAIR, "transport": TRANSPORT}, None, None),
    ("default transport of two sites", "SosLink", {**PAIR, "transport": {}}, None, None),
    ("transport of one site", "SosLink", {**PAIR, "b": {"site": "a"}, "transport": {}}, "spec", "two different sites"),
    ("transport of a link", "SosLink", {**LINK, "transport": {}}, "spec.transport", "add a SosLink without uplinks"),
    ("two sites without a transport", "SosLink", PAIR, "spec", "add spec.transport"),
    ("half a link", "SosLink", {**LINK, "b": {"site": "b"}}, "spec", "name both uplinks, or remove both"),
    ("half a link with a transport", "SosLink", {**PAIR, "b": LINK["b"], "transport": {}}, "spec", "name both uplinks, or remove both"),
    ("cost of a transport", "SosLink", {**PAIR, "transport": {}, "cost": 20}, "spec", "remove spec.cost"),
    ("capacity of a transport", "SosLink", {**PAIR, "transport": {}, "capacityMbps": 20}, "spec", "remove spec.cost and spec.capacityMbps"),
    ("compression of a pair", "SosLink", {**PAIR, "transport": {"compression": "Adaptive"}}, "spec.transport.compression", "unknown field"),
    *(
        (f"transport's {field}", "SosLink", {**PAIR, "transport": {field: value}}, f"spec.transport.{field}", said)
        for field, value, said in BAD_TRANSPORT
    ),
]

CLIENT_PODS: list[Row] = [
    ("all pods of the namespace", "SosService", pods({}), None, None),
    (
        "labelled pods of all namespaces",
        "SosService",
        pods({"selector": {"matchLabels": {"app": "web"}}, "namespaceSelector": {}}),
        None,
        None,
    ),
    (
        "pods without values",
        "SosService",
        pods({"selector": {"matchExpressions": [{"key": "app", "operator": "In"}]}}),
        "spec.from.pods.selector.matchExpressions[0]",
        "add values, or remove them",
    ),
    (
        "namespaces with needless values",
        "SosService",
        pods({"namespaceSelector": {"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["web"]}]}}),
        "spec.from.pods.namespaceSelector.matchExpressions[0]",
        "add values, or remove them",
    ),
    ("balanced pods", "SosService", {**BALANCED, "from": {**BALANCED["from"], "pods": {}}}, "spec.from", "remove spec.from.pods"),
    ("pods of the own namespace", "SosSite", ruled(namespaces=["default"], pods="OwnNamespace"), None, None),
    ("pods of unknown namespaces", "SosSite", ruled(namespaces=["default"], pods="Mine"), "spec.services.rules[0].pods", None),
]

TABLE: list[Row] = SITES + SERVICES + CLIENT_PODS + OTHERS

CHANGES: list[tuple[str, str, dict[str, Any], dict[str, Any], str | None]] = [
    ("same id", "SosSite", {**SELECT, "siteID": 7}, {**SELECT, "siteID": 7, "prefixes": ["10.1.0.0/16"]}, None),
    ("another id", "SosSite", {**SELECT, "siteID": 7}, {**SELECT, "siteID": 8}, "immutable"),
    ("id taken away", "SosSite", {**SELECT, "siteID": 7}, SELECT, "immutable"),
    ("id added", "SosSite", SELECT, {**SELECT, "siteID": 7}, "immutable"),
    ("bridge taken away", "SosSite", {**SELECT, "prefixes": ["10.1.0.0/16"]}, routed(), "cannot change between"),
    ("bridge added", "SosSite", routed(), {**SELECT, "prefixes": ["10.1.0.0/16"]}, "cannot change between"),
    ("other prefix without a bridge", "SosSite", routed(), routed(prefixes=["10.2.0.0/16"]), None),
    ("controller moved out", "SosController", {}, {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"]}}, "immutable"),
    ("link moved", "SosLink", LINK, {**LINK, "a": {"site": "c", "uplink": "wan0"}}, "immutable"),
    ("link dearer", "SosLink", LINK, {**LINK, "cost": 20}, None),
    ("link that becomes a transport", "SosLink", LINK, {**PAIR, "transport": {}}, "immutable"),
    ("transport encrypted", "SosLink", {**PAIR, "transport": {}}, {**PAIR, "transport": {"encryption": "TLS"}}, None),
    ("machine with another address", "SosPeer", machine(), machine(addresses=["192.0.2.10"]), None),
    ("machine with another id", "SosPeer", machine(), machine(siteID=10), "immutable"),
    ("machine that was a cluster", "SosPeer", {"prefixes": ["10.3.0.0/16"]}, machine(), "cannot become a machine"),
    ("service moved", "SosService", ENDS, {**ENDS, "to": {"site": "c"}}, None),
]
"""Rows of (name, kind, spec before, spec after, part of the message or None if the change is allowed)."""


def build(kind: str, spec: dict[str, Any], name: str = "probe") -> dict[str, Any]:
    """Return the object of a row."""
    metadata = {"name": name, **({"namespace": "default"} if kind == "SosService" else {})}
    return {"apiVersion": "sos.network/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
