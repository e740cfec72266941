"""Site cards, by which two clusters describe their sites to each other (spec/card.md section 3)."""

from __future__ import annotations

import ipaddress
import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from sos_compile.model.addresses import is_reachable
from sos_compile.model.scalars import AgentId, Label, Name, Port, SiteId

MAX_CARD_BYTES = 262_144  # clause 4
CARD_PORT = 14790  # clause 4
MAX_AGENTS = 1024
MAX_DESTINATIONS = 512
MAX_DESTINATION_PARTS = 2048
MAX_FIRST_PORT = 65_528  # the first of eight ports, one for each path label


class CardError(ValueError):
    """A card that cannot be used; the message names the field."""


# As for SosSite.spec.prefixes (crds/sossites.sos.network.yaml).
_NO_HOSTS = tuple(
    map(
        ipaddress.IPv4Network,
        ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", "198.18.255.254/32"),
    )
)


def _prefix(text: str) -> str:
    network = ipaddress.IPv4Network(text)
    if any(network.overlaps(each) for each in _NO_HOSTS):
        raise ValueError(f"{text} is not a prefix of hosts")
    return str(network)


def _unicast(text: str) -> str:
    # Agents refuse a whole configuration with an address that no host has (agent-image/crates/sos-agent/src/documents/config/check.rs).
    address = ipaddress.IPv4Address(text)
    if not is_reachable(address):
        raise ValueError(f"{text} is not the address of an agent")
    return str(address)


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) < len(values):
        raise ValueError("the same value is given twice")
    return values


Prefix = Annotated[str, Field(max_length=18), AfterValidator(_prefix)]
Address = Annotated[str, Field(max_length=15), AfterValidator(_unicast)]


class _Part(BaseModel):
    """Unknown fields are ignored, so that a later version can add fields; names are camelCase in JSON."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, alias_generator=to_camel, populate_by_name=True)


class CardAgent(_Part):
    """An agent: its address for each path label, the ports of its streams and card exchanges, and the prefixes of its node's pods."""

    id: AgentId
    node: Label
    addresses: Annotated[tuple[Address, ...], Field(min_length=1, max_length=8, strict=False), AfterValidator(_distinct)]
    first_stream_port: Annotated[int, Field(ge=1, le=MAX_FIRST_PORT)]
    card_port: Port
    prefixes: Annotated[tuple[Prefix, ...], Field(max_length=64, strict=False)] = ()


class CardSite(_Part):
    """A site without a bridge."""

    name: Label
    id: SiteId
    prefixes: Annotated[tuple[Prefix, ...], Field(min_length=1, max_length=64, strict=False)]
    agents: Annotated[tuple[CardAgent, ...], Field(max_length=MAX_AGENTS, strict=False)]
    # Blocked: no other agent can open a connection to the site's agents
    inbound: Annotated[Literal["Open", "Blocked"], Field(exclude_if=lambda value: value == "Open")] = "Open"


class CardPorts(_Part):
    """TCP ports, both ends included."""

    first: Port
    last: Port

    @model_validator(mode="after")
    def _ordered(self) -> CardPorts:
        if self.last < self.first:
            raise ValueError(f"{self.last} is less than {self.first}")
        return self


class CardDestination(_Part):
    """Addresses and ports of the Kubernetes Service that a service of the sender names as its destination."""

    service: Name
    prefixes: Annotated[tuple[Prefix, ...], Field(min_length=1, max_length=64, strict=False)]
    ports: Annotated[tuple[CardPorts, ...], Field(min_length=1, max_length=64, strict=False)]


class SiteCard(_Part):
    """The sites of one cluster, its services with the receiver's cluster as `namespace/name`, and the destinations of those services that
    name a Kubernetes Service of the sender's cluster.

    `issued`: time of the last change, in milliseconds since 1970; a receiver ignores a card that is older than its last one.
    """

    version: Literal["v1alpha1"] = "v1alpha1"
    issued: Annotated[int, Field(ge=0, le=2**53 - 1)] = 0
    software: Annotated[str, Field(max_length=63)]
    sites: Annotated[tuple[CardSite, ...], Field(max_length=64, strict=False)]
    services: Annotated[tuple[Name, ...], Field(max_length=4096, strict=False)]
    destinations: Annotated[
        tuple[CardDestination, ...], Field(max_length=MAX_DESTINATIONS, strict=False, exclude_if=lambda found: not found)
    ] = ()

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
        raise first_problem(error) from error
    if sum(len(site.agents) for site in card.sites) > MAX_AGENTS:
        raise CardError(f"sites: more than {MAX_AGENTS} agents")
    if sum(len(each.prefixes) + len(each.ports) for each in card.destinations) > MAX_DESTINATION_PARTS:
        raise CardError(f"destinations: more than {MAX_DESTINATION_PARTS} prefixes and ranges of ports")
    return card


def first_problem(error: ValidationError) -> CardError:
    """Return the first problem of a card, with its field."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    return CardError(f"{path or 'card'}: {first['msg']}")
