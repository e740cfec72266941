"""The Secret of a pairing, and the keys derived from it (spec/card.md section 1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sos_compile import keys
from sos_compile.manifests import naming

from sos_operator.core.model.cluster_objects import Secret
from sos_operator.core.model.custom_resources import SosPeer
from sos_operator.core.model.world import PREFIX, Seen
from sos_operator.core.secrets.secrets import Wanted, secret_files

ID_FILE = "pairing"
ID_BYTES = 16


class PairingError(ValueError):
    """The Secret of a pairing is missing or invalid; the message names the file."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Id and secrets of a pairing, by key id."""

    id: bytes
    secrets: Mapping[int, bytes]

    def sending(self, refusals: int = 0) -> tuple[int, bytes]:
        """Return the id and the card key to sign with: the newest key, and after each refusal the next older one, because the peer may not
        have the newest key yet."""
        ids = sorted(self.secrets, reverse=True)
        chosen = ids[refusals % len(ids)]
        return chosen, card_key(self.secrets[chosen])

    def card_keys(self) -> dict[int, bytes]:
        """Card keys by key id."""
        return {key_id: card_key(secret) for key_id, secret in self.secrets.items()}

    def files(self, own: int, sites: Iterable[int], agreed: int | None = None) -> dict[str, str]:
        """Key files of the agents of site `own`: card keys and pair keys with the peer's sites, 64 hex digits each, and the id of the pair
        key to send with.

        `agreed`: the newest key that the peer has used. Agents accept all keys, but send with this one, or with the oldest one while no
        message of the peer is known: a new key comes to the two sides one after the other.
        """
        found = {f"card-{self.id.hex()}-{key_id}": key.hex() for key_id, key in self.card_keys().items()}
        for site in sites:
            found |= {f"pair-{site}-{key_id}": keys.pair_key(secret, own, site).hex() for key_id, secret in self.secrets.items()}
            found |= keys.sending_file(agreed or min(self.secrets), site)
        return found


def card_key(secret: bytes) -> bytes:
    """Return the key that signs Offers and Answers."""
    return keys.expand(secret, b"sos/card")


def secret_name(peer: str) -> str:
    """Return the name of the Secret of a SosPeer."""
    return naming.child(PREFIX, "peer", peer)


def wanted_pairings(seen: Seen) -> tuple[Wanted, ...]:
    """The Secrets that users create for SosPeers."""
    present = (peer for peer in seen.of(SosPeer) if not peer.leaving)
    return tuple(Wanted(secret_name(peer.name), None, peer) for peer in present)


def parse_pairing(name: str, secret: Secret | None) -> Pairing:
    """Return the pairing in a Secret. Raises PairingError."""
    if secret is None:
        raise PairingError(f"there is no Secret {name}: apply the file that `kubectl sos peer invite` wrote, or enroll the machine again")
    files = secret_files(secret)
    identity = _hex(files.get(ID_FILE), ID_BYTES)
    if identity is None:
        raise PairingError(f"{ID_FILE} of Secret {name} is not {2 * ID_BYTES} hex digits")
    found = {int(file[4:]): _hex(text, keys.KEY_BYTES) for file, text in files.items() if _is_key(file)}
    valid = {key_id: key for key_id, key in found.items() if key is not None}
    if not valid:
        raise PairingError(f"Secret {name} holds no key (a file named key-1 of {2 * keys.KEY_BYTES} hex digits)")
    return Pairing(identity, valid)


def _is_key(file: str) -> bool:
    number = file.removeprefix("key-")
    return file != number and number.isascii() and number.isdecimal() and len(number) <= 5 and 1 <= int(number) <= keys.MAX_KEY_ID


def _hex(text: bytes | None, size: int) -> bytes | None:
    try:
        value = bytes.fromhex((text or b"").decode("ascii").strip())
    except ValueError:
        return None
    return value if len(value) == size else None
