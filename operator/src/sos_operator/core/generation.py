"""The generation of what is sent out: it must grow whenever a document changes, and survive the operator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sos_compile

from sos_operator.core.plan import digest

# Of a document in a ConfigMap, laid out or not. Neither name stands anywhere else in one.
_GENERATION = re.compile(r'"generation": ?([0-9]{1,18})\b')
_HASH = re.compile(r'"hash": ?"(sha256:[0-9a-f]{64})"')

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


def issued_before(config_maps: Iterable[Mapping[str, Any]], newest: int) -> dict[str, int]:
    """Hash -> generation of the documents that lie in the cluster. What claims to be newer than the newest was written by somebody else."""
    found: dict[str, int] = {}
    for text in (text for config_map in config_maps for text in (config_map.get("data") or {}).values()):
        generation, hash_ = _GENERATION.search(text), _HASH.search(text)
        if generation and hash_ and 0 < int(generation[1]) <= newest:
            found[hash_[1]] = int(generation[1])
    return found


def generations(
    hashes: Mapping[sos_compile.DocumentName, str], newest: int, before: Mapping[str, int], in_force: Mapping[str, tuple[int, str]]
) -> dict[sos_compile.DocumentName, int]:
    """The generation of each document: the one it was issued under, or the newest for one that changed.

    A controller that has another document refuses a generation that is not above that document's (spec/controller-config.md clause 1), so
    its own then gets the newest, whenever it was issued.
    """
    found = {}
    for name, hash_ in hashes.items():
        had, has = in_force.get(name[-1], (0, hash_)) if name[0] == "controller" else (0, hash_)
        generation = before.get(hash_, newest)
        found[name] = newest if has != hash_ and had >= generation else generation
    return found


def issued_now(state: Mapping[str, Any] | None) -> Issued:
    """The record inside the state ConfigMap, if there is one."""
    return parse_issued((state or {}).get("data") or {})
