"""Site cards, by which two clusters describe their sites to each other (spec/card.md section 3)."""

from __future__ import annotations

import ipaddress
import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from sos_compile.model.formats import AgentId, Label, Name, Port, SiteId

MAX_CARD_BYTES = 262_144  # clause 4
CARD_PORT = 14790  # clause 4
MAX_AGENTS = 1024


class CardError(ValueError):
    """A card that cannot be used; the message names the field."""


def _prefix(text: str) -> str:
    network = ipaddress.IPv4Network(text)
    if network.is_multicast or network.is_loopback or network.is_link_local or network.network_address.is_unspecified:
        raise ValueError(f"{text} is no prefix of hosts")
    return text


def _unicast(text: str) -> str:
    address = ipaddress.IPv4Address(text)
    if address.is_multicast or address.is_loopback or address.is_unspecified or address.is_link_local or address.is_reserved:
        raise ValueError(f"{text} is not the address of an agent")
    return text


Prefix = Annotated[str, Field(max_length=18), AfterValidator(_prefix)]
Address = Annotated[str, Field(max_length=15), AfterValidator(_unicast)]


class _Part(BaseModel):
    """Unknown fields are ignored, so that a later version can add fields; names are camelCase in JSON."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, alias_generator=to_camel, populate_by_name=True)


class CardAgent(_Part):
    """An agent: its address for each path label, the ports of its streams and of its exchange of cards, and the pods beside it."""

    id: AgentId
    node: Label
    addresses: Annotated[tuple[Address, ...], Field(min_length=1, max_length=8, strict=False)]
    first_stream_port: Port
    card_port: Port
    prefixes: Annotated[tuple[Prefix, ...], Field(max_length=64, strict=False)] = ()


class CardSite(_Part):
    """A site without a bridge."""

    name: Label
    id: SiteId
    prefixes: Annotated[tuple[Prefix, ...], Field(min_length=1, max_length=64, strict=False)]
    agents: Annotated[tuple[CardAgent, ...], Field(max_length=MAX_AGENTS, strict=False)]


class SiteCard(_Part):
    """The sites of one cluster, and its services with the receiver's cluster as `namespace/name`."""

    version: Literal["v1alpha1"] = "v1alpha1"
    software: Annotated[str, Field(max_length=63)]
    sites: Annotated[tuple[CardSite, ...], Field(max_length=64, strict=False)]
    services: Annotated[tuple[Name, ...], Field(max_length=4096, strict=False)]

    def encode(self) -> str:
        """Return the card as text, the same text for the same content."""
        return json.dumps(self.model_dump(by_alias=True), separators=(",", ":"), sort_keys=True)


def parse_card(text: str | bytes) -> SiteCard:
    """Parse a card. Raises CardError if the text is not a card of this version within its bounds."""
    if len(text) > MAX_CARD_BYTES:
        raise CardError(f"the card has {len(text)} bytes, more than {MAX_CARD_BYTES}")
    try:
        card = SiteCard.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise CardError(f"{path or 'card'}: {first['msg']}") from error
    if sum(len(site.agents) for site in card.sites) > MAX_AGENTS:
        raise CardError(f"sites: more than {MAX_AGENTS} agents")
    return card
