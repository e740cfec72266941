"""Leader election by a Lease: the rules for reading, claiming and renewing it.

Wall clocks of different machines are never compared. A holder measures the lease duration from just before it sent its last renewal, a
candidate from the later moment when it saw that renewal. So a candidate waits until the holder's lease has expired, however far the clocks
of the two machines differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from sos_operator.core.model.cluster_objects import Deployment
from sos_operator.core.model.kinds import LEASE
from sos_operator.core.model.objects import Object, mapping, parse_meta, text
from sos_operator.core.model.options import Settings
from sos_operator.core.secrets.secrets import labels


@dataclass(frozen=True, slots=True)
class Terms:
    """Times derived from the duration of a lease."""

    duration: int
    """Seconds from a renewal until another process may take the Lease."""

    @property
    def pace(self) -> float:
        """Interval in seconds at which a candidate reads the Lease and the holder renews it."""
        return self.duration * 2 / 15

    @property
    def patience(self) -> float:
        """Timeout of one call."""
        return self.duration / 5

    @property
    def give_up(self) -> float:
        """Seconds after its last renewal until a holder that cannot renew logs the loss and exits."""
        return self.duration * 2 / 3

    @property
    def fence(self) -> float:
        """Seconds after its last renewal until the kernel ends the holder. The rest of the duration is left for the holder's requests in
        flight to reach the API server."""
        return self.duration * 4 / 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Content of a Lease."""

    holder: str
    """Empty: no holder."""
    renewed: str
    duration: float
    transitions: int
    version: str
    """Resource version of the Lease: a claim of another version is refused."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A record, and the time since which it is unchanged (monotonic seconds)."""

    record: Record
    since: float


def read(lease: Object, terms: Terms) -> Record:
    """The record of a Lease; missing or invalid fields count as never set."""
    spec = mapping(lease.get("spec"))
    duration = spec.get("leaseDurationSeconds")
    transitions = spec.get("leaseTransitions")
    return Record(
        holder=text(spec.get("holderIdentity")),
        renewed=text(spec.get("renewTime")),
        duration=duration if isinstance(duration, int) and duration > 0 else terms.duration,
        transitions=transitions if isinstance(transitions, int) and transitions >= 0 else 0,
        version=parse_meta(lease.get("metadata")).resource_version,
    )


def look(before: Sight | None, record: Record, now: float) -> Sight:
    """Restart a candidate's wait only after a renewal or a change of the holder; a changed label on the Lease does not restart it."""
    same = before is not None and (before.record.holder, before.record.renewed) == (record.holder, record.renewed)
    return Sight(record, before.since if before is not None and same else now)


def free_in(sight: Sight | None, me: str, now: float) -> float:
    """Seconds until the Lease may be claimed; 0 if it does not exist, has no holder, is held by `me`, or has expired."""
    if sight is None or sight.record.holder in ("", me):
        return 0.0
    return max(0.0, sight.since + sight.record.duration - now)


def claim(record: Record | None, me: str, stamp: str, terms: Terms) -> Object:
    """The patch that takes or renews the Lease with this record. The patch fails if the Lease has changed since it was read. Without a
    record, the content of a new Lease."""
    spec: Object = {"holderIdentity": me, "leaseDurationSeconds": terms.duration, "renewTime": stamp}
    if record is None:
        return {"spec": {**spec, "acquireTime": stamp, "leaseTransitions": 0}}
    if record.holder != me:
        spec |= {"acquireTime": stamp, "leaseTransitions": record.transitions + 1}
    return {"metadata": {"resourceVersion": record.version}, "spec": spec}


def release(record: Record) -> Object:
    """The patch that releases a Lease: the next candidate that reads the Lease takes it."""
    return {"metadata": {"resourceVersion": record.version}, "spec": {"holderIdentity": None}}


def reference(settings: Settings, name: str) -> Object:
    """The Lease without content."""
    metadata = {"name": name, "namespace": settings.namespace}
    return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata}


def new_lease(settings: Settings, name: str, content: Object, deployment: Deployment | None) -> Object:
    """A Lease to create. Owned by the operator's Deployment, if there is one, and deleted with it."""
    lease = reference(settings, name)
    lease["metadata"]["labels"] = labels("operator")
    if deployment is not None:
        owner = {"apiVersion": deployment.api_version, "kind": deployment.kind, "name": deployment.name, "uid": deployment.meta.uid}
        lease["metadata"]["ownerReferences"] = [owner]
    return lease | content
