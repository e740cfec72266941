"""A machine in the cluster: its SosPeer, its Secret, its site id and its keys (spec/card.md section 5)."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sos_kubectl.base import names
from sos_kubectl.base.source import API_VERSION, SourceError

Json = dict[str, Any]

MAX_SITE_ID = 65_535
MAX_KEY_ID = 65_535
MAX_KEYS = 8  # spec/card.md clause 14


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as declared on the command line."""

    name: str
    prefixes: tuple[str, ...]
    addresses: tuple[str, ...]
    interface: str
    blocked: bool


def free_site_id(objects: Iterable[Json]) -> int:
    """Return the highest id that no site has. The operator allocates the lowest free ids to other sites. Raises SourceError."""
    used = {number for obj in objects for number in _site_ids(obj)}
    found = next((number for number in range(MAX_SITE_ID, 0, -1) if number not in used), None)
    if found is None:
        raise SourceError(f"all {MAX_SITE_ID} site ids are in use: remove a site or a machine")
    return found


def _site_ids(obj: Json) -> list[int]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    announced = [site.get("siteID") for site in status.get("sites") or () if isinstance(site, dict)]
    found = [spec.get("siteID"), status.get("siteID"), (spec.get("machine") or {}).get("siteID"), *announced]
    return [number for number in found if isinstance(number, int)]


def peer(machine: Machine, site_id: int) -> Json:
    """Return the SosPeer of a machine."""
    declared: Json = {"siteID": site_id, "addresses": list(machine.addresses), "interface": machine.interface}
    declared |= {"inbound": "Blocked"} if machine.blocked else {}
    spec = {"prefixes": list(machine.prefixes), "machine": declared}
    return {"apiVersion": API_VERSION, "kind": "SosPeer", "metadata": {"name": machine.name}, "spec": spec}


def secret(name: str, namespace: str, pairing: bytes, secrets: Mapping[int, bytes]) -> Json:
    """Return the Secret of a machine's pairing."""
    files = {"pairing": pairing.hex()} | {f"key-{key_id}": key.hex() for key_id, key in secrets.items()}
    labels = {"app.kubernetes.io/part-of": "sos"}
    meta = {"name": names.peer_secret(name), "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "stringData": files}


def read_secret(name: str, found: Sequence[Json]) -> tuple[bytes, dict[int, bytes]]:
    """Return pairing and keys of a machine's Secret. Raises SourceError if they cannot be read."""
    if not found:
        raise SourceError(f"there is no Secret {names.peer_secret(name)}: remove the SosPeer {name}, and enroll the machine again")
    try:
        files = {file: bytes.fromhex(base64.b64decode(text).decode().strip()) for file, text in (found[0].get("data") or {}).items()}
        return files["pairing"], {int(file[4:]): key for file, key in files.items() if file.startswith("key-")}
    except (KeyError, ValueError):
        raise SourceError(f"Secret {names.peer_secret(name)} holds no pairing: remove the SosPeer {name}, and enroll again") from None


def renewed(secrets: Mapping[int, bytes], fresh: bytes, used: int | None) -> dict[int, bytes]:
    """Return the keys with a new one, which gets the highest id.

    `used`: id of the newest key that the machine has used. Older keys are removed; all keys stay while it is unknown, because the machine
    may have any of them. Raises SourceError if there are too many keys.
    """
    newest = max(secrets, default=0) + 1
    if newest > MAX_KEY_ID:
        raise SourceError("the key ids are used up: remove the SosPeer, and enroll the machine again")
    kept = {key_id: key for key_id, key in secrets.items() if used is None or key_id >= used}
    if len(kept) >= MAX_KEYS:
        raise SourceError(f"the machine has used none of the last {MAX_KEYS - 1} keys: copy the archive to it (--again writes it)")
    return kept | {newest: fresh}
