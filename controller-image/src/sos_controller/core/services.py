"""Which service a SYN belongs to. Services are tried in order; the first match decides, also when it decides for plain TCP."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

from sos_controller.core.config_model import Config, Service
from sos_controller.core.flowtable import Match
from sos_controller.core.model import FlowKey, Prefix
from sos_controller.core.packets import Syn
from sos_controller.core.pipeline import BARE_SYN, ETH_IPV4, PROTO_TCP
from sos_controller.core.portmask import masks

MAX_PUNTS = 1_024
"""Punt entries of one service on one datapath; beyond it ports, then client prefixes, are not matched. The policy decides anyway."""


class Policy(NamedTuple):
    """A service with its prefixes and ports as numbers."""

    service: Service
    clients: tuple[Prefix, ...]
    servers: tuple[Prefix, ...]
    ports: tuple[tuple[int, int], ...]

    def covers(self, syn: Syn) -> bool:
        """Whether the connection is one of this service."""
        port = syn.server_port
        return (
            any(first <= port <= last for first, last in self.ports)
            and any(p.holds(syn.server) for p in self.servers)
            and any(p.holds(syn.client) for p in self.clients)
        )


class Policies:
    """All services, by the site their clients are at."""

    def __init__(self, services: Iterable[Service]) -> None:
        self.by_site: dict[str, list[Policy]] = {}
        for service in services:
            ports = tuple((r.first, r.last) for r in service.ports)
            policy = Policy(service, service.from_.parsed(), service.to.parsed(), ports)
            self.by_site.setdefault(service.from_.site, []).append(policy)

    def match(self, site: str, syn: Syn) -> Service | None:
        """The service to accelerate a SYN by, None for plain TCP."""
        for policy in self.by_site.get(site, ()):
            if policy.covers(syn):
                service = policy.service
                return service if accelerated(service) and in_share(syn.key, service.percent) else None
        return None


def accelerated(service: Service) -> bool:
    """Whether a service redirects anything at all."""
    return service.mode == "Accelerate" and service.percent > 0


def in_share(key: FlowKey, percent: int) -> bool:
    """Whether a flow is in the accelerated share; the same answer for the same flow."""
    return zlib.crc32(key) % 100 < percent


def policies(config: Config | None) -> Policies:
    """The services of a configuration."""
    return Policies(config.services if config is not None else ())


def punt_matches(policy: Policy) -> list[Match]:
    """What the punt entries of a service match: bare SYNs, by prefixes and ports as far as the bound allows."""
    clients: list[Prefix] = outermost(policy.clients)
    servers = outermost(policy.servers)
    ports = [m for first, last in policy.ports for m in masks(first, last)]
    port_matches = [None if mask == 0 else (value, mask) for value, mask in dict.fromkeys(ports)]
    if len(clients) * len(servers) * len(port_matches) > MAX_PUNTS:
        port_matches = [None]
    if len(clients) * len(servers) > MAX_PUNTS:
        clients = [Prefix(0, 0)]
    return [
        Match(
            eth_type=ETH_IPV4,
            ip_proto=PROTO_TCP,
            ipv4_src=(c.network, c.mask) if c.length else None,
            ipv4_dst=(s.network, s.mask) if s.length else None,
            tcp_dst=port,
            tcp_flags=BARE_SYN,
        )
        for c in clients
        for s in servers
        for port in port_matches
    ]


def outermost(prefixes: Iterable[Prefix]) -> list[Prefix]:
    """The prefixes that no other one of them contains."""
    kept: list[Prefix] = []
    for prefix in sorted(set(prefixes), key=lambda p: (p.length, p.network)):
        if not any(k.holds(prefix.network) for k in kept):
            kept.append(prefix)
    return kept
