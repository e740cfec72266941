"""Scrub a bundle that leaves the organisation: no key, no token, no content of a Secret. Pure.

Secrets are never read. This is the second line of defence, for secrets in logs, environments and annotations.
"""

from __future__ import annotations

import re
from typing import Any

Json = dict[str, Any]

HIDDEN = "[removed]"

_NOISE = ("kubectl.kubernetes.io/last-applied-configuration",)
_WORDS = r"(?:token|secret|passw(?:or)?d|passphrase|credential|api[-_]?key|private[-_]?key|authorization)"
_ABOUT = r"(?![\w-]*(?:Name|Ref|Path|Seconds)\b)"
"""Exceptions: the value of `secretName` is a name, not a secret."""
_TELLING = re.compile(rf"(?:{_WORDS}|auth){_ABOUT}", re.IGNORECASE)
_B64 = r"[A-Za-z0-9+/_-]"
_B64_STARTS = rf"(?:(?<!{_B64})|(?<=\\[nrt])|(?<=/))"
_PATTERNS = (
    # site keys, pair keys and tokens: 32 bytes in hex, without the prefix sha256 that marks a hash
    re.compile(r"(?<![0-9a-fA-F])(?<!sha256:)(?<!sha256-)[0-9a-fA-F]{64,}(?![0-9a-fA-F])"),
    re.compile(r"(?<![0-9a-fA-F:])[0-9a-fA-F]{2}(?:[: ][0-9a-fA-F]{2}){31,}(?![0-9a-fA-F:])"),
    # the same in base64 of either alphabet, as in a Secret's data: 32 bytes, or 64 hex digits with or without a newline
    re.compile(rf"{_B64_STARTS}(?:{_B64}{{43}}=|{_B64}{{86}}==|{_B64}{{87}}=)"),
    # the same without padding; names of objects may be as long, but have no capitals
    re.compile(rf"{_B64_STARTS}(?={_B64}*[A-Z])(?:{_B64}{{86,87}}|{_B64}{{43}})(?!{_B64}|=)"),
    re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),  # service accounts' tokens
    re.compile(r"(?<=Bearer )[^\s\"',\\]+", re.IGNORECASE),
    re.compile(r"(?<=Basic )[A-Za-z0-9+/=]{8,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)", re.DOTALL),
    re.compile(r"(?<=://)[^/\s@\"']+(?=@)"),  # user and password in a URL
)
# Secrets recognised by the name before the value: NAME=VALUE, "NAME": "VALUE" (escaped or not), --NAME VALUE
_NAMED = rf"{_WORDS}{_ABOUT}[\w-]*(?:\\*[\"'])?\s*[=:]\s*|--[\w-]*{_WORDS}{_ABOUT}[\w-]*\s+"
_QUOTED = re.compile(rf"({_NAMED})(\\*[\"'])(?!\2)(.+?)\2", re.IGNORECASE)
_BARE = re.compile(rf"({_NAMED})(?!(?:true|false|null|\d+)\b)[^\s\"'\\,;&{{}}\[\]()]+", re.IGNORECASE)


def text(found: str) -> str:
    """Remove everything that looks like a secret from a text."""
    for pattern in _PATTERNS:
        found = pattern.sub(HIDDEN, found)
    return _BARE.sub(rf"\1{HIDDEN}", _QUOTED.sub(rf"\1\2{HIDDEN}\2", found))


def objects(found: list[Json]) -> list[Json]:
    """Clean objects of a cluster: remove Secrets, noise, and values whose names mark them as secret."""
    return [_clean(obj) for obj in found if obj.get("kind") != "Secret"]


def _clean(obj: Json) -> Json:
    meta = {key: value for key, value in (obj.get("metadata") or {}).items() if key != "managedFields"}
    annotations = {key: value for key, value in (meta.get("annotations") or {}).items() if key not in _NOISE}
    cleaned: Json = _value({**obj, "metadata": {**meta, "annotations": annotations}})
    return cleaned


def _value(found: Any) -> Any:
    if isinstance(found, list):
        return [_value(item) for item in found]
    if not isinstance(found, dict):
        return text(found) if isinstance(found, str) else found
    if isinstance(found.get("name"), str) and isinstance(found.get("value"), str) and _TELLING.search(found["name"]):
        return {**found, "value": HIDDEN}  # a variable of a container
    return {key: HIDDEN if isinstance(value, str) and _TELLING.search(key) else _value(value) for key, value in found.items()}
