"""Derivation of keys and authentication tags (spec/README.md clauses 4, 5 and 8)."""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache
from typing import Any, Final

from sos_controller.core.types import AgentId

TAG_BYTES: Final = 32
MAX_DERIVED: Final = 65_536
"""Maximum number of derived keys kept; further keys are derived each time (forged agent ids must not fill memory)."""

_BLOCK_BYTES: Final = 64
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


def expand(key: bytes, info: bytes) -> bytes:
    """Return one block of HKDF-Expand (RFC 5869, 2.3)."""
    return hmac.digest(key, info + b"\x01", "sha256")


def tag(key: bytes, message: bytes) -> bytes:
    """Return HMAC-SHA256 over the message (RFC 2104), from cached hashes of the padded key, in less than half the time of a whole HMAC."""
    kept = _begun(key)
    inner, outer = kept[0].copy(), kept[1].copy()
    inner.update(message)
    outer.update(inner.digest())
    return outer.digest()  # type: ignore[no-any-return]


def verify(key: bytes, message: bytes, given: bytes) -> bool:
    """Check a tag in constant time."""
    return hmac.compare_digest(tag(key, message), given)


@lru_cache(maxsize=8_192)
def _begun(key: bytes) -> tuple[Any, Any]:
    """Return both hashes, updated with the padded key. Keys have 32 bytes; a key longer than a block would be hashed first (RFC 2104,
    2)."""
    padded = (hashlib.sha256(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    return hashlib.sha256(padded.translate(_INNER)), hashlib.sha256(padded.translate(_OUTER))


class KeyRing:
    """Site keys by site id and key id, with a cache of the per-agent keys derived from them.

    The cache is bounded by MAX_DERIVED, and replaced with the next set of keys.
    """

    def __init__(self, sites: dict[int, dict[int, bytes]] | None = None, sending: int | None = None) -> None:
        self._sites = sites or {}
        self._sending = sending
        self._derived: dict[tuple[bytes, int, int, bytes], bytes] = {}

    def sending(self, site_id: int) -> int | None:
        """Return the id of a site's signing key: the highest id up to the id in the file `sending`, or else the highest of all; None if
        there is no key."""
        ids = self._sites.get(site_id, {})
        agreed = [key_id for key_id in ids if self._sending is None or key_id <= self._sending]
        return max(agreed or ids, default=None)

    def derive(self, purpose: bytes, site_id: int, key_id: int, agent_id: AgentId) -> bytes | None:
        """Return an agent's key for `sos/beacon/`, `sos/order/c2a/` or `sos/order/a2c/`; None if the site key is missing."""
        index = (purpose, site_id, key_id, agent_id)
        found = self._derived.get(index)
        if found is None:
            site_key = self._sites.get(site_id, {}).get(key_id)
            if site_key is None:
                return None
            found = expand(site_key, purpose + agent_id)
            if len(self._derived) < MAX_DERIVED:
                self._derived[index] = found
        return found


BEACON: Final = b"sos/beacon/"
TO_AGENT: Final = b"sos/order/c2a/"
FROM_AGENT: Final = b"sos/order/a2c/"
