"""Policies: the service that covers a SYN. Services have an order; the first match decides, even if it leaves the SYN plain."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from sos_controller.core.config import ONE_PATH_MODES, Config, Service, Site
from sos_controller.core.openflow.flow_entries import Masked, Match
from sos_controller.core.openflow.pipeline import BARE_SYN, ETH_IPV4, FRAGMENT, ICMP_ERRORS, NOT_SYN, PROTO_ICMP, PROTO_TCP
from sos_controller.core.openflow.port_masks import masks
from sos_controller.core.tables.policy_index import PolicyIndex
from sos_controller.core.tables.shares import counted_one_by_one
from sos_controller.core.types import Address, FlowKey, Prefix
from sos_controller.core.wire.packets import Syn

MAX_PERCENT = 100
MAX_PUNTS = 1_024
"""Maximum number of punt entries of one service on one datapath; beyond it, entries match all ports and, if necessary, all clients, since
the policy decides about punted SYNs anyway."""


class Covered(Protocol):
    """Addresses and port that select a connection's service: of a SYN, or of a flow reported by an agent."""

    @property
    def client(self) -> Address:
        """Return the client's address."""

    @property
    def server(self) -> Address:
        """Return the server's address."""

    @property
    def server_port(self) -> int:
        """Return the server's port."""


class Policy(NamedTuple):
    """A service with its prefixes and ports as numbers."""

    service: Service
    clients: tuple[Prefix, ...]
    servers: tuple[Prefix, ...]
    ports: tuple[tuple[int, int], ...]

    def covers(self, flow: Covered) -> bool:
        """Return whether the service covers a connection."""
        port = flow.server_port
        return (
            any(first <= port <= last for first, last in self.ports)
            and any(p.holds(flow.server) for p in self.servers)
            and any(p.holds(flow.client) for p in self.clients)
        )

    def overlaps(self, other: Policy) -> bool:
        """Return whether both services could cover the same connection."""
        return (
            any(a <= d and c <= b for a, b in self.ports for c, d in other.ports)
            and any(_meet(p, q) for p in self.servers for q in other.servers)
            and any(_meet(p, q) for p in self.clients for q in other.clients)
        )


class Policies:
    """All services, by the site of their clients."""

    def __init__(self, services: Iterable[Service]) -> None:
        self.by_site: dict[str, list[Policy]] = {}
        for service in services:
            ports = tuple((r.first, r.last) for r in service.ports)
            policy = Policy(service, service.from_.parsed(), service.to.parsed(), ports)
            self.by_site.setdefault(service.from_.site, []).append(policy)
        self._indexes = {site: PolicyIndex([(p.clients, p.servers, p.ports) for p in own]) for site, own in self.by_site.items()}

    def first(self, site: str, flow: Covered) -> Policy | None:
        """Return the service that decides about a connection."""
        index = self._indexes.get(site)
        number = -1 if index is None else index.first(flow.client, flow.server, flow.server_port)
        return None if number < 0 else self.by_site[site][number]

    def covering(self, site: str, flow: Covered, limit: int) -> list[Policy]:
        """Return the services that cover a connection, in their order, at most `limit` of them."""
        index = self._indexes.get(site)
        if index is None:
            return []
        policies = self.by_site[site]
        return [policies[number] for number in index.numbers(flow.client, flow.server, flow.server_port, limit)]

    def match(self, site: str, syn: Syn) -> Service | None:
        """Return the service that accelerates a SYN, None for plain TCP."""
        policy = self.first(site, syn)
        return policy.service if policy is not None and accelerates(policy.service, syn.key) else None


def why_not_proactive(policy: Policy, earlier: Iterable[Policy], sites: Mapping[str, Site]) -> str:
    """Return the reason for which a service cannot be proactive, or "". `earlier`: reactive services that are tried before it."""
    return (
        _why_one_by_one(policy.service, sites)
        or _why_not_beside_agents(policy.service, sites)
        or _too_wide(policy)
        or _decided_before(policy, earlier)
    )


def _why_one_by_one(service: Service, sites: Mapping[str, Site]) -> str:
    """Return the reason for which each connection of a service needs a decision, or ""."""
    if service.percent < MAX_PERCENT:
        return "percent is decided connection by connection"
    if service.paths.mode in ONE_PATH_MODES:
        return f"with paths.mode {service.paths.mode} the path is chosen connection by connection"
    bound = counted_one_by_one(service, sites)
    return "" if bound is None else f"sessions of its namespace are bounded at site {bound.site}, which is decided connection by connection"


def _why_not_beside_agents(service: Service, sites: Mapping[str, Site]) -> str:
    """Return the reason for which switches of a service's sites cannot have standing entries, or ""."""
    for site in (sites[service.from_.site], sites[service.to.site]):
        if len(site.datapaths) != 1:
            return f"site {site.name} has {len(site.datapaths)} datapaths, and only its agent's datapath detects that the agent is down"
        if site.datapaths[0].forwarding != "Node":
            return f"the datapath of site {site.name} is not one of our Open vSwitch bridges"
        if site.rewrite != "Transparent":
            return f"site {site.name} rewrites addresses, which takes entries for each connection"
    return ""


def _too_wide(policy: Policy) -> str:
    """Return the reason for which a service's entries would be too wide, or "". Entries that are too wide would redirect other TCP
    connections to the agents' kernels."""
    count = needed(policy)
    return f"{count} entries would match its prefixes and ports, and {MAX_PUNTS} are made at most" if count > MAX_PUNTS else ""


def _decided_before(policy: Policy, earlier: Iterable[Policy]) -> str:
    service = policy.service
    first = next((e for e in earlier if e.service.from_.site == service.from_.site and e.overlaps(policy)), None)
    return "" if first is None else f"service {first.service.id}, which is tried before it, decides about some of its connections"


def accelerated(service: Service) -> bool:
    """Return whether a service redirects any connections."""
    return service.mode == "Accelerate" and service.percent > 0


def compared(service: Service) -> bool:
    """Return whether connections of a service are measured: of an observed service, and both groups of a service that is accelerated in
    part."""
    return service.mode == "Observe" or 0 < service.percent < MAX_PERCENT


def in_share(key: FlowKey, percent: int) -> bool:
    """Return whether a flow is in the accelerated share; the same answer for the same flow."""
    return zlib.crc32(key) % 100 < percent


def accelerates(service: Service, key: FlowKey) -> bool:
    """Return whether a service accelerates a flow that it covers."""
    return accelerated(service) and in_share(key, service.percent)


def policies(config: Config | None) -> Policies:
    """Return the services of a configuration."""
    return Policies(config.services if config is not None else ())


def punt_matches(policy: Policy) -> list[Match]:
    """Return the matches of a service's punt entries: bare SYNs, by prefixes and ports as far as the bound allows."""
    clients, servers, ports = _blocks(policy)
    return [_match((c, s), None, port, BARE_SYN) for c in clients for s in servers for port in ports]


def answer_matches(policy: Policy, flags: Iterable[Masked]) -> list[Match]:
    """Return the matches of packets with these TCP flags from servers to clients of a service."""
    clients, servers, ports = _blocks(policy)
    return [_match((s, c), port, None, flag) for flag in flags for c in clients for s in servers for port in ports]


def redirect_matches(policy: Policy, ingress: bool) -> list[Match]:
    """Return the matches of a proactive service: all packets from client to server on the ingress side, from server to client on the egress
    side."""
    clients, servers, ports = _blocks(policy)
    if ingress:
        return [_match((c, s), None, port, None) for c in clients for s in servers for port in ports]
    return [_match((s, c), port, None, None) for c in clients for s in servers for port in ports]


def error_matches(prefixes: Iterable[Prefix]) -> list[Match]:
    """Return the matches of ICMP errors to hosts in these prefixes."""
    blocks = [prefix.masked for prefix in outermost(prefixes)]
    return [Match(eth_type=ETH_IPV4, ip_proto=PROTO_ICMP, ipv4_dst=block, icmp_type=kind) for block in blocks for kind in ICMP_ERRORS]


def fragment_matches(policy: Policy, ingress: bool) -> list[Match]:
    """Return the matches of fragments of TCP segments from client to server on the ingress side, from server to client on the egress side,
    for all ports: Open vSwitch matches no ports of fragments, not even of the first (ovs-ofctl(8), "set-frags normal")."""
    pairs = [(c, s) if ingress else (s, c) for c in outermost(policy.clients) for s in outermost(policy.servers)]
    return [msgspec.structs.replace(_match(pair, None, None, None), ip_frag=FRAGMENT) for pair in pairs]


def exact_matches(policy: Policy, ingress: bool) -> list[Match]:
    """Return the matches of a service's exact entries: those of `redirect_matches`, but on the ingress side without SYNs, which are punted.
    They apply only to packets that no session's entry matches."""
    found = redirect_matches(policy, ingress)
    return [msgspec.structs.replace(m, tcp_flags=NOT_SYN if ingress else None, reg0=0) for m in found]


def needed(policy: Policy) -> int:
    """Return the number of matches that cover exactly the connections of a service."""
    clients, servers, ports = _parts(policy)
    return len(clients) * len(servers) * len(ports)


def widening(policy: Policy) -> str:
    """Return a message if the entries of a service match more connections than the service covers, else ""."""
    count = needed(policy)
    if count <= MAX_PUNTS:
        return ""
    clients, servers, _ = _parts(policy)
    wide = len(clients) * len(servers) > MAX_PUNTS
    who = "of any client to any port of its servers" if wide else "to any port between its prefixes"
    return f"{count} entries would match it exactly and {MAX_PUNTS} are made at most, so first packets {who} are punted to the controller"


def _parts(policy: Policy) -> tuple[list[Prefix], list[Prefix], list[Masked | None]]:
    """Return clients, servers and ports of a service in as few blocks as possible."""
    ports = [m for first, last in policy.ports for m in masks(first, last)]
    matches: list[Masked | None] = [None if mask == 0 else (value, mask) for value, mask in dict.fromkeys(ports)]
    return outermost(policy.clients), outermost(policy.servers), matches


def _blocks(policy: Policy) -> tuple[list[Prefix], list[Prefix], list[Masked | None]]:
    """Return clients, servers and ports of a service in few blocks; if there would be too many, the blocks are wider than the service."""
    clients, servers, port_matches = _parts(policy)
    if len(clients) * len(servers) * len(port_matches) > MAX_PUNTS:
        port_matches = [None]
    if len(clients) * len(servers) > MAX_PUNTS:
        clients = [Prefix(0, 0)]
    return clients, servers, port_matches


def _match(ends: tuple[Prefix, Prefix], source: Masked | None, target: Masked | None, flags: Masked | None) -> Match:
    src, dst = ends
    return Match(
        eth_type=ETH_IPV4,
        ip_proto=PROTO_TCP,
        ipv4_src=src.masked,
        ipv4_dst=dst.masked,
        tcp_src=source,
        tcp_dst=target,
        tcp_flags=flags,
    )


def _meet(one: Prefix, other: Prefix) -> bool:
    return one.holds(other.network) or other.holds(one.network)


def outermost(prefixes: Iterable[Prefix]) -> list[Prefix]:
    """Return the prefixes that no other prefix of the input contains."""
    kept: list[Prefix] = []
    for prefix in sorted(set(prefixes), key=lambda p: (p.length, p.network)):
        if not any(k.holds(prefix.network) for k in kept):
            kept.append(prefix)
    return kept
