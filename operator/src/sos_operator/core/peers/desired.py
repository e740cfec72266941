"""What a pass does for peers: whom to exchange cards with, which cards count, and what to write to the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import sos_compile
from sos_compile.model.site_card import SiteCard

from sos_operator.core.model.kinds import PEER
from sos_operator.core.model.objects import Object
from sos_operator.core.model.options import Settings
from sos_operator.core.model.world import Seen, leaving
from sos_operator.core.peers.contact import Contact, Received
from sos_operator.core.peers.documents import Offered, agents_manifest, card_manifests, installation_id, stored_cards
from sos_operator.core.peers.pairing import Pairing, PairingError, parse_pairing, secret_name


@dataclass(frozen=True, slots=True)
class Pairings:
    """Pairings by SosPeer, and the reason for each SosPeer without a usable Secret."""

    usable: Mapping[str, Pairing] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peering:
    """What a pass knows of all peers."""

    pairings: Pairings = Pairings()
    received: Mapping[str, Received] = field(default_factory=dict)
    """The card that counts, by SosPeer."""

    @property
    def cards(self) -> dict[str, SiteCard]:
        """The cards for the compilation, by SosPeer: those of peers with a pairing."""
        return {name: known.card for name, known in self.received.items() if name in self.pairings.usable}


@dataclass(frozen=True, slots=True)
class Target:
    """A peer to exchange cards with."""

    pairing: Pairing
    installation: bytes
    """Id of this cluster."""
    card: bytes
    """Our card for this peer."""
    endpoints: tuple[tuple[str, int], ...]
    """(address, port) of the SosPeer's spec."""
    stored: Received | None = None
    """The last card, as an earlier process has stored it."""


def present(seen: Seen) -> list[str]:
    """Return the names of the SosPeers that are not being deleted, oldest first."""
    metas = (obj["metadata"] for obj in seen.of(PEER.kind) if not leaving(obj))
    return [meta["name"] for meta in sorted(metas, key=lambda meta: (meta["creationTimestamp"], meta["name"]))]


def read_pairings(seen: Seen, secrets: Mapping[str, Object]) -> Pairings:
    """Return the pairing of each SosPeer; the oldest SosPeer keeps a pairing that two have."""
    usable: dict[str, Pairing] = {}
    errors: dict[str, str] = {}
    holder: dict[bytes, str] = {}
    for name in present(seen):
        secret = secret_name(name)
        try:
            pairing = parse_pairing(secret, secrets.get(secret))
        except PairingError as error:
            errors[name] = str(error)
            continue
        first = holder.setdefault(pairing.id, name)
        if first != name:
            errors[name] = f"Secret {secret} has the pairing of SosPeer {first}: every peer needs an invitation of its own"
            continue
        usable[name] = pairing
    return Pairings(usable, errors)


def known_cards(seen: Seen, contacts: Mapping[str, Contact]) -> dict[str, Received]:
    """Return the card that counts for each peer: the last one received, else the stored one."""
    stored = stored_cards(seen)
    found: dict[str, Received] = {}
    for name in present(seen):
        contact = contacts.get(name)
        card = contact.received if contact and contact.received else stored.get(name)
        if card is not None:
            found[name] = card
    return found


def targets(seen: Seen, compiled: sos_compile.Compiled, peering: Peering) -> dict[str, Target]:
    """Return whom to exchange cards with, and what to offer."""
    own = installation_id(seen)
    specs = {o["metadata"]["name"]: o.get("spec") or {} for o in seen.of(PEER.kind)}
    found = {}
    for name, pairing in peering.pairings.usable.items():
        if own and name in compiled.cards:
            card = compiled.cards[name].encode().encode()
            found[name] = Target(pairing, bytes.fromhex(own), card, _endpoints(specs[name]), peering.received.get(name))
    return found


def _endpoints(spec: Object) -> tuple[tuple[str, int], ...]:
    split = (str(text).rpartition(":") for text in spec.get("endpoints") or ())
    return tuple((address, int(port)) for address, _, port in split)


def peer_manifests(settings: Settings, seen: Seen, compiled: sos_compile.Compiled, peering: Peering, now_ms: int) -> list[Object]:
    """Return the ConfigMaps about peers; none without a SosPeer."""
    offered = []
    for name, pairing in peering.pairings.usable.items():
        if name in compiled.cards:
            known = peering.received.get(name)
            offered.append(Offered(pairing.id, known.installation if known else None, compiled.cards[name].encode()))
    agents = [agents_manifest(settings, seen, offered, now_ms)] if offered and installation_id(seen) else []
    return [*agents, *card_manifests(settings, seen, peering.received)]


def key_files(numbers: Iterable[int], peering: Peering) -> dict[int, dict[str, str]]:
    """Return the key files for peers, by the id of one of this cluster's sites."""
    found: dict[int, dict[str, str]] = {}
    for number in numbers:
        files: dict[str, str] = {}
        for name, pairing in peering.pairings.usable.items():
            card = peering.cards.get(name)
            files |= pairing.files(number, [site.id for site in card.sites if site.id != number] if card else [])
        found[number] = files
    return found
