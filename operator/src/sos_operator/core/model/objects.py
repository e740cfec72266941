"""API objects: JSON-like content, and the frozen view that the edge parses from it.

The edge parses an object once, when it has read the object; decisions read attributes. Parsing is total: a field that is missing or of
another type than the API declares has its default, so that a malformed object cannot fail a pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

COMPONENT_LABEL = "app.kubernetes.io/component"

Object = dict[str, Any]
"""An API object, or a part of one, as JSON: manifests and patches to write, and content from the API server before it is parsed."""


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object, empty for any other value."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> list[Any]:
    """Return a JSON list, empty for any other value."""
    return value if isinstance(value, list) else []


def rows(value: object) -> list[Mapping[str, Any]]:
    """Return the objects in a JSON list."""
    return [item for item in items(value) if isinstance(item, Mapping)]


def text(value: object) -> str:
    """Return a string, "" for any other value."""
    return value if isinstance(value, str) else ""


def texts(value: object) -> dict[str, str]:
    """Return the strings in a JSON object, by name."""
    return {name: content for name, content in mapping(value).items() if isinstance(content, str)}


def strings(value: object) -> tuple[str, ...]:
    """Return the strings in a JSON list."""
    return tuple(item for item in items(value) if isinstance(item, str))


def number(value: object) -> int:
    """Return an integer, 0 for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Name of one object in the cluster."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """Format as Kind namespace/name."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Owner:
    """One of the objects that own an object."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """Metadata of an object, as far as decisions read it."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    created: str = ""
    """RFC 3339."""
    deletion: str = ""
    """Time of the request to delete the object, RFC 3339; empty if there is none."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owners: tuple[Owner, ...] = ()
    managers: frozenset[str] = frozenset()
    """Field managers that have set fields of the object."""


def parse_meta(content: object) -> Meta:
    """Parse the field `metadata` of an object."""
    meta = mapping(content)
    return Meta(
        name=text(meta.get("name")),
        namespace=text(meta.get("namespace")),
        uid=text(meta.get("uid")),
        resource_version=text(meta.get("resourceVersion")),
        generation=number(meta.get("generation")),
        created=text(meta.get("creationTimestamp")),
        deletion=text(meta.get("deletionTimestamp")),
        labels=texts(meta.get("labels")),
        annotations=texts(meta.get("annotations")),
        finalizers=strings(meta.get("finalizers")),
        owners=tuple(Owner(text(o.get("kind")), text(o.get("name")), text(o.get("uid"))) for o in rows(meta.get("ownerReferences"))),
        managers=frozenset(text(entry.get("manager")) for entry in rows(meta.get("managedFields"))),
    )


@dataclass(frozen=True, slots=True)
class Condition:
    """One of an object's conditions, as it was read."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    changed: str = ""
    """Time of the last transition, RFC 3339."""


def parse_conditions(content: object) -> tuple[Condition, ...]:
    """Parse a list of conditions."""
    names = ("type", "status", "reason", "message", "lastTransitionTime")
    return tuple(Condition(*(text(row.get(name)) for name in names)) for row in rows(content))


Identity = tuple[str, str, Meta, Object]


def identity(content: Object) -> Identity:
    """Return the fields that all kinds have in common, in the order of `Resource`."""
    return text(content.get("apiVersion")), text(content.get("kind")), parse_meta(content.get("metadata")), content


@dataclass(frozen=True, slots=True)
class Resource:
    """One object of the cluster. Subclasses have the fields of their kind that decisions read."""

    api_version: str
    kind: str
    meta: Meta
    content: Object = field(repr=False)
    """The whole object as the API server returned it. Used only to compare the object with a manifest or a status, to render it again, as
    input of `sos_compile`, and in calls of the API server; never modified."""

    @classmethod
    def parse(cls, content: Object) -> Self:
        """Parse an object; a missing or malformed field has its default."""
        return cls(*identity(content))

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.meta.name

    @property
    def ref(self) -> Ref:
        """Reference of the object."""
        return Ref(self.kind, self.meta.namespace, self.meta.name)

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, namespace and name."""
        return self.kind, self.meta.namespace, self.meta.name

    @property
    def leaving(self) -> bool:
        """True if the object is being deleted."""
        return bool(self.meta.deletion)

    @property
    def component(self) -> str:
        """The SOS component that the object's label names, "" if none."""
        return self.meta.labels.get(COMPONENT_LABEL, "")


View = TypeVar("View", bound=Resource)
"""The view of one kind."""
