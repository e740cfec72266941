"""Lists what changed since the last pass, and keeps the rest.

A list is complete by nature, so a pass never prunes by half a cache; watches only say which lists are stale.
"""

from __future__ import annotations

from collections.abc import Iterable

from sos_operator.cluster import Cluster
from sos_operator.core.errors import KindMissing
from sos_operator.core.kinds import CHILD_KINDS, NAMESPACE, NODE, OPTIONAL_KINDS, OWN_KINDS, OWNER_SELECTOR, POD, Kind, kind_of
from sos_operator.core.world import Object, Seen


class Observer:
    """The last listing of each kind, listed again when stale."""

    def __init__(self, cluster: Cluster, namespace: str, resync_seconds: float) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._resync_seconds = resync_seconds
        self._lists: dict[Kind, tuple[float, tuple[Object, ...]]] = {}
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
            found = await self._list(kind)
            self._lists[kind] = (now, found)
            self._versions[kind.plural] = {o["metadata"]["uid"]: o["metadata"]["resourceVersion"] for o in found}
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
            if kind not in self._optional:
                raise
            self._missing.add(kind)
            return ()
        self._missing.discard(kind)
        return tuple(found)


def _place(obj: Object) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
