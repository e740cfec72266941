"""Compare desired children with those in the cluster, and plan the calls that make them agree.

Every child is applied whole, whether it exists or not, unless the cluster's object equals the result of our last apply of the same
manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sos_operator.core.model.kinds import CHILD_KINDS, FIELD_MANAGER, MANAGED_BY_LABEL, OWN_KINDS, kind_of

Manifest = dict[str, Any]

# Fields of metadata that the API server sets, excluded from fingerprints. `uid` is not excluded, because a recreated object is a different
# object.
_SERVER_METADATA = frozenset({"managedFields", "resourceVersion", "generation", "creationTimestamp", "selfLink"})


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Name of one object in the cluster."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """Format as Kind namespace/name."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def ref_of(obj: Manifest) -> Ref:
    """The reference of a manifest or of an object from the cluster."""
    meta = obj["metadata"]
    return Ref(obj["kind"], meta.get("namespace") or "", meta["name"])


def digest(value: object) -> str:
    """A short stable digest of plain data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def fingerprint(obj: Manifest) -> str:
    """Digest of the fields that another client could change in an object: all but its status and the server's own metadata."""
    meta = {k: v for k, v in obj["metadata"].items() if k not in _SERVER_METADATA}
    rest = {k: v for k, v in obj.items() if k not in ("status", "metadata", "apiVersion", "kind")}
    return digest([meta, rest])


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of one apply: the manifest, and the version and fingerprint of the object that the server returned."""

    manifest: Manifest
    version: str
    result: str


Memory = Mapping[Ref, Applied]


def applied(manifest: Manifest, answer: Manifest) -> Applied:
    """Return the record of an apply that the server answered."""
    return Applied(manifest, answer["metadata"]["resourceVersion"], fingerprint(answer))


@dataclass(frozen=True, slots=True)
class Changes:
    """The calls to make, in order."""

    apply: tuple[Manifest, ...]
    delete: tuple[Manifest, ...]
    unseen: frozenset[Ref] = frozenset()
    """Manifests to be applied for which no object of ours was observed: the object is new, or an object of that name belongs to another
    owner."""

    @property
    def empty(self) -> bool:
        """True if the cluster is as desired."""
        return not self.apply and not self.delete


def owned(obj: Manifest) -> bool:
    """True for objects that carry our label. Objects without it are never deleted."""
    labels = obj["metadata"].get("labels") or {}
    return bool(labels.get(MANAGED_BY_LABEL) == FIELD_MANAGER)


def theirs(obj: Manifest) -> bool:
    """True for another owner's object with the name of one of our children: it has no label of ours and no field that we set."""
    return not owned(obj) and all(entry.get("manager") != FIELD_MANAGER for entry in obj["metadata"].get("managedFields") or [])


_ORDER = {kind.kind: place for place, kind in enumerate((*OWN_KINDS, *CHILD_KINDS))}


def _place(obj: Manifest) -> tuple[int, Ref]:
    return (_ORDER.get(obj["kind"], len(_ORDER)), ref_of(obj))


def plan(desired: Iterable[Manifest], observed: Iterable[Manifest], memory: Memory, keep: frozenset[Ref] = frozenset()) -> Changes:
    """Changes that turn `observed` into `desired`.

    `keep` names objects that are not desired but must stay for now, for example because their node is still cleaning up. Objects being
    deleted are skipped.
    """
    wanted = {ref_of(m): m for m in desired}
    for manifest in wanted.values():
        kind_of(manifest)  # an unknown kind is a bug, found before the first call
    present = {ref_of(o): o for o in observed}
    apply = [m for ref, m in wanted.items() if not _as_left(m, present.get(ref), memory.get(ref))]
    delete = [o for ref, o in present.items() if ref not in wanted and ref not in keep and owned(o) and not _going(o)]
    unseen = frozenset(ref_of(m) for m in apply) - present.keys()
    return Changes(tuple(sorted(apply, key=_place)), tuple(sorted(delete, key=_place, reverse=True)), unseen)


def _going(obj: Manifest) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def _as_left(manifest: Manifest, present: Manifest | None, applied: Applied | None) -> bool:
    if present is None or applied is None:
        return False
    # Usually the first test of each pair decides: compilations reuse unchanged manifests, and an untouched object keeps its version.
    same = applied.manifest is manifest or applied.manifest == manifest
    return same and (applied.version == present["metadata"].get("resourceVersion") or applied.result == fingerprint(present))
