"""Parts of documents: members that the documents of a folder have in common, in files of their own (spec/node-config.md clause 46).

The documents of all nodes of a site share a ConfigMap of 1 MB, and most of a document is the same for each of them: services, peers,
tunnels. A document with parts has only its own members and names its parts by their hashes, so that a document's hash still covers all of
its content, and documents of two generations can stand side by side in a folder.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from sos_compile.model.formats.shared import content_hash
from sos_compile.model.world import Json, Settings

INCLUDE = "include"


def file_name(part: str) -> str:
    """Return the name of the file of a part, by its hash. No node has such a name: a label of a DNS name has at most 63 characters."""
    return f"part-{part.removeprefix('sha256:')}.json"


def extract(document: Json, members: Collection[str]) -> Json:
    """Return these members of a document, as a part."""
    return {name: document[name] for name in sorted(members) if name in document}


def worth_sharing(part: Json, documents: int, settings: Settings) -> bool:
    """Return whether this number of documents takes too much space if each of them has the content of the part. Otherwise each document
    stands alone: people read it more easily, and programs of earlier versions can read it at all."""
    return documents * len(json.dumps(part, separators=(",", ":"), ensure_ascii=False)) > settings.share_from_bytes


def include(document: Json, parts: Mapping[str, Json]) -> Json:
    """Return the document without the members of its parts (content by hash), and with the parts' hashes in their place."""
    given = {name for part in parts.values() for name in part}
    own = {name: value for name, value in document.items() if name not in given} | {INCLUDE: list(parts)}
    return {**own, "hash": content_hash(own)}


def standalone(document: Json, parts: Mapping[str, Json]) -> Json:
    """Return a document with all members of its parts, and with the hash of the result. Raise KeyError if a part is missing."""
    if INCLUDE not in document:
        return document
    whole = {name: value for name, value in document.items() if name != INCLUDE}
    for part in document[INCLUDE]:
        whole |= parts[part]
    return {**whole, "hash": content_hash(whole)}
