"""What may go into a bundle that is sent to strangers: nothing that is a key, a token or a Secret's content. Pure.

Secrets are never read. This is the second line: what a log, an environment or an annotation may hold all the same.
"""

from __future__ import annotations

import re
from typing import Any

Json = dict[str, Any]

HIDDEN = "[removed]"

_NOISE = ("kubectl.kubernetes.io/last-applied-configuration",)
_TELLING = re.compile(r"token|secret|passw|credential|api[-_]?key|private|auth", re.IGNORECASE)
_PATTERNS = (
    # site keys, pair keys and tokens are 32 bytes in hex; hashes say that they are one
    re.compile(r"(?<![0-9a-fA-F])(?<!sha256:)(?<!sha256-)[0-9a-fA-F]{64}(?![0-9a-fA-F])"),
    # the same in base64, as in a Secret's data: 32 bytes, or 64 digits with or without a line's end
    re.compile(r"(?<![A-Za-z0-9+/])(?:[A-Za-z0-9+/]{43}=|[A-Za-z0-9+/]{86}==|[A-Za-z0-9+/]{87}=)"),
    re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),  # service accounts' tokens
    re.compile(r"(?<=Bearer )[^\s\"',\\]+", re.IGNORECASE),
    re.compile(r"(?<=Basic )[A-Za-z0-9+/=]{8,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),  # user and password of a URL
)


def text(found: str) -> str:
    """A text without anything that looks like a secret."""
    for pattern in _PATTERNS:
        found = pattern.sub(HIDDEN, found)
    return found


def objects(found: list[Json]) -> list[Json]:
    """Objects of a cluster, without Secrets, noise, and values that only their names give away."""
    return [_clean(obj) for obj in found if obj.get("kind") != "Secret"]


def _clean(obj: Json) -> Json:
    meta = {key: value for key, value in (obj.get("metadata") or {}).items() if key != "managedFields"}
    annotations = {key: value for key, value in (meta.get("annotations") or {}).items() if key not in _NOISE}
    cleaned: Json = _value({**obj, "metadata": meta | ({"annotations": annotations} if annotations else {})})
    return cleaned


def _value(found: Any) -> Any:
    if isinstance(found, list):
        return [_value(item) for item in found]
    if not isinstance(found, dict):
        return text(found) if isinstance(found, str) else found
    if isinstance(found.get("name"), str) and isinstance(found.get("value"), str) and _TELLING.search(found["name"]):
        return {**found, "value": HIDDEN}  # a variable of a container
    return {key: _value(value) for key, value in found.items()}
