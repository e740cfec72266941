"""A problem of an object, worded so that its author can fix it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Reasons of problems. They appear in conditions, so this list is part of the API."""

    INVALID = "Invalid"
    UNKNOWN_KIND = "UnknownKind"
    DUPLICATE = "Duplicate"
    SITE_NOT_FOUND = "SiteNotFound"
    CONTROLLER_NOT_FOUND = "ControllerNotFound"
    NOT_PERMITTED = "NotPermitted"
    DUPLICATE_SITE_ID = "DuplicateSiteID"
    OVERLAPPING_PREFIXES = "OverlappingPrefixes"
    OVERLAPPING_NODES = "OverlappingNodes"
    PREFIX_OUTSIDE_SITE = "PrefixOutsideSite"
    UPLINK_NOT_FOUND = "UplinkNotFound"
    NODE_NOT_FOUND = "NodeNotFound"
    BASE_LOOP = "BaseLoop"
    NO_ADDRESSES = "NoAddresses"
    NO_NODE_ADDRESS = "NoNodeAddress"
    LIMIT_EXCEEDED = "LimitExceeded"
    INTERNAL = "InternalError"
    SHADOWED = "Shadowed"
    WAITING_FOR_PEER = "WaitingForPeer"
    PODS_UNKNOWN = "PodsUnknown"
    DESTINATION_UNKNOWN = "DestinationUnknown"
    NOT_ENCRYPTED = "NotEncrypted"
    DEPRECATED = "Deprecated"
    OVERRIDDEN = "Overridden"


@dataclass(frozen=True, order=True)
class Problem:
    """A problem with one field of one object.

    `path` is the field as `kubectl explain` writes it (`spec.ports[0].endPort`), "" for the object as a whole. `remedy`: the action that
    fixes the problem. `file`: the source file, None for an object from a cluster. A `warning` does not affect the compilation.
    """

    kind: str
    namespace: str
    name: str
    path: str
    reason: Reason
    message: str
    remedy: str = ""
    file: str | None = None
    warning: bool = False

    @property
    def object_name(self) -> str:
        """`namespace/name`, or `name` for a cluster-scoped object."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def line(self) -> str:
        """Return the one-line form that every tool prints: `FILE: Kind ns/name: path: message (remedy)`."""
        parts = [self.file, f"{self.kind} {self.object_name}".strip(), self.path]
        text = self.message + (f" ({self.remedy})" if self.remedy else "")
        return ": ".join([part for part in parts if part] + [text])
