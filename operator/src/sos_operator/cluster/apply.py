"""Carry out changes, one call after the other, and remember the result of each apply."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from sos_operator.cluster.client import Cluster
from sos_operator.core.model.errors import KindMissing, NotReady, OperatorError, Refused
from sos_operator.core.model.kinds import OPTIONAL_KINDS, kind_of
from sos_operator.core.model.objects import Object, Ref, Resource
from sos_operator.core.plan import Applied, Changes, applied, ref_of, theirs
from sos_operator.process.bugs import Bugs
from sos_operator.process.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Result:
    """Outcome of one pass's changes."""

    failures: dict[Ref, str] = field(default_factory=dict)
    retry: bool = False
    touched: set[str] = field(default_factory=set)
    """Names of kinds that were written to."""
    applied: list[Object] = field(default_factory=list)
    """Objects as the API server returned them."""
    stale: set[str] = field(default_factory=set)
    """Names of kinds with a deleted object or a failed apply: these kinds must be listed again."""


class Applier:
    """Applies and deletes children."""

    def __init__(self, cluster: Cluster, metrics: Metrics, bugs: Bugs) -> None:
        self._cluster = cluster
        self._bugs = bugs
        self._metrics = metrics
        self.memory: dict[Ref, Applied] = {}

    async def carry_out(self, changes: Changes) -> Result:
        """Make the calls. If an object cannot be applied, the calls for other objects continue."""
        result = Result()
        for manifest in changes.apply:
            await self._guarded("apply", manifest, result, unseen=ref_of(manifest) in changes.unseen)
        for obj in changes.delete:
            await self._guarded("delete", obj.content, result)
        return result

    def remember_only(self, refs: Iterable[Ref]) -> None:
        """Remember only the applies of `refs`: other clients may have removed the other objects."""
        wanted = frozenset(refs)
        self.memory = {ref: left for ref, left in self.memory.items() if ref in wanted}

    async def _guarded(self, verb: str, obj: Object, result: Result, *, unseen: bool = False) -> None:
        ref, outcome = ref_of(obj), "done"
        result.touched.add(ref.kind)
        try:
            if unseen:
                await self._refuse_what_is_theirs(obj)
            if verb == "apply":
                result.applied.append(await self.apply(obj))
            else:
                result.stale.add(ref.kind)
                await self._delete(obj, ref)
            log.info(f"{verb} {ref}", extra={"verb": verb, "object": str(ref)})
        except OperatorError as error:
            outcome = "failed"
            result.stale.add(ref.kind)
            if isinstance(error, KindMissing) and kind_of(obj) in OPTIONAL_KINDS:
                # Nothing to retry until a listing shows that the kind is served. The site's condition reports missing networks.
                outcome = "unserved"
            else:
                result.failures[ref] = str(error)
                # Retry refused objects too, at the pace of the back-off: a quota, a webhook or RBAC may have been corrected.
                result.retry = True
                log.warning(
                    f"cannot {verb} {ref}: {error}", extra={"verb": verb, "object": str(ref), "passing": isinstance(error, NotReady)}
                )
        except Exception as error:
            outcome = "failed"
            result.stale.add(ref.kind)
            result.failures[ref] = f"{type(error).__name__}: {error}"
            result.retry = True
            self._bugs.note("apply", str(ref), error)
        self._metrics.writes.labels(verb=verb, kind=ref.kind, result=outcome).inc()

    async def apply(self, manifest: Object) -> Object:
        """Apply one object and remember the result. Raises OperatorError."""
        answer = await self._cluster.apply(manifest)
        self.memory[ref_of(manifest)] = applied(manifest, answer)
        return answer

    async def _refuse_what_is_theirs(self, manifest: Object) -> None:
        """Raise Refused if the object of this name belongs to another owner; leave that object unchanged."""
        meta, ref = manifest["metadata"], ref_of(manifest)
        found = await self._cluster.list(kind_of(manifest), meta.get("namespace"), name=meta["name"])
        if any(theirs(Resource.parse(each)) for each in found):
            raise Refused(f"{ref} exists and is not managed by SOS: delete it, or give it another name")

    async def _delete(self, obj: Object, ref: Ref) -> None:
        await self._cluster.delete(obj)
        self.memory.pop(ref, None)
