"""Derivation of keys and authentication tags (spec/README.md clauses 4, 5 and 8)."""

from __future__ import annotations

import hmac

from sos_controller.core.model import AgentId

TAG_BYTES = 32


def expand(key: bytes, info: bytes) -> bytes:
    """One block of HKDF-Expand (RFC 5869, 2.3)."""
    return hmac.digest(key, info + b"\x01", "sha256")


def tag(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA256 over the message."""
    return hmac.digest(key, message, "sha256")


def verify(key: bytes, message: bytes, given: bytes) -> bool:
    """Whether the tag is right, in constant time."""
    return hmac.compare_digest(hmac.digest(key, message, "sha256"), given)


class KeyRing:
    """Site keys by site id and key id, with the per-agent keys derived from them kept at hand.

    Bounded by the agents known: entries of an agent are forgotten with it, and all with the next set of keys.
    """

    def __init__(self, sites: dict[int, dict[int, bytes]] | None = None) -> None:
        self._sites = sites or {}
        self._derived: dict[tuple[bytes, int, int, bytes], bytes] = {}

    def newest(self, site_id: int) -> int | None:
        """The highest key id of a site, None when it has no key."""
        ids = self._sites.get(site_id)
        return max(ids) if ids else None

    def derive(self, purpose: bytes, site_id: int, key_id: int, agent_id: AgentId) -> bytes | None:
        """Key of an agent for `sos/beacon/`, `sos/order/c2a/` or `sos/order/a2c/`; None when the site key is not held."""
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


MAX_DERIVED = 65_536
"""Derived keys kept; beyond it they are derived again each time (forged agent ids must not fill memory)."""

BEACON = b"sos/beacon/"
TO_AGENT = b"sos/order/c2a/"
FROM_AGENT = b"sos/order/a2c/"
