"""An invitation: a SosPeer and its Secret for each of two clusters (spec/card.md clause 1)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, collapse_addresses
from typing import Any

from sos_kubectl.base import names
from sos_kubectl.base.source import API_VERSION

Json = dict[str, Any]

CARD_PORT = 14790  # spec/card.md clause 4
MAX_ENDPOINTS = 16
AGENTS = "app.kubernetes.io/part-of=sos,app.kubernetes.io/component=agent"


@dataclass(frozen=True, slots=True)
class End:
    """One cluster as the other cluster sees it."""

    name: str
    """Name of the SosPeer in the other cluster."""
    namespace: str
    """Namespace of the operator."""
    prefixes: tuple[str, ...]
    endpoints: tuple[str, ...] = ()


def own_prefixes(sites: Sequence[Json]) -> tuple[str, ...]:
    """Return the prefixes of a cluster's sites without bridges, aggregated where possible."""
    routed = [site["spec"] for site in sites if (site["spec"].get("wan") or {}).get("type") == "Routed"]
    found = [IPv4Network(text) for spec in routed for text in spec.get("prefixes") or ()]
    return tuple(str(prefix) for prefix in collapse_addresses(found))


def own_endpoints(pods: Sequence[Json]) -> tuple[str, ...]:
    """Return address and port of agents of sites without bridges, at most 16. The other cluster learns all agents from the first card."""
    routed = [pod for pod in pods if any("--peers" in (c.get("args") or ()) for c in pod["spec"].get("containers") or ())]
    addresses = sorted({str((pod.get("status") or {}).get("hostIP") or "") for pod in routed} - {""})
    return tuple(f"{address}:{CARD_PORT}" for address in addresses if ":" not in address)[:MAX_ENDPOINTS]


def objects(other: End, at: str, pairing: str, key: str) -> list[Json]:
    """Return the Secret and the SosPeer of the cluster `other`, for a cluster whose operator runs in namespace `at`."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": names.peer_secret(other.name), "namespace": at, "labels": {"app.kubernetes.io/part-of": "sos"}},
        "type": "Opaque",
        "stringData": {"pairing": pairing, "key-1": key},
    }
    spec: Json = {"prefixes": list(other.prefixes)} | ({"endpoints": list(other.endpoints)} if other.endpoints else {})
    peer = {"apiVersion": API_VERSION, "kind": "SosPeer", "metadata": {"name": other.name}, "spec": spec}
    return [secret, peer]


def text(made: Sequence[Json]) -> str:
    """Return objects as one file for `kubectl apply`. JSON documents are YAML documents, too."""
    return "".join(f"---\n{json.dumps(obj, indent=2)}\n" for obj in made)


def rows(peers: Sequence[Json]) -> list[tuple[str, ...]]:
    """Return a table of SosPeers: name, state, reason, sites, message."""
    found: list[tuple[str, ...]] = []
    for peer in sorted(peers, key=lambda peer: str(peer["metadata"]["name"])):
        status = peer.get("status") or {}
        ready: Json = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
        words = (str(ready.get("status", "Unknown")), str(ready.get("reason", "Pending")), str(status.get("siteNames") or "-"))
        found.append((str(peer["metadata"]["name"]), *words, str(ready.get("message", ""))))
    return found
