"""ConfigMaps about peers: the file for the agents (spec/card.md clause 12), and the last card of each peer, which survives a restart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from sos_compile.manifests import naming
from sos_compile.model.site_card import CARD_PORT, CardError, SiteCard, parse_card

from sos_operator.core.model.cluster_objects import ConfigMap
from sos_operator.core.model.custom_resources import SosPeer
from sos_operator.core.model.kinds import CONFIG_MAP
from sos_operator.core.model.objects import Object, Resource
from sos_operator.core.model.options import Settings
from sos_operator.core.model.world import PREFIX, Seen
from sos_operator.core.peers.contact import Received
from sos_operator.core.secrets.secrets import labels, owned_by

AGENTS_FILE = "peers.json"
COMPONENT = "peer"
FILE_BYTES = 1_000_000  # room of AGENTS_FILE: a ConfigMap holds 1 MiB
INSTALLATION_NAMESPACE = "kube-system"


# Cached, because every pass parses the cards of all peers, which rarely change.
_parse = lru_cache(maxsize=128)(parse_card)


@dataclass(frozen=True, slots=True)
class Offered:
    """Text for one peer: our card, or the configuration of a machine."""

    pairing: bytes
    installation: str | None
    """The installation that uses the pairing, None before the first contact."""
    sequence: int
    """Time of issue of a card, generation of a configuration."""
    text: str


def installation_id(seen: Seen) -> str:
    """Return the id of this cluster, 32 hex digits; "" while the namespace has not been read."""
    found = (o.meta.uid for o in seen.namespaces if o.name == INSTALLATION_NAMESPACE)
    text = next(found, "").replace("-", "").lower()
    return text if len(text) == 32 and all(c in "0123456789abcdef" for c in text) else ""


def agents_name() -> str:
    """Return the name of the ConfigMap that agents mount (`sos_compile.manifests.agent`)."""
    return naming.peers(PREFIX)


def card_name(peer: str) -> str:
    """Return the name of the ConfigMap with the last card of a peer."""
    return naming.child(PREFIX, "peercard", peer)


def issued_cards(seen: Seen) -> dict[str, SiteCard]:
    """Return our cards as the agents have them, by pairing (32 hex digits). The configurations of machines are left out."""
    held = seen.child(ConfigMap, agents_name())
    if held is None:
        return {}
    try:
        rows = [(str(row["pairing"]), str(row["card"])) for row in json.loads(held.data[AGENTS_FILE])["peers"]]
    except (KeyError, ValueError, TypeError):
        return {}
    found = {}
    for pairing, text in rows:
        with suppress(CardError):
            found[pairing] = _parse(text)
    return found


def issue(card: SiteCard, before: SiteCard | None, now_ms: int) -> SiteCard:
    """Return a card with its time of issue. A card that has not changed keeps its time, so that agents and peers see no change."""
    if before is not None and before.model_copy(update={"issued": 0}) == card.model_copy(update={"issued": 0}):
        return before
    return card.model_copy(update={"issued": max(now_ms, before.issued + 1 if before else 0)})


def entry_size(text: str) -> int:
    """Return the bytes of a peer's entry in AGENTS_FILE, where its text is a string."""
    return len(json.dumps(text)) + 256


def agents_manifest(settings: Settings, seen: Seen, offered: Iterable[Offered]) -> Object:
    """Return the ConfigMap that agents mount."""
    rows = [
        {"pairing": each.pairing.hex(), "installation": each.installation, "sequence": each.sequence, "card": each.text}
        for each in sorted(offered, key=lambda each: each.pairing)
    ]
    document = {"version": "v1alpha1", "port": CARD_PORT, "installation": installation_id(seen), "peers": rows}
    return _config_map(settings, agents_name(), {AGENTS_FILE: json.dumps(document, separators=(",", ":"), sort_keys=True)}, None)


def card_manifests(settings: Settings, seen: Seen, received: Mapping[str, Received]) -> list[Object]:
    """Return the ConfigMaps with the last card of each peer, owned by its SosPeer."""
    found = []
    for peer in seen.of(SosPeer):
        known = received.get(peer.name)
        if known is not None and not peer.leaving:
            data = {"pairing": known.pairing, "installation": known.installation, "card.json": known.card.encode()}
            found.append(_config_map(settings, card_name(peer.name), data, peer))
    return found


def stored_cards(seen: Seen) -> dict[str, Received]:
    """Return the last card of each peer, by SosPeer, as an earlier pass has stored it."""
    found = {}
    for peer in seen.of(SosPeer):
        held = seen.child(ConfigMap, card_name(peer.name))
        if held is None or peer.leaving or peer.meta.uid not in {owner.uid for owner in held.meta.owners}:
            continue
        data = held.data
        try:
            found[peer.name] = Received(data["pairing"], data["installation"], _parse(data["card.json"]))
        except (KeyError, CardError):
            continue  # the next exchange replaces the card
    return found


def _config_map(settings: Settings, name: str, data: Mapping[str, str], owner: Resource | None) -> Object:
    metadata = {"name": name, "namespace": settings.namespace, "labels": labels(COMPONENT)} | owned_by(owner)
    return {"apiVersion": CONFIG_MAP.api_version, "kind": CONFIG_MAP.kind, "metadata": metadata, "data": dict(data)}
