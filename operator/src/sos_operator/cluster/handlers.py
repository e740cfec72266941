"""The only module that uses kopf. It only wakes the loop.

Several kopf operators run in the process, because one kopf operator has one scope: SosServices are watched in every namespace, children in
the release namespace, and pods in every namespace once services select pods, which needs an additional right.
Low-level event handlers leave no finalizer and no annotation on any object.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import kopf
import sos_compile

from sos_operator.cluster.watches import Watch
from sos_operator.cluster.work_queue import WorkQueue
from sos_operator.core.model.kinds import CHILD_KINDS, FIELD_MANAGER, NAMESPACE, NODE, OWN_KINDS, OWNER_SELECTOR, POD, Kind
from sos_operator.core.model.options import Settings
from sos_operator.core.scheduling.change_queue import Changed, of_kinds
from sos_operator.core.workloads.client_pods import Place, parse_workload_pod
from sos_operator.process.bugs import Bugs

# Set explicitly: kopf would otherwise look up the user of the process, and a container's user has no name.
IDENTITY: Any = FIELD_MANAGER

# kopf warns that it does not handle signals. This is intended: kopf runs in threads, and the main thread handles the signals (loop.py).
logging.getLogger("kopf._core.reactor.running").addFilter(lambda record: "OS signals" not in record.getMessage())

LOOK_S = 0.1  # interval at which tasks of watchers that kopf has just started are looked up
CLUSTER, CHILDREN = "cluster", "children"
WATCHED_IN_CLUSTER = (*OWN_KINDS, NODE, NAMESPACE)
WATCHED_CHILDREN = (*CHILD_KINDS, POD)

WORKLOAD_PODS = "workload pods"
WANTED_S = 0.5  # interval at which the watch of pods looks if it has to run

HearPod = Callable[[Place, sos_compile.Pod | None], None]
"""Handler of a pod of any namespace: place, and the pod if services may select it."""
Hear = Callable[[Changed, bool, str, str], None]
"""Handler of a change: changed object, True if deleted, uid, resource version."""
Knows = Callable[[Changed, str, str], bool]
"""True if a version (kind, uid, resource version) is known already, for example because this operator wrote it."""


def watches(hear: Hear, settings: Settings, missing: frozenset[Kind]) -> dict[str, Watch]:
    """Return both kopf operators, each as a watch (watches.py); `missing`: optional kinds that the cluster does not serve."""
    kinds = {CLUSTER: WATCHED_IN_CLUSTER, CHILDREN: tuple(kind for kind in WATCHED_CHILDREN if kind not in missing)}

    async def cluster(stop: asyncio.Event) -> None:
        await _operator(hear, settings, stop, kinds[CLUSTER], clusterwide=True)

    async def children(stop: asyncio.Event) -> None:
        await _operator(hear, settings, stop, kinds[CHILDREN], namespaces=[settings.namespace], select=WATCHED_CHILDREN)

    return {CLUSTER: cluster, CHILDREN: children}


def pod_watch(hear: HearPod, settings: Settings, wanted: Callable[[], bool]) -> Watch:
    """Return the watch of the pods of all namespaces. It starts when `wanted` is true for the first time."""

    async def pods(stop: asyncio.Event) -> None:
        while not wanted():
            if stop.is_set():
                return
            await asyncio.sleep(WANTED_S)
        registry = _registry(settings)

        @kopf.on.event(version=POD.version, plural=POD.plural, id=POD.plural, registry=registry)
        async def note(type: str | None, body: Any, **_: Any) -> None:  # noqa: A002 - kopf's name for it
            place = str(body["metadata"].get("namespace")), str(body["metadata"].get("name"))
            hear(place, None if type == "DELETED" else parse_workload_pod(dict(body)))

        await _run(registry, _settings(()), stop, clusterwide=True)

    return pods


def unseen(watch: str) -> frozenset[Changed]:
    """The changes that an interrupted watch may have missed."""
    if watch == WORKLOAD_PODS:
        return frozenset()
    return of_kinds(kind.plural for kind in (WATCHED_IN_CLUSTER if watch == CLUSTER else WATCHED_CHILDREN))


async def _operator(
    hear: Hear, settings: Settings, stop: asyncio.Event, kinds: tuple[Kind, ...], select: tuple[Kind, ...] = (), **scope: Any
) -> None:
    registry = _registry(settings)
    for kind in kinds:
        _register(registry, hear, kind)
    await _run(registry, _settings(select), stop, **scope)


async def _run(registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, stop: asyncio.Event, **scope: Any) -> None:
    given = {"registry": registry, "settings": settings, "standalone": True, "stop_flag": stop, "identity": IDENTITY}
    await _until_one_ends(await kopf.spawn_tasks(**given, **scope))


async def _until_one_ends(root: Collection[asyncio.Task[Any]]) -> None:
    """Wait for the first task of an operator to end, and raise its exception.

    kopf.run_tasks is not used, because it first stops the other tasks, which takes 5 s, and hangs if a watcher misses its cancellation (in
    kopf 1.45, if a stream ends at that moment). The process would then continue without any watch.
    """
    seen = set(root)
    while not any(task.done() for task in seen):
        seen |= {task for task in asyncio.all_tasks() if task.get_name().startswith("watcher for ")}
        await asyncio.wait(seen, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
    for task in seen:
        if task.done() and not task.cancelled():
            task.result()


def across(loop: asyncio.AbstractEventLoop, hear: Callable[..., None]) -> Callable[..., None]:
    """Wrap `hear` so that it can be called from a thread other than the loop's."""

    def call(*news: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed; no further pass will use the change
            loop.call_soon_threadsafe(hear, *news)

    return call


def hearer(queue: WorkQueue, knows: Knows, bugs: Bugs) -> Hear:
    """Return the handler that queues changes. If the version check fails, the change counts as new, at the cost of one list request."""

    def hear(change: Changed, gone: bool, uid: str, version: str) -> None:
        known = False
        with bugs.fence("watch", f"{change.plural} {change.name}"):
            known = not gone and knows(change, uid, version)
        if not known:
            queue.wake(change)

    return hear


def _registry(settings: Settings) -> kopf.OperatorRegistry:
    registry, kubeconfig = kopf.OperatorRegistry(), settings.kubeconfig is not None

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> Any:
        return kopf.login_with_kubeconfig(**kwargs) if kubeconfig else kopf.login_with_service_account(**kwargs)

    return registry


def _register(registry: kopf.OperatorRegistry, hear: Hear, kind: Kind) -> None:
    # A coroutine, because kopf runs other functions in threads, and threads must not touch the queue and the lists.
    @kopf.on.event(group=kind.group, version=kind.version, plural=kind.plural, id=kind.plural, registry=registry)
    async def wake(type: str | None, meta: Any, **_: Any) -> None:  # noqa: A002 - kopf's name for it
        change = Changed(kind.plural, meta.get("namespace") or "", meta.get("name") or "")
        hear(change, type == "DELETED", str(meta.get("uid")), str(meta.get("resourceVersion")))


def _settings(select: tuple[Kind, ...]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # events are written on transitions of conditions, not per log line
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    # Delays between reconnect attempts; after the last attempt the watch restarts. With kopf's defaults, a watch would reconnect up to 21 s
    # after the API server is back.
    settings.networking.error_backoffs = (0.5, 1, 2, 2, 2)
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 10
    settings.scanning.disabled = True  # no rights on CRDs needed; the kinds are known
    settings.peering.standalone = True
    # By default, kopf ends the process some time after an operator ended unexpectedly, although watches.py has restarted the operator.
    settings.process.ultimate_exiting_timeout = None
    settings.execution.max_workers = 8
    settings.queueing.worker_limit = 16
    # Each worker serves one object, and occupies its slot until it has been idle for this time: with kopf's 5 s, the seventeenth object of
    # a burst would be reported 5 s late, and the hundredth half a minute late.
    settings.queueing.idle_timeout = 0.02
    for kind in select:
        settings.watching.label_selectors[_selector(kind)] = OWNER_SELECTOR
    return settings


def _selector(kind: Kind) -> Any:
    return (kind.group, kind.version, kind.plural) if kind.group else (kind.version, kind.plural)
