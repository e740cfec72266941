"""Bound the services in the site card for one peer, so that the services of one namespace cannot make the whole card too large."""

from __future__ import annotations

from dataclasses import dataclass

from sos_compile.model.network import PlacedService
from sos_compile.model.site_card import MAX_CARD_BYTES, MAX_DESTINATION_PARTS, MAX_DESTINATIONS

MAX_BYTES = MAX_CARD_BYTES // 2
"""Maximum text of services and destinations; the other half of a card is for sites."""
NAME_BYTES = 3  # quotation marks and comma
DESTINATION_BYTES = 48  # of the keys of a destination
PART_BYTES = 30  # of a prefix, or of a range of ports, at most


@dataclass
class CardRoom:
    """Counts the services in a card. The services that come first have precedence."""

    destinations: int = 0
    parts: int = 0
    text: int = 0

    def add(self, service: PlacedService, *, announced: bool) -> str:
        """Count a service. `announced`: the card has the service's destination. Return what exceeds the bounds of a card (spec/card.md
        clause 11), "" for a service that fits."""
        parts = len(service.target_prefixes) + len(service.ports) if announced else 0
        text = len(service.service.id) + NAME_BYTES
        text += text + DESTINATION_BYTES + parts * PART_BYTES if announced else 0
        if announced and (self.destinations >= MAX_DESTINATIONS or self.parts + parts > MAX_DESTINATION_PARTS):
            return "the addresses of more Services"
        if self.text + text > MAX_BYTES:
            return "more services"
        self.destinations, self.parts, self.text = self.destinations + announced, self.parts + parts, self.text + text
        return ""
