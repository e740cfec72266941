"""The generation of what is sent out: it must grow whenever a document changes, and survive the operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sos_operator.core.plan import digest

GENERATION_KEY = "generation"
DIGEST_KEY = "digest"


@dataclass(frozen=True, slots=True)
class Issued:
    """The last generation issued and the digest of all documents it stood for."""

    generation: int
    digest: str


def parse_issued(data: Mapping[str, str]) -> Issued:
    """What a previous operator wrote down; generation 0 if there is nothing (sensible) to read."""
    text = data.get(GENERATION_KEY, "")
    return Issued(int(text) if text.isascii() and text.isdecimal() else 0, data.get(DIGEST_KEY, ""))


def encode_issued(issued: Issued) -> dict[str, str]:
    """The inverse of `parse_issued`."""
    return {GENERATION_KEY: str(issued.generation), DIGEST_KEY: issued.digest}


def documents_digest(hashes: Mapping[str, str]) -> str:
    """Digest over the hashes of all documents by name."""
    return digest(dict(hashes))


def next_issued(last: Issued, current: str, in_force: Iterable[tuple[int, str]], ours: Mapping[str, str] | Iterable[str]) -> Issued:
    """The generation for the documents with digest `current`.

    `in_force` are (generation, hash) as controllers report them, `ours` the hashes of the documents to send: a controller that
    holds something else under our generation or a later one (the record of ours was lost) is overtaken, since it
    would refuse anything not newer (spec/controller-config.md clause 1).
    """
    wanted = frozenset(ours)
    foreign = [generation for generation, hash_ in in_force if hash_ not in wanted]
    generation = last.generation if last.digest == current and last.generation > 0 else last.generation + 1
    return Issued(max([generation, *(g + 1 for g in foreign if g >= generation)]), current)


def issued_now(state: Mapping[str, Any] | None) -> Issued:
    """The record inside the state ConfigMap, if there is one."""
    return parse_issued((state or {}).get("data") or {})
