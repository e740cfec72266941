"""Lists what changed since the last pass, and keeps the rest.

A list is complete by nature, so a pass never prunes by half a cache. Watches only say what is stale: of a complete list, one object or
a few are asked for by name, instead of a thousand that are as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from sos_operator.cluster import Cluster
from sos_operator.core.errors import KindMissing
from sos_operator.core.kinds import CHILD_KINDS, NAMESPACE, NODE, OPTIONAL_KINDS, OWN_KINDS, OWNER_SELECTOR, POD, Kind, kind_of
from sos_operator.core.news import Changed
from sos_operator.core.world import Object, Seen

_KINDS = (*OWN_KINDS, NODE, NAMESPACE, *CHILD_KINDS, POD)
_BY_PLURAL = {kind.plural: kind for kind in _KINDS}


class Observer:
    """The last listing of each kind, listed again when stale."""

    def __init__(self, cluster: Cluster, namespace: str, resync_seconds: float) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._resync_seconds = resync_seconds
        self._lists: dict[Kind, tuple[float, tuple[Object, ...]]] = {}
        self._stale: set[Changed] = set()
        self._missing: set[Kind] = set()
        self._versions: dict[str, dict[str, str]] = {}
        self._optional = frozenset(OPTIONAL_KINDS)
        self._seen: Seen | None = None

    @property
    def missing(self) -> frozenset[Kind]:
        """Optional kinds that the cluster did not serve when they were last listed."""
        return frozenset(self._missing)

    def learn(self, obj: Object) -> None:
        """Take over an object as the API server just gave it back, so that its list need not be asked for again."""
        kind = kind_of(obj)
        if kind not in self._lists:
            return
        at, objects = self._lists[kind]
        place = _place(obj)
        self._lists[kind] = (at, (*(o for o in objects if _place(o) != place), {**obj, "apiVersion": kind.api_version, "kind": kind.kind}))
        self._versions.setdefault(kind.plural, {})[obj["metadata"]["uid"]] = obj["metadata"]["resourceVersion"]
        self._seen = None

    def note(self, obj: Object) -> None:
        """The version of an object of a list was changed in place."""
        self._versions.setdefault(kind_of(obj).plural, {})[obj["metadata"]["uid"]] = obj["metadata"]["resourceVersion"]

    def knows(self, plural: str, uid: str, version: str) -> bool:
        """True if the lists hold exactly this version of an object: hearing of it is no news."""
        return self._versions.get(plural, {}).get(uid) == version

    def spare(self, kinds: Iterable[Kind]) -> None:
        """From now on, that one of these kinds is not served means that there are no objects of it."""
        self._optional |= frozenset(kinds)

    def forget(self, changes: Iterable[Changed]) -> None:
        """Mark objects, or all of a kind, as stale."""
        self._stale |= frozenset(changes)

    async def see(self, now: float) -> Seen:
        """Everything, with what is stale asked for again. The same object as before if there was nothing to ask."""
        listed = {kind for kind in _KINDS if self._is_due(kind, now)}
        for kind in sorted(listed, key=_KINDS.index):
            self._keep(kind, now, await self._list(kind))
        named = [(_BY_PLURAL[change.plural], change) for change in self._stale if change.plural in _BY_PLURAL]
        by_name = [(kind, change) for kind, change in named if kind not in listed]
        await asyncio.gather(*(self._renew(kind, change) for kind, change in by_name))
        self._stale.clear()
        if self._seen is None or listed or by_name:
            self._seen = Seen(
                objects=self._all(OWN_KINDS),
                nodes=self._all([NODE]),
                namespaces=self._all([NAMESPACE]),
                children=self._all(CHILD_KINDS),
                pods=self._all([POD]),
            )
        return self._seen

    def _is_due(self, kind: Kind, now: float) -> bool:
        return Changed(kind.plural) in self._stale or now - self._lists.get(kind, (float("-inf"), ()))[0] >= self._resync_seconds

    def _keep(self, kind: Kind, at: float, objects: tuple[Object, ...]) -> None:
        self._lists[kind] = (at, objects)
        self._versions[kind.plural] = {o["metadata"]["uid"]: o["metadata"]["resourceVersion"] for o in objects}

    async def _renew(self, kind: Kind, change: Changed) -> None:
        """Ask for one object, which may be gone. Its list stays as old as it is."""
        found = await self._list(kind, change)
        at, objects = self._lists[kind]
        others = (o for o in objects if _place(o) != (change.namespace, change.name))
        self._keep(kind, at, (*others, *found))

    def _all(self, kinds: Iterable[Kind]) -> tuple[Object, ...]:
        return tuple(obj for kind in kinds for obj in self._lists[kind][1])

    async def _list(self, kind: Kind, one: Changed | None = None) -> tuple[Object, ...]:
        """All objects of a kind that are ours to see, or `one` of them."""
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
        return tuple(found)


def _place(obj: Object) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
