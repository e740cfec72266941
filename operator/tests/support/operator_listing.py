"""Listings of objects for tests of decisions, parsed as the operator's edge parses them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sos_operator.core.model.cluster_objects import Node, Pod
from sos_operator.core.model.objects import Resource
from sos_operator.core.model.world import Seen

Json = dict[str, Any]


def pod(content: Json) -> Pod:
    return Pod.parse({"apiVersion": "v1", "kind": "Pod", **content})


def listing(*, nodes: Iterable[Json] = (), namespaces: Iterable[Json] = (), pods: Iterable[Json] = (), **rest: Any) -> Seen:
    """One listing, from objects as JSON."""
    return Seen(nodes=tuple(map(Node.parse, nodes)), namespaces=tuple(map(Resource.parse, namespaces)), pods=tuple(map(pod, pods)), **rest)
