"""Scalars and models that several documents use, and the fields and the hash of every document. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

from sos_compile.model.scalars import Port
from sos_compile.model.world import Json

DISCOVERY_ADDRESS = "198.18.255.254"  # spec/beacon.md clause 1; from the block for benchmarks (RFC 2544), which is not routed
DISCOVERY_MAC = "02:53:4f:53:00:01"
BEACON_PORT = 9875
ORDER_PORT = 9876
REDIRECT_PORT = 9877  # TCP port at which agents of sites that rewrite accept clients
FIRST_STREAM_PORT = 10000
STREAM_PORTS = 8  # one per path label (spec/node-config.md clause 9)
Device = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$")]
Prefix = Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}$")]
Address = Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$")]
Mac = Annotated[str, Field(pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")]
Dpid = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Hash = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
OfPort = Annotated[int, Field(ge=1, le=65279)]
Mtu = Annotated[int, Field(ge=576, le=9216)]
MAX_GENERATION = 2**53 - 1  # the largest integer that every JSON reader accepts
Generation = Annotated[int, Field(ge=1, le=MAX_GENERATION)]
SomePrefixes = Annotated[list[Prefix], Field(min_length=1, max_length=64)]
OPTIONAL: JsonDict = {"optional": True}  # marks a field that may be missing, unlike every other field; removed from the published schema


class Model(BaseModel):
    """Unknown fields are errors; names are camelCase in JSON."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel, populate_by_name=True)


class Discovery(Model):
    """Destination of beacons and orders, and of clients at sites that rewrite addresses."""

    address: Address = DISCOVERY_ADDRESS
    mac: Mac = DISCOVERY_MAC
    beacon_port: Port = BEACON_PORT
    order_port: Port = ORDER_PORT
    redirect_port: Port = REDIRECT_PORT


class PortRange(Model):
    """TCP ports, both ends included."""

    first: Port
    last: Port


class Transport(Model):
    """Transport settings of streams; 0 = the agent decides."""

    streams: Annotated[int, Field(ge=0, le=256)]
    block_bytes: Annotated[int, Field(ge=0, le=262_144)]
    queue_bytes: Annotated[int, Field(ge=0, le=2**32 - 1)]
    congestion_control: Literal["Auto", "Cubic", "BBR", "Reno"]
    # omitted for TCP: programs that do not know the field refuse documents with it
    protocol: Annotated[Literal["TCP", "QUIC"], Field(exclude_if=lambda value: value == "TCP", json_schema_extra=OPTIONAL)] = "TCP"


UNLESS_ABSENT = Field(exclude_if=lambda value: value is None, json_schema_extra=OPTIONAL)
Ports = Annotated[list[PortRange], Field(min_length=1, max_length=64)]


class Document(Model):
    """Fields of every document."""

    version: Literal["v1alpha1"] = "v1alpha1"
    generation: Generation
    hash: Hash = "sha256:" + "0" * 64


def content_hash(document: Json) -> str:
    """Return the hash of a document without its generation and hash (spec/controller-config.md clause 2)."""
    content = {key: value for key, value in document.items() if key not in {"generation", "hash"}}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def encode(document: Document) -> Json:
    """Return the document as JSON values, with its hash."""
    encoded: Json = document.model_dump(mode="json", by_alias=True)
    return {**encoded, "hash": content_hash(encoded)}
