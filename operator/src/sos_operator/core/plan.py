"""Compare desired children with those in the cluster, and plan the calls that make them agree.

Every child is applied whole, whether it exists or not, unless the cluster's object equals the result of our last apply of the same
manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sos_operator.core.model.kinds import CHILD_KINDS, FIELD_MANAGER, MANAGED_BY_LABEL, OWN_KINDS, kind_of
from sos_operator.core.model.objects import Object, Ref, Resource

# Fields of metadata that the API server sets, excluded from fingerprints. `uid` is not excluded, because a recreated object is a different
# object.
_SERVER_METADATA = frozenset({"managedFields", "resourceVersion", "generation", "creationTimestamp", "selfLink"})


def ref_of(manifest: Object) -> Ref:
    """The reference of a manifest."""
    meta = manifest["metadata"]
    return Ref(manifest["kind"], meta.get("namespace") or "", meta["name"])


def digest(value: object) -> str:
    """A short stable digest of plain data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def fingerprint(obj: Object) -> str:
    """Digest of the fields that another client could change in an object: all but its status and the server's own metadata."""
    meta = {k: v for k, v in obj["metadata"].items() if k not in _SERVER_METADATA}
    rest = {k: v for k, v in obj.items() if k not in ("status", "metadata", "apiVersion", "kind")}
    return digest([meta, rest])


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of one apply: the manifest, and the version and fingerprint of the object that the server returned."""

    manifest: Object
    version: str
    result: str


Memory = Mapping[Ref, Applied]


def applied(manifest: Object, answer: Object) -> Applied:
    """Return the record of an apply that the server answered."""
    return Applied(manifest, answer["metadata"]["resourceVersion"], fingerprint(answer))


@dataclass(frozen=True, slots=True)
class Changes:
    """The calls to make, in order."""

    apply: tuple[Object, ...]
    delete: tuple[Resource, ...]
    unseen: frozenset[Ref] = frozenset()
    """Manifests to be applied for which no object of ours was observed: the object is new, or an object of that name belongs to another
    owner."""

    @property
    def empty(self) -> bool:
        """True if the cluster is as desired."""
        return not self.apply and not self.delete


def owned(obj: Resource) -> bool:
    """True for objects that carry our label. Objects without it are never deleted."""
    return obj.meta.labels.get(MANAGED_BY_LABEL) == FIELD_MANAGER


def theirs(obj: Resource) -> bool:
    """True for another owner's object with the name of one of our children: it has no label of ours and no field that we set."""
    return not owned(obj) and FIELD_MANAGER not in obj.meta.managers


_ORDER = {kind.kind: place for place, kind in enumerate((*OWN_KINDS, *CHILD_KINDS))}


def _place(ref: Ref) -> tuple[int, Ref]:
    return (_ORDER.get(ref.kind, len(_ORDER)), ref)


def plan(desired: Iterable[Object], observed: Iterable[Resource], memory: Memory, keep: frozenset[Ref] = frozenset()) -> Changes:
    """Changes that turn `observed` into `desired`.

    `keep` names objects that are not desired but must stay for now, for example because their node is still cleaning up. Objects being
    deleted are skipped.
    """
    wanted = {ref_of(m): m for m in desired}
    for manifest in wanted.values():
        kind_of(manifest)  # an unknown kind is a bug, found before the first call
    present = {o.ref: o for o in observed}
    apply = [m for ref, m in wanted.items() if not _as_left(m, present.get(ref), memory.get(ref))]
    delete = [o for ref, o in present.items() if ref not in wanted and ref not in keep and owned(o) and not o.leaving]
    unseen = frozenset(ref_of(m) for m in apply) - present.keys()
    return Changes(_sorted_manifests(apply), tuple(sorted(delete, key=lambda o: _place(o.ref), reverse=True)), unseen)


def _sorted_manifests(manifests: Iterable[Object]) -> tuple[Object, ...]:
    return tuple(sorted(manifests, key=lambda m: _place(ref_of(m))))


def _as_left(manifest: Object, present: Resource | None, applied: Applied | None) -> bool:
    if present is None or applied is None:
        return False
    # Usually the first test of each pair decides: compilations reuse unchanged manifests, and an untouched object keeps its version.
    same = applied.manifest is manifest or applied.manifest == manifest
    return same and (applied.version == present.meta.resource_version or applied.result == fingerprint(present.content))
