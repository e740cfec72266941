"""Listings of objects for tests of decisions, parsed as the operator's edge parses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sos_operator.core.model.cluster_objects import ConfigMap, Node, Pod, Secret
from sos_operator.core.model.custom_resources import CustomResource
from sos_operator.core.model.objects import Resource
from sos_operator.core.model.parse import parse_object
from sos_operator.core.model.world import Seen

Json = dict[str, Any]


def pod(content: Json) -> Pod:
    return Pod.parse({"apiVersion": "v1", "kind": "Pod", **content})


def secret(content: Json) -> Secret:
    return Secret.parse({"apiVersion": "v1", "kind": "Secret", **content})


def config_map(content: Json) -> ConfigMap:
    return ConfigMap.parse({"apiVersion": "v1", "kind": "ConfigMap", **content})


def parsed(*contents: Json) -> tuple[Resource, ...]:
    return tuple(map(parse_object, contents))


def custom(*contents: Json) -> tuple[CustomResource, ...]:
    """Objects of our kinds."""
    found = tuple(obj for obj in parsed(*contents) if isinstance(obj, CustomResource))
    assert len(found) == len(contents)
    return found


def listing(
    *,
    objects: Iterable[Json] = (),
    nodes: Iterable[Json] = (),
    namespaces: Iterable[Json] = (),
    children: Iterable[Json] = (),
    pods: Iterable[Json] = (),
    **rest: Mapping[str, Any] | frozenset[Any],
) -> Seen:
    """One listing, from objects as JSON."""
    return Seen(
        objects=tuple(obj for obj in parsed(*objects) if isinstance(obj, CustomResource)),
        nodes=tuple(map(Node.parse, nodes)),
        namespaces=tuple(map(Resource.parse, namespaces)),
        children=parsed(*children),
        pods=tuple(map(pod, pods)),
        **rest,  # type: ignore[arg-type]
    )
