"""The typed form of an admitted object: `parse`. Relations between objects are not checked here."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any

from sos_compile.model.addresses import merge_ports
from sos_compile.model.resources import (
    ALL_PORTS,
    DEFAULT_MTU,
    OVERLAY_OVERHEAD_BYTES,
    Balance,
    Bond,
    Controller,
    End,
    Intake,
    LanInterface,
    Link,
    Machine,
    Origin,
    PairTransport,
    Parsed,
    Peer,
    PodSelection,
    Pool,
    Rule,
    Service,
    Site,
    SitePair,
    Transport,
    Uplink,
)
from sos_compile.model.world import Json, ObjectKey


def parse(obj: Json, file: str | None) -> Parsed:
    """Return the typed form of an admitted object (defaults filled in, schema and rules satisfied)."""
    parsed: Parsed = _PARSERS[obj["kind"]](_origin(obj, file), obj["spec"])
    return parsed


def _origin(obj: Json, file: str | None) -> Origin:
    meta = obj["metadata"]
    key = ObjectKey(obj["kind"], meta.get("namespace") or "", meta["name"])
    labels = tuple(sorted((meta.get("labels") or {}).items()))
    return Origin(key, file, meta.get("uid") or "", str(meta.get("creationTimestamp") or ""), labels)


def _networks(texts: list[str]) -> tuple[IPv4Network, ...]:
    return tuple(sorted(IPv4Network(text) for text in texts))


def _site(origin: Origin, spec: Json) -> Site:
    network, wan = spec["network"], spec["wan"]
    listed = [IPv4Network(text) for text in spec.get("prefixes", [])]
    first = listed[0] if listed else None
    return Site(
        origin=origin,
        site_id=spec.get("siteID"),
        selector=spec.get("nodeSelector"),
        switches=tuple(sorted((item["dpid"], item.get("name", item["dpid"])) for item in spec.get("datapaths", []))),
        prefixes=tuple(sorted(listed)),
        wan=wan["type"],
        uplinks=tuple(_uplink(item) for item in wan.get("uplinks", [])),
        gateway=IPv4Interface(spec["gateway"]) if "gateway" in spec else None,
        subnet=IPv4Network(network["subnet"]) if "subnet" in network else first,
        mtu=network.get("mtu", DEFAULT_MTU - (OVERLAY_OVERHEAD_BYTES if wan["type"] == "Overlay" else 0)),
        ipam=network.get("ipam"),
        routes=tuple((item["to"], item.get("via")) for item in network.get("routes", [])),
        agent_range=IPv4Network(network["agentAddresses"]) if "agentAddresses" in network else first,
        rewrite=spec["datapath"]["rewrite"],
        datapath_type=spec["datapath"]["type"],
        namespaces=spec["services"]["namespaces"],
        services_selector=spec["services"].get("selector"),
        rules=tuple(_rule(item) for item in spec["services"].get("rules", [])),
        controllers=() if wan["type"] == "Routed" else tuple(item["name"] for item in spec["controllers"]),
        intake=_intake(spec["intake"]) if "intake" in spec else None,
        wan_addresses={item["node"]: tuple(map(IPv4Address, item["addresses"])) for item in wan.get("addresses", [])},
        inbound=wan.get("inbound", "Open"),
        lan=tuple(LanInterface(item["name"], item["node"]) for item in network.get("lan", [])),
        bond=Bond(wan["bond"]["mode"], wan["bond"]["upDelaySeconds"]) if "bond" in wan else None,
        plain_switches=frozenset(item["dpid"] for item in spec.get("datapaths", []) if item.get("tls") == "Disabled"),
        link_ports={item["dpid"]: tuple(sorted(item["linkPorts"])) for item in spec.get("datapaths", []) if "linkPorts" in item},
    )


def _intake(item: Json) -> Intake:
    shared = IPv4Address(item["virtualAddress"]) if "virtualAddress" in item else None
    return Intake(item["type"], item.get("interface"), item.get("networkPolicies", "Respect"), shared)


def _rule(item: Json) -> Rule:
    return Rule(
        namespaces=frozenset(item.get("namespaces", [])),
        selector=item.get("selector"),
        prefixes=_networks(item.get("prefixes", [])),
        ports=_ports(item.get("ports", [])) or ALL_PORTS,
        band=item["band"],
        sessions_percent=item.get("sessionsPercent"),
        modes=frozenset(item["modes"]) if item.get("modes") else None,
        transport=frozenset(item["transport"]) if "transport" in item else None,
        own_pods=item.get("pods") == "OwnNamespace",
    )


def _ports(items: list[Json]) -> tuple[tuple[int, int], ...]:
    return merge_ports(tuple((item["port"], item["endPort"] if "endPort" in item else item["port"]) for item in items))


def _uplink(item: Json) -> Uplink:
    if "address" not in item:
        return Uplink(item["name"], item["base"])
    return Uplink(item["name"], item["base"], IPv4Interface(item["address"]), IPv4Address(item["gateway"]))


def _pool(origin: Origin, spec: Json) -> Pool:
    limits = spec["limits"]
    return Pool(
        origin=origin,
        selector=spec["siteSelector"],
        attach=spec["attach"],
        sessions=limits["sessions"],
        memory_mib=limits["memoryMiB"],
        session_memory_mib=limits["sessionMemoryMiB"],
        drain_s=spec["drainSeconds"],
        image=spec.get("image"),
        resources=spec.get("resources", {}),
        node_selector=spec.get("nodeSelector", {}),
    )


def _service(origin: Origin, spec: Json) -> Service:
    transport, paths = spec["transport"], spec["paths"]
    return Service(
        origin=origin,
        source=End(spec["from"].get("site"), _networks(spec["from"].get("prefixes", [])), _pod_selection(spec["from"].get("pods"))),
        target=End(spec["to"].get("site"), _networks(spec["to"].get("prefixes", [])), service=_destination(origin, spec["to"])),
        ports=_ports(spec.get("ports", [])),
        mode=spec["mode"],
        percent=spec["percent"],
        setup="Reactive" if spec["setup"] == "Auto" else spec["setup"],
        accept=spec.get("accept", "Learned"),
        priority=spec["priority"],
        transport=Transport(
            streams=_streams(transport),
            block_bytes=transport.get("blockKiB", 0) * 1024,
            queue_bytes=transport.get("queueMiB", 0) * 1024 * 1024,
            congestion_control=transport["congestionControl"],
            encryption=transport.get("encryption", "None"),
            compression=transport.get("compression", "None"),
            protocol=transport.get("protocol", "TCP"),
        ),
        paths_mode="Shortest" if paths["mode"] == "Auto" else paths["mode"],
        paths_max=1 if paths["mode"] in ("Auto", "Shortest") else paths["max"],
        controller=spec.get("controller", {}).get("name"),
        balance=_balance(spec["balance"]) if "balance" in spec else None,
        require=frozenset(spec.get("require", [])),
        reactive=spec["setup"] == "Reactive",
        all_paths=paths["mode"] == "Auto",
        connect_from=spec["to"].get("source", "Preserve"),
        proxy_protocol=spec["to"].get("proxyProtocol", "None"),
    )


def _pod_selection(block: Json | None) -> PodSelection | None:
    return None if block is None else PodSelection(block.get("selector", {}), block.get("namespaceSelector"))


def _destination(origin: Origin, end: Json) -> tuple[str, str] | None:
    named = end.get("service")
    return None if named is None else (named.get("namespace", origin.key.namespace), named["name"])


def _streams(transport: Json) -> int:
    return 0 if transport["streams"] == "Auto" else int(transport["streams"])


def _pair_transport(block: Json) -> PairTransport:
    return PairTransport(_streams(block), block["congestionControl"], block["encryption"], block["protocol"])


def _balance(block: Json) -> Balance:
    return Balance(block["at"], tuple((item["name"], item["weight"]) for item in block.get("uplinks", [])))


def _controller(origin: Origin, spec: Json) -> Controller:
    return Controller(
        origin=origin,
        managed=spec["type"] == "Managed",
        endpoints=tuple(spec.get("external", {}).get("endpoints", [])),
        service_type=spec["service"]["type"],
        image=spec.get("image"),
        resources=spec.get("resources", {}),
        placement={name: spec[name] for name in ("nodeSelector", "tolerations", "affinity") if spec.get(name)},
        tls=spec["openflow"]["tls"],
        replicas=spec["replicas"],
    )


def _link(origin: Origin, spec: Json) -> Link | SitePair:
    if "uplink" not in spec["a"]:
        return SitePair(origin, (spec["a"]["site"], spec["b"]["site"]), _pair_transport(spec["transport"]))
    a, b = ((spec[end]["site"], spec[end]["uplink"]) for end in ("a", "b"))
    return Link(origin, a, b, spec["cost"], spec.get("capacityMbps"))


def _peer(origin: Origin, spec: Json) -> Peer:
    ends = (text.rpartition(":") for text in spec["endpoints"])
    endpoints = tuple((address, int(port)) for address, _, port in ends)
    machine = _machine(origin, spec["machine"]) if "machine" in spec else None
    transport = _pair_transport(spec["transport"]) if "transport" in spec else None
    return Peer(origin, endpoints, _networks(spec["prefixes"]), transport, machine)


def _machine(origin: Origin, spec: Json) -> Machine:
    pool = {"siteSelector": {}, "attach": "Host", "limits": spec["limits"], "drainSeconds": spec["drainSeconds"]}
    return Machine(spec["siteID"], tuple(spec["addresses"]), spec["interface"], spec["inbound"], _pool(origin, pool))


_PARSERS: dict[str, Any] = {
    "SosSite": _site,
    "SosAgent": _pool,
    "SosService": _service,
    "SosController": _controller,
    "SosLink": _link,
    "SosPeer": _peer,
}
