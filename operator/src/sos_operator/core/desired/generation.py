"""Generation of issued documents: it must grow whenever a document changes, and survive a restart of the operator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import sos_compile
from sos_compile.manifests import naming
from sos_compile.model.formats.shared import MAX_GENERATION

from sos_operator.core.model.cluster_objects import ConfigMap
from sos_operator.core.model.kinds import CONFIG_MAP
from sos_operator.core.model.objects import Object
from sos_operator.core.model.options import Settings
from sos_operator.core.model.world import PREFIX
from sos_operator.core.plan import digest
from sos_operator.core.secrets.secrets import labels

STATE_NAME = naming.child(PREFIX, "operator", "state")

# Fields of a document in a ConfigMap, with or without a space after the colon. The configurations of machines are strings in another
# document, so that their quotes are escaped. The names of the fields occur nowhere else in a document.
_GENERATION = re.compile(r'"generation\\?": ?([0-9]{1,18})\b')
_HASH = re.compile(r'"hash\\?": ?\\?"(sha256:[0-9a-f]{64})\\?"')

Claim = tuple[int, str]
"""The generation of a document, and its hash."""
# Maximum generation of a credible claim. The remaining half of the range is enough for one generation a second for 100 million years.
CREDIBLE_MAX = MAX_GENERATION // 2

GENERATION_KEY = "generation"
DIGEST_KEY = "digest"


@dataclass(frozen=True, slots=True)
class Issued:
    """The last generation issued, and the digest of its documents."""

    generation: int
    digest: str


def parse_issued(data: Mapping[str, str]) -> Issued:
    """Parse the record of a previous operator; generation 0 if the record is missing or invalid."""
    text = data.get(GENERATION_KEY, "")
    known = text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= CREDIBLE_MAX
    return Issued(int(text) if known else 0, data.get(DIGEST_KEY, "") if known else "")


def encode_issued(issued: Issued) -> dict[str, str]:
    """The inverse of `parse_issued`."""
    return {GENERATION_KEY: str(issued.generation), DIGEST_KEY: issued.digest}


def documents_digest(hashes: Mapping[str, str]) -> str:
    """Digest over the hashes of all documents by name."""
    return digest(dict(hashes))


def next_issued(last: Issued, current: str, claims: Iterable[Claim], ours: Mapping[str, str] | Iterable[str]) -> Issued:
    """The generation for the documents with digest `current`: never below a generation in use, even if the record of the last issue is
    lost.

    `claims`: generation and hash of the documents in force at controllers and nodes, and of the documents in ConfigMaps. `ours`: hashes of
    the documents to send. If a controller or node has another document under our generation or a later one, the result exceeds the
    generation of that document, because controllers and nodes accept only newer documents (spec/controller-config.md clause 1,
    spec/node-config.md clause 1).
    """
    wanted = frozenset(ours)
    generation = last.generation if last.digest == current and last.generation > 0 else last.generation + 1
    return Issued(max([generation, *(g if hash_ in wanted else g + 1 for g, hash_ in credible(claims))]), current)


def credible(claims: Iterable[Claim]) -> Iterator[Claim]:
    """Keep plausible claims only: a huge number written into a ConfigMap must not use up the range."""
    return (claim for claim in claims if 0 < claim[0] <= CREDIBLE_MAX)


def claims_of(config_maps: Iterable[ConfigMap]) -> Iterator[Claim]:
    """Generation and hash that the documents in ConfigMaps claim."""
    for text in (text for config_map in config_maps for text in config_map.data.values()):
        for generation, hash_ in zip(_GENERATION.findall(text), _HASH.findall(text), strict=False):
            yield int(generation), hash_


def issued_before(config_maps: Iterable[ConfigMap], newest: int) -> dict[str, int]:
    """Hash -> generation of the documents in the cluster. Claims above the newest generation are ignored: no operator issued them."""
    return {hash_: generation for generation, hash_ in claims_of(config_maps) if 0 < generation <= newest}


def generations(
    hashes: Mapping[sos_compile.DocumentName, str], newest: int, before: Mapping[str, int], in_force: Mapping[str, tuple[int, str]]
) -> dict[sos_compile.DocumentName, int]:
    """Return the generation of each document: the one under which it was issued, or the newest if the document has changed.

    If a controller has another document in force, under the same or a later generation, the document to send gets the newest generation,
    even if this document was issued earlier: the controller accepts only a higher generation (spec/controller-config.md clause 1).
    """
    found = {}
    for name, hash_ in hashes.items():
        had, has = in_force.get(name[-1], (0, hash_)) if name[0] == "controller" else (0, hash_)
        generation = before.get(hash_, newest)
        found[name] = newest if has != hash_ and had >= generation else generation
    return found


def issued_now(state: ConfigMap | None) -> Issued:
    """The record inside the state ConfigMap, if there is one."""
    return parse_issued(state.data if state else {})


def state_manifest(settings: Settings, data: Mapping[str, str]) -> Object:
    """The ConfigMap that stores the generation issued last."""
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": {"name": STATE_NAME, "namespace": settings.namespace, "labels": labels("operator")},
        "data": dict(data),
    }
