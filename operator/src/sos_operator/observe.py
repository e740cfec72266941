"""Lists what changed since the last pass, and keeps the rest.

A list is complete by nature, so a pass never prunes by half a cache; watches only say which lists are stale.
"""

from __future__ import annotations

from collections.abc import Iterable

from sos_operator.cluster import Cluster
from sos_operator.core.errors import KindMissing
from sos_operator.core.kinds import CHILD_KINDS, NAMESPACE, NODE, OPTIONAL_KINDS, OWN_KINDS, OWNER_SELECTOR, POD, Kind
from sos_operator.core.world import Object, Seen


class Observer:
    """The last listing of each kind, listed again when stale."""

    def __init__(self, cluster: Cluster, namespace: str, resync_seconds: float) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._resync_seconds = resync_seconds
        self._lists: dict[Kind, tuple[float, tuple[Object, ...]]] = {}
        self._missing: set[Kind] = set()
        self._seen: Seen | None = None

    @property
    def missing(self) -> frozenset[Kind]:
        """Optional kinds that the cluster did not serve when they were last listed."""
        return frozenset(self._missing)

    def forget(self, plurals: Iterable[str]) -> None:
        """Mark lists stale, by the plural of their kind."""
        names = frozenset(plurals)
        for kind in [kind for kind in self._lists if kind.plural in names]:
            del self._lists[kind]

    async def see(self, now: float) -> Seen:
        """Everything, with stale lists renewed. The same object as before if nothing had to be listed."""
        kinds = (*OWN_KINDS, NODE, NAMESPACE, *CHILD_KINDS, POD)
        stale = [kind for kind in kinds if now - self._lists.get(kind, (float("-inf"), ()))[0] >= self._resync_seconds]
        for kind in stale:
            self._lists[kind] = (now, await self._list(kind))
        if self._seen is None or stale:
            self._seen = Seen(
                objects=self._all(OWN_KINDS),
                nodes=self._all([NODE]),
                namespaces=self._all([NAMESPACE]),
                children=self._all(CHILD_KINDS),
                pods=self._all([POD]),
            )
        return self._seen

    def _all(self, kinds: Iterable[Kind]) -> tuple[Object, ...]:
        return tuple(obj for kind in kinds for obj in self._lists[kind][1])

    async def _list(self, kind: Kind) -> tuple[Object, ...]:
        mine = kind in CHILD_KINDS or kind is POD
        try:
            found = await self._cluster.list(kind, self._namespace if mine else None, OWNER_SELECTOR if mine else None)
        except KindMissing:
            if kind not in OPTIONAL_KINDS:
                raise
            self._missing.add(kind)
            return ()
        self._missing.discard(kind)
        return tuple(found)
