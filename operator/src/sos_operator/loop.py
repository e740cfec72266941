"""Wait for a change or the next due time, and make passes until stopped."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import sos_compile

from sos_operator.cluster.apply import Applier
from sos_operator.cluster.client import Cluster, connect
from sos_operator.cluster.handlers import WORKLOAD_PODS, across, hearer, pod_watch, unseen, watches
from sos_operator.cluster.kubernetes_services import ServiceObserver
from sos_operator.cluster.lease import Candidate, held
from sos_operator.cluster.observe import Observer
from sos_operator.cluster.watches import watching
from sos_operator.cluster.work_queue import WorkQueue
from sos_operator.cluster.workload_pods import PodObserver
from sos_operator.core.model.errors import NotReady, OperatorError
from sos_operator.core.model.kinds import OPTIONAL_KINDS, OWN_KINDS, Kind
from sos_operator.core.model.objects import Object
from sos_operator.core.model.options import Settings
from sos_operator.core.scheduling.backoff import Outcome, next_delay, rest
from sos_operator.core.scheduling.change_queue import Changed
from sos_operator.core.workloads.client_pods import Place
from sos_operator.process.bugs import Bugs
from sos_operator.process.defaults import DefaultsError, load_defaults
from sos_operator.process.health import Health, serve
from sos_operator.process.metrics import Metrics
from sos_operator.reconcile import Parts, Reconciler
from sos_operator.remote import pod_statuses
from sos_operator.remote.controller_api import ControllerApi, open_session
from sos_operator.remote.controllers import Controllers
from sos_operator.remote.peers import Peers

log = logging.getLogger(__name__)

KINDS_TIMEOUT_S = 60.0  # an API server serves a new CRD within a second or two
STOP_S = 10.0  # time limit of the last pass, which takes a second or two
LATE_ANSWER = Changed("late answer")  # names no kind, so no object is read again
PODS_CHANGED = Changed("workload pods")  # neither does this: the watch's event has the pod


@asynccontextmanager
async def assembled(settings: Settings, metrics: Metrics) -> AsyncIterator[Parts]:
    """Connect to the cluster, and build the parts of a reconciler."""
    async with connect(settings.kubeconfig) as cluster, open_session() as session:
        parts = Parts(
            cluster=cluster,
            observer=Observer(cluster, settings.namespace, settings.resync_seconds),
            pods=PodObserver(cluster, permitted=settings.reads_pods),
            services=ServiceObserver(cluster, permitted=settings.reads_services),
            applier=Applier(cluster, metrics, Bugs(metrics)),
            controllers=Controllers(ControllerApi(session), settings, metrics),
            nodes=pod_statuses.nodes(session, Bugs(metrics)),
            agents=pod_statuses.agents(session, Bugs(metrics)),
            peers=Peers(session, Bugs(metrics)),
            metrics=metrics,
            bugs=Bugs(metrics),
            settings=settings,
            defaults=_defaults(settings),
        )
        try:
            yield parts
        finally:
            await parts.controllers.close()
            await parts.nodes.close()
            await parts.agents.close()
            await parts.peers.close()


def _defaults(settings: Settings) -> tuple[Object, ...] | None:
    try:
        return load_defaults(settings.defaults_dir)
    except DefaultsError as error:
        # An error in the chart's values must not stop the reconciliation of all other objects.
        log.error(f"the default objects stay as they are: {error} (values defaults.*)")
        return None


async def run(settings: Settings) -> None:
    """Run the operator until SIGTERM or SIGINT. Raises OperatorError if the cluster does not serve the SOS kinds."""
    metrics, health, stop = Metrics(), Health(), asyncio.Event()
    async with serve(health, metrics, settings.http_host, settings.http_port) as port:
        log.info("operator started", extra={"namespace": settings.namespace, "http_port": port})
        _stop_on_signals(stop)
        async with _turn(settings, health, stop) as mine:
            if mine:
                health.take_over(time.monotonic())
                metrics.leader.set(1)
                await _work(settings, metrics, health, stop)


@asynccontextmanager
async def _turn(settings: Settings, health: Health, stop: asyncio.Event) -> AsyncIterator[bool]:
    """Make this process the active operator inside the block; yield False if the process was stopped before."""
    if not settings.lease:
        yield True
        return

    @asynccontextmanager
    async def opened() -> AsyncIterator[Candidate]:
        async with connect(settings.kubeconfig) as cluster:
            yield Candidate(cluster, settings, lambda others: health.wait(time.monotonic(), others))

    async with held(opened, stop) as mine:
        yield mine


def _stop_on_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _work(settings: Settings, metrics: Metrics, health: Health, stop: asyncio.Event) -> None:
    """Watch and reconcile until stopped; no task is running when it returns."""
    async with assembled(settings, metrics) as parts:
        missing = await _await_kinds(parts.cluster, stop)
        if stop.is_set():
            return
        queue = WorkQueue()
        loop = asyncio.get_running_loop()
        hear = across(loop, hearer(queue, parts.observer.knows, parts.bugs))

        def hear_pod(place: Place, pod: sos_compile.Pod | None) -> None:
            if parts.pods.note(place, pod):
                queue.wake(PODS_CHANGED)

        def ended(watch: str) -> None:
            metrics.watch_ends.labels(watch=watch).inc()
            if watch == WORKLOAD_PODS:
                parts.pods.forget()
                queue.wake(PODS_CHANGED)
            for changed in unseen(watch):
                queue.wake(changed)

        watched = watches(hear, settings, missing)
        if settings.reads_pods:
            watched[WORKLOAD_PODS] = pod_watch(across(loop, hear_pod), settings, parts.pods.is_wanted)
        async with watching(watched, ended):
            work = _loop(Reconciler(parts, partial(queue.wake, LATE_ANSWER)), queue, health, metrics, stop)
            await _until_stopped(asyncio.create_task(work, name="reconcile"), stop)


async def _until_stopped(task: asyncio.Task[None], stop: asyncio.Event) -> None:
    """Wait for the task; after the stop signal, wait at most STOP_S, so that a running pass can end."""
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    await asyncio.wait([task], timeout=STOP_S)
    if task.done():
        task.result()
    task.cancel()


async def _await_kinds(cluster: Cluster, stop: asyncio.Event) -> frozenset[Kind]:
    """Wait until the cluster serves the kinds of the CRDs; return the optional kinds that it does not serve."""
    deadline = time.monotonic() + KINDS_TIMEOUT_S
    while not stop.is_set():
        try:
            missing = [kind.kind for kind in OWN_KINDS if not await cluster.serves(kind)]
            if not missing:
                return frozenset([kind for kind in OPTIONAL_KINDS if not await cluster.serves(kind)])
        except NotReady as error:
            missing = [str(error)]
        if time.monotonic() > deadline:
            raise NotReady(f"the cluster does not serve {', '.join(missing)}: install the CRDs")
        await asyncio.sleep(1)
    return frozenset()


async def _loop(reconciler: Reconciler, queue: WorkQueue, health: Health, metrics: Metrics, stop: asyncio.Event) -> None:
    failures = in_a_row = 0
    bugs = Bugs(metrics)
    woken: frozenset[Changed] = frozenset()
    while not stop.is_set():
        started = time.monotonic()
        outcome = await _pass(reconciler, woken, bugs)
        failures = failures + 1 if outcome.failed else 0
        health.last_end = time.monotonic()
        health.passed = True
        metrics.duration.observe(health.last_end - started)
        metrics.reconciles.labels(result="failed" if outcome.failed else "ok").inc()
        if not outcome.failed:
            metrics.last_success.set(time.time())
        in_a_row = in_a_row + 1 if queue.waits else 0
        await asyncio.sleep(rest(in_a_row))
        woken = await _wait(queue, stop, next_delay(outcome, failures, random.random()))  # noqa: S311 - jitter
        if woken:
            metrics.queue_wakes.inc()


async def _pass(reconciler: Reconciler, woken: frozenset[Changed], bugs: Bugs | None = None) -> Outcome:
    """Run one pass. Unexpected errors are retried like expected ones, at growing intervals."""
    try:
        return await reconciler.reconcile(woken)
    except OperatorError as error:
        log.warning(f"pass failed: {error}")
    except Exception as error:
        (bugs or Bugs(Metrics())).note("pass", "the loop", error)
    return Outcome(failed=True, pending=True)


async def _wait(queue: WorkQueue, stop: asyncio.Event, seconds: float) -> frozenset[Changed]:
    """Return the changes that woke the loop; empty at the due time or when stopped."""
    take = asyncio.create_task(queue.take(seconds))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([take, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not take.done():
        take.cancel()
        return frozenset()
    return take.result()
