"""Read objects that changed since the last pass, and keep all other objects.

A list is always complete, so no pass deletes objects because of a partly filled cache. Watches only mark objects as stale: a pass reads a
few stale objects by name, instead of listing a thousand unchanged objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from sos_operator.cluster.client import Cluster
from sos_operator.core.model.cluster_objects import Node, Pod
from sos_operator.core.model.custom_resources import CustomResource
from sos_operator.core.model.errors import KindMissing
from sos_operator.core.model.kinds import (
    CHILD_KINDS,
    NAMESPACE,
    NODE,
    OPTIONAL_KINDS,
    OWN_KINDS,
    OWNER_SELECTOR,
    POD,
    Kind,
    kind_of,
)
from sos_operator.core.model.objects import Object, Resource, View
from sos_operator.core.model.parse import parse_object
from sos_operator.core.model.world import Seen
from sos_operator.core.scheduling.change_queue import NAMED_MAX, Changed, ChangeQueue

_KINDS = (*OWN_KINDS, NODE, NAMESPACE, *CHILD_KINDS, POD)
_BY_PLURAL = {kind.plural: kind for kind in _KINDS}


Place = tuple[str, str]
"""Namespace and name."""


class Observer:
    """Cache of the last listing of each kind; stale parts are read again. Each object is parsed once, when it has been read."""

    def __init__(self, cluster: Cluster, namespace: str, resync_seconds: float) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._resync_seconds = resync_seconds
        self._listed_at: dict[Kind, float] = {}
        # Sorted by namespace and name: reading a single object must not change the order, because the listing would then look changed.
        self._objects: dict[Kind, dict[Place, Resource]] = {}
        self._stale = ChangeQueue()
        self._missing: set[Kind] = set()
        self._optional = frozenset(OPTIONAL_KINDS)
        self._seen: Seen | None = None

    @property
    def missing(self) -> frozenset[Kind]:
        """Optional kinds that the cluster did not serve when they were last listed."""
        return frozenset(self._missing)

    def learn(self, obj: Object) -> None:
        """Store an object that the API server just returned, so that it need not be read again."""
        kind = kind_of(obj)
        if kind in self._objects:
            learned = parse_object({**obj, "apiVersion": kind.api_version, "kind": kind.kind})
            self._put(kind, _place(learned), (learned,))
            self._seen = None

    def knows(self, change: Changed, uid: str, version: str) -> bool:
        """True if the lists contain exactly this version of an object: its watch event is then no change."""
        kind = _BY_PLURAL.get(change.plural)
        held = self._objects.get(kind, {}).get((change.namespace, change.name)) if kind else None
        return held is not None and (held.meta.uid, held.meta.resource_version) == (uid, version)

    def spare(self, kinds: Iterable[Kind]) -> None:
        """From now on, treat these kinds as empty if the cluster does not serve them."""
        self._optional |= frozenset(kinds)

    def forget(self, changes: Iterable[Changed]) -> None:
        """Mark objects, or all of a kind, as stale."""
        for change in changes:
            self._stale.add(change)

    async def see(self, now: float) -> Seen:
        """Read stale objects, then return the whole listing; the same value as before if nothing was stale."""
        changes = self._stale.take()
        try:
            asked = await self._ask(changes, now)
        except BaseException:
            self.forget(changes)
            raise
        if self._seen is None or asked:
            self._seen = Seen(
                objects=self._all(CustomResource, OWN_KINDS),
                nodes=self._all(Node, [NODE]),
                namespaces=self._all(Resource, [NAMESPACE]),
                children=self._all(Resource, CHILD_KINDS),
                pods=self._all(Pod, [POD]),
            )
        return self._seen

    async def _ask(self, changes: frozenset[Changed], now: float) -> bool:
        """Refresh lists that are stale as a whole, and single stale objects of other lists. False if nothing was stale."""
        whole = {change.plural for change in changes if not change.name}
        listed = [kind for kind in _KINDS if kind.plural in whole or self._is_old(kind, now)]
        for kind in listed:
            found = {_place(obj): obj for obj in await self._list(kind)}
            self._objects[kind], self._listed_at[kind] = dict(sorted(found.items())), now
        named = [(_BY_PLURAL[change.plural], change) for change in sorted(changes) if change.plural in _BY_PLURAL]
        named = [(kind, change) for kind, change in named if kind not in listed]
        slots = asyncio.Semaphore(NAMED_MAX)
        # Wait for all requests even if one fails: an answer after this pass would overwrite a newer object with an old one.
        outcomes = await asyncio.gather(*(self._renew(kind, change, slots) for kind, change in named), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return bool(listed or named)

    def _is_old(self, kind: Kind, now: float) -> bool:
        return now - self._listed_at.get(kind, float("-inf")) >= self._resync_seconds

    async def _renew(self, kind: Kind, change: Changed, slots: asyncio.Semaphore) -> None:
        """Read one object, which may be gone. The age of its list does not change."""
        async with slots:
            self._put(kind, (change.namespace, change.name), await self._list(kind, change))

    def _put(self, kind: Kind, place: Place, found: tuple[Resource, ...]) -> None:
        """Store an object at its place, or remove the object there."""
        objects = self._objects[kind]
        if not found:
            objects.pop(place, None)
        elif place in objects:
            objects[place] = found[0]
        else:
            self._objects[kind] = dict(sorted({**objects, place: found[0]}.items()))

    def _all(self, view: type[View], kinds: Iterable[Kind]) -> tuple[View, ...]:
        return tuple(obj for kind in kinds for obj in self._objects[kind].values() if isinstance(obj, view))

    async def _list(self, kind: Kind, one: Changed | None = None) -> tuple[Resource, ...]:
        """List the objects of a kind that the operator reads, or only `one` of them."""
        mine = kind in CHILD_KINDS or kind is POD
        namespace = self._namespace if mine else (one.namespace or None) if one else None
        try:
            found = await self._cluster.list(kind, namespace, OWNER_SELECTOR if mine else None, one.name if one else None)
        except KindMissing:
            if kind not in self._optional:
                raise
            self._missing.add(kind)
            return ()
        self._missing.discard(kind)
        return tuple(map(parse_object, found))


def _place(obj: Resource) -> Place:
    return obj.meta.namespace, obj.meta.name
