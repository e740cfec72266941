"""Kubernetes Services that SosServices name as their destination (spec.to.service)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sos_compile
from sos_compile.model.addresses import is_ipv4

from sos_operator.core.model.custom_resources import SosService, SosSite
from sos_operator.core.model.objects import Object, items, mapping, number, rows, text
from sos_operator.core.model.world import Seen

SERVICE_NAME_LABEL = "kubernetes.io/service-name"  # on each EndpointSlice of a Service

Place = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class KubernetesServices:
    """The named Services that exist, in the form that `sos_compile` takes. `problem`: reason why they are unknown."""

    services: tuple[sos_compile.KubernetesService, ...] = ()
    problem: str = ""


def named_services(seen: Seen) -> tuple[Place, ...]:
    """Return the Services that SosServices name at sites of this cluster, sorted. Peers announce the addresses of their own."""
    own = {site.name for site in seen.of(SosSite)}
    found = {each.destination for each in seen.of(SosService) if each.destination is not None and each.target_site in own}
    return tuple(sorted(found))


def is_headless(service: Object) -> bool:
    """True if clients of a Service connect to its pods' own addresses."""
    return text(mapping(service.get("spec")).get("clusterIP")) == "None"


def parse_kubernetes_service(service: Object, slices: Iterable[Object] = ()) -> sos_compile.KubernetesService:
    """Return a Service with its addresses. `slices`: the EndpointSlices of a headless Service."""
    meta = mapping(service.get("metadata"))
    headless = is_headless(service)
    addresses, ports = _ready(slices) if headless else _own(service)
    return sos_compile.KubernetesService(
        text(meta.get("namespace")), text(meta.get("name")), tuple(sorted(addresses)), tuple(sorted(ports)), headless
    )


def _own(service: Object) -> tuple[set[str], set[int]]:
    spec, status = mapping(service.get("spec")), mapping(service.get("status"))
    balancers = (each.get("ip") for each in rows(mapping(status.get("loadBalancer")).get("ingress")))
    listed = (spec.get("clusterIP"), *items(spec.get("clusterIPs")), *items(spec.get("externalIPs")), *balancers)
    return set(filter(is_ipv4, map(text, listed))), _tcp_ports(spec)


def _ready(slices: Iterable[Object]) -> tuple[set[str], set[int]]:
    addresses: set[str] = set()
    ports: set[int] = set()
    for each in slices:
        if each.get("addressType") != "IPv4":
            continue
        # A missing `ready` means ready (discovery.k8s.io/v1, EndpointConditions).
        ready = (endpoint for endpoint in rows(each.get("endpoints")) if mapping(endpoint.get("conditions")).get("ready") is not False)
        addresses |= {text(address) for endpoint in ready for address in items(endpoint.get("addresses"))}
        ports |= _tcp_ports(each)
    return set(filter(is_ipv4, addresses)), ports


def _tcp_ports(holder: Mapping[str, Any]) -> set[int]:
    listed = (number(each.get("port")) for each in rows(holder.get("ports")) if each.get("protocol", "TCP") == "TCP")
    return {port for port in listed if port > 0}
