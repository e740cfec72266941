"""Keys derived from one master key (spec/README.md clauses 4 and 5). Only the operator, or the testbed in its place, holds the master
key."""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable

KEY_BYTES = 32
MAX_KEY_ID = 0xFFFF
MAX_SITE_ID = 0xFFFF


def expand(key: bytes, info: bytes) -> bytes:
    """Return one block of HKDF-Expand (RFC 5869, 2.3): HMAC-SHA256(key, info || 0x01)."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    return hmac.new(key, info + b"\x01", hashlib.sha256).digest()


def site_key(master: bytes, site_id: int) -> bytes:
    """Return the key of one site, from which its beacon and order keys are derived."""
    return expand(master, b"sos/site/" + _u16(site_id))


def pair_key(master: bytes, site_a: int, site_b: int) -> bytes:
    """Return the key that the agents of two sites share; the order of the sites does not matter."""
    return expand(master, b"sos/pair/" + _u16(min(site_a, site_b)) + _u16(max(site_a, site_b)))


def beacon_key(of_site: bytes, agent_id: bytes) -> bytes:
    """Return the key that signs an agent's beacons."""
    return expand(of_site, b"sos/beacon/" + agent_id)


def order_key_to_agent(of_site: bytes, agent_id: bytes) -> bytes:
    """Return the key that signs orders from controllers to an agent."""
    return expand(of_site, b"sos/order/c2a/" + agent_id)


def order_key_from_agent(of_site: bytes, agent_id: bytes) -> bytes:
    """Return the key that signs an agent's answers."""
    return expand(of_site, b"sos/order/a2c/" + agent_id)


def agent_id(site: str, pool: str, node: str) -> bytes:
    """Return the 16 bytes that name an agent (spec/README.md clause 6)."""
    return hashlib.sha256(f"sos/agent/{site}/{pool}/{node}".encode()).digest()[:16]


def files_for_site(master: bytes, key_id: int, site_id: int, peer_ids: Iterable[int]) -> dict[str, str]:
    """Return the key folder of a site's agents: its site key and its pair key with each peer site. File name -> 64 hex digits."""
    _check_key_id(key_id)
    files = {f"site-{key_id}": site_key(master, site_id).hex()}
    for peer in sorted(set(peer_ids) - {site_id}):
        files[f"pair-{peer}-{key_id}"] = pair_key(master, site_id, peer).hex()
    return files


SENDING_FILE = "sending"


def sending_file(key_id: int, site_id: int | None = None) -> dict[str, str]:
    """Return the file of a key folder that names the key to sign with, if it is not the newest (spec/README.md clause 4).

    `site_id`: only for the pair key with this site.
    """
    _check_key_id(key_id)
    return {SENDING_FILE if site_id is None else f"{SENDING_FILE}-{site_id}": str(key_id)}


def files_for_controller(master: bytes, key_id: int, site_ids: Iterable[int]) -> dict[str, str]:
    """Return the key folder of a controller: the site key of each of its sites. File name -> 64 hex digits."""
    _check_key_id(key_id)
    return {f"site-{site}-{key_id}": site_key(master, site).hex() for site in sorted(set(site_ids))}


def _u16(site_id: int) -> bytes:
    if not 1 <= site_id <= MAX_SITE_ID:
        raise ValueError(f"a site id is 1 to {MAX_SITE_ID}, not {site_id}")
    return struct.pack(">H", site_id)


def _check_key_id(key_id: int) -> None:
    if not 1 <= key_id <= MAX_KEY_ID:
        raise ValueError(f"a key id is 1 to {MAX_KEY_ID}, not {key_id}")
