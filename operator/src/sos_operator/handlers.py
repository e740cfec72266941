"""The only module that knows kopf. It wakes the loop and does nothing else.

Two kopf operators run in the process, because one cannot watch SosServices in every namespace and children in the
release namespace only, and a cluster-wide watch of pods would need rights this operator should not have.
Low-level event handlers leave no finalizer and no annotation on anybody's object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import kopf

from sos_operator.bugs import Bugs
from sos_operator.core.kinds import CHILD_KINDS, FIELD_MANAGER, NAMESPACE, NODE, OWN_KINDS, OWNER_SELECTOR, POD, Kind
from sos_operator.core.news import Changed
from sos_operator.core.options import Settings
from sos_operator.wake import WakeQueue

# Given, because kopf would otherwise ask who runs the process, and a container's user has no name.
IDENTITY: Any = FIELD_MANAGER

WATCHED_CHILDREN = (*CHILD_KINDS, POD)

Hear = Callable[[Changed, bool, str, str], None]
"""Takes news: of what, whether it is gone, uid, resource version."""
Knows = Callable[[Changed, str, str], bool]
"""Whether a version (of what, uid, resource version) is known already, such as one that we wrote ourselves."""


def watch_tasks(hear: Hear, settings: Settings, stop: asyncio.Event, missing: frozenset[Kind]) -> list[asyncio.Task[None]]:
    """Start both operators; `missing` are optional kinds the cluster does not serve. They end when `stop` is set."""
    wide = _registry(hear, (*OWN_KINDS, NODE, NAMESPACE), settings.kubeconfig is not None)
    near = _registry(hear, tuple(kind for kind in WATCHED_CHILDREN if kind not in missing), settings.kubeconfig is not None)
    return [
        asyncio.create_task(
            kopf.operator(
                registry=wide, settings=_settings(select=()), clusterwide=True, standalone=True, stop_flag=stop, identity=IDENTITY
            ),
            name="watch-cluster",
        ),
        asyncio.create_task(
            kopf.operator(
                registry=near,
                settings=_settings(select=WATCHED_CHILDREN),
                namespaces=[settings.namespace],
                standalone=True,
                stop_flag=stop,
                identity=IDENTITY,
            ),
            name="watch-children",
        ),
    ]


def hearer(queue: WakeQueue, knows: Knows, bugs: Bugs) -> Hear:
    """What becomes of news. Where it cannot be told whether it is news, it is: a look too many harms nobody."""

    def hear(change: Changed, gone: bool, uid: str, version: str) -> None:
        known = False
        with bugs.fence("watch", f"{change.plural} {change.name}"):
            known = not gone and knows(change, uid, version)
        if not known:
            queue.wake(change)

    return hear


def _registry(hear: Hear, kinds: tuple[Kind, ...], kubeconfig: bool) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> Any:
        return kopf.login_with_kubeconfig(**kwargs) if kubeconfig else kopf.login_with_service_account(**kwargs)

    for kind in kinds:
        _register(registry, hear, kind)
    return registry


def _register(registry: kopf.OperatorRegistry, hear: Hear, kind: Kind) -> None:
    # A coroutine, as kopf runs plain functions in threads, where neither queue nor lists may be touched.
    @kopf.on.event(group=kind.group, version=kind.version, plural=kind.plural, id=kind.plural, registry=registry)
    async def wake(type: str | None, meta: Any, **_: Any) -> None:  # noqa: A002 - kopf's name for it
        change = Changed(kind.plural, meta.get("namespace") or "", meta.get("name") or "")
        hear(change, type == "DELETED", str(meta.get("uid")), str(meta.get("resourceVersion")))


def _settings(select: tuple[Kind, ...]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # events are written on transitions of conditions, not per log line
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    # A watch that has used them up begins anew; by default it would come back up to 21 s after the API server does.
    settings.networking.error_backoffs = (0.5, 1, 2, 2, 2)
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 10
    settings.scanning.disabled = True  # no rights on CRDs needed; the kinds are known
    settings.peering.standalone = True
    settings.execution.max_workers = 8
    settings.queueing.worker_limit = 16
    # A worker is an object's, and holds its place until it has been idle for so long: with kopf's 5 s, news of the seventeenth object
    # of a burst would come 5 s late, and of the hundredth half a minute.
    settings.queueing.idle_timeout = 0.02
    for kind in select:
        settings.watching.label_selectors[_selector(kind)] = OWNER_SELECTOR
    return settings


def _selector(kind: Kind) -> Any:
    return (kind.group, kind.version, kind.plural) if kind.group else (kind.version, kind.plural)
