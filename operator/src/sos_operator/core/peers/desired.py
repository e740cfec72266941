"""Desired state of peering: exchange targets, cards in use, ConfigMaps and key files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import sos_compile
from sos_compile import ObjectKey
from sos_compile.model.site_card import MAX_CARD_BYTES, SiteCard

from sos_operator.core.model.cluster_objects import Secret
from sos_operator.core.model.custom_resources import SosPeer
from sos_operator.core.model.kinds import PEER
from sos_operator.core.model.objects import Object
from sos_operator.core.model.options import Settings
from sos_operator.core.model.world import Seen
from sos_operator.core.peers.contact import Contact, Received
from sos_operator.core.peers.documents import (
    FILE_BYTES,
    Offered,
    agents_manifest,
    card_manifests,
    entry_size,
    installation_id,
    issue,
    issued_cards,
    stored_cards,
)
from sos_operator.core.peers.machine import Configuration, configuration
from sos_operator.core.peers.pairing import Pairing, PairingError, parse_pairing, secret_name


@dataclass(frozen=True, slots=True)
class Pairings:
    """Pairings by SosPeer, and the reason for each SosPeer without a usable Secret."""

    usable: Mapping[str, Pairing] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peering:
    """Pairings and cards of all peers, as one pass uses them."""

    pairings: Pairings = Pairings()
    received: Mapping[str, Received] = field(default_factory=dict)
    """The card in use, by SosPeer."""
    key_ids: Mapping[str, int] = field(default_factory=dict)
    """Id of the newest key that each peer has used, by SosPeer."""

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
    """Addresses and ports in spec.endpoints of the SosPeer."""
    stored: Received | None = None
    """The card in use; a new exchange starts as if it had received this card."""
    machine: bool = False
    """True for a machine, which exchanges with this cluster's agents only."""


def present(seen: Seen) -> list[str]:
    """Return the names of the SosPeers that are not being deleted, oldest first."""
    metas = (peer.meta for peer in seen.of(SosPeer) if not peer.leaving)
    return [meta.name for meta in sorted(metas, key=lambda meta: (meta.created, meta.name))]


def read_pairings(seen: Seen, secrets: Mapping[str, Secret]) -> Pairings:
    """Return the pairing of each SosPeer. If several SosPeers have the same pairing, only the oldest of them keeps it."""
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


def known_cards(seen: Seen, pairings: Pairings, contacts: Mapping[str, Contact]) -> dict[str, Received]:
    """Return each peer's card in use: the last card received in the exchange, otherwise the card that an earlier pass stored. A card of
    another pairing is ignored."""
    stored = stored_cards(seen)
    found: dict[str, Received] = {}
    for name, pairing in pairings.usable.items():
        contact = contacts.get(name)
        for card in (contact.received if contact else None, stored.get(name)):
            if card is not None and card.pairing == pairing.id.hex():
                found[name] = card
                break
    return found


def own_cards(seen: Seen, compiled: sos_compile.Compiled, peering: Peering, now_ms: int) -> dict[str, SiteCard]:
    """Return our cards, with their times of issue, for all peer clusters that have a pairing."""
    before = issued_cards(seen)
    usable = peering.pairings.usable
    return {
        name: issue(compiled.cards[name], before.get(pairing.id.hex()), now_ms)
        for name, pairing in usable.items()
        if name in compiled.cards and installation_id(seen)
    }


def machine_configurations(compiled: sos_compile.Compiled, cards: Mapping[str, SiteCard], peering: Peering) -> dict[str, Configuration]:
    """Return the configurations of the machines that have a pairing, by SosPeer.

    Cards and configurations share one file of the agents; configurations that exceed its size are left out, the last names first, so that
    one machine's services cannot stop the updates of all peers.
    """
    room = FILE_BYTES - sum(entry_size(card.encode()) for card in cards.values())
    found = {}
    for name in sorted(compiled.machines.keys() & peering.pairings.usable.keys()):
        each = configuration(compiled.machines[name])
        room -= entry_size(each.text)
        if room >= 0 and len(each.text) <= MAX_CARD_BYTES:
            found[name] = each
    return found


def targets(seen: Seen, cards: Mapping[str, SiteCard], machines: Iterable[str], peering: Peering) -> dict[str, Target]:
    """Return the exchange target of each peer: clusters with our card for them, and machines."""
    peers = {peer.name: peer for peer in seen.of(SosPeer)}
    own = bytes.fromhex(installation_id(seen))
    found = {}
    for name, card in cards.items():
        pairing, known = peering.pairings.usable[name], peering.received.get(name)
        found[name] = Target(pairing, own, card.encode().encode(), peers[name].endpoints, known)
    for name in machines if own else ():
        found[name] = Target(peering.pairings.usable[name], own, b"", (), peering.received.get(name), machine=True)
    return found


def peer_manifests(
    settings: Settings, seen: Seen, cards: Mapping[str, SiteCard], machines: Mapping[str, Configuration], peering: Peering
) -> list[Object]:
    """Return the ConfigMaps about peers; none without a SosPeer."""
    texts = {name: (card.issued, card.encode()) for name, card in cards.items()}
    texts |= {name: (each.generation, each.text) for name, each in machines.items() if installation_id(seen)}
    offered = []
    for name, (sequence, text) in texts.items():
        known = peering.received.get(name)
        offered.append(Offered(peering.pairings.usable[name].id, known.installation if known else None, sequence, text))
    agents = [agents_manifest(settings, seen, offered)] if offered else []
    return [*agents, *card_manifests(settings, seen, peering.received)]


def key_files(compiled: sos_compile.Compiled, peering: Peering) -> dict[int, dict[str, str]]:
    """Return the key files for peers, by the id of one of this cluster's sites.

    Pair keys are written only for those sites of a peer's card that the compiler has accepted, because a peer's card must not determine the
    names of our key files.
    """
    found: dict[int, dict[str, str]] = {}
    for number in {document["site"]["id"] for document in compiled.agents.values()}:
        files: dict[str, str] = {}
        for name, pairing in peering.pairings.usable.items():
            facts, card = compiled.facts.get(ObjectKey(PEER.kind, "", name)), peering.cards.get(name)
            used = [site.id for site in card.sites if site.name in facts.sites] if facts and card else []
            used += [compiled.machines[name]["site"]["id"]] if name in compiled.machines else []
            files |= pairing.files(number, used, peering.key_ids.get(name))
        found[number] = files
    return found
