"""Remove everything that the operator created, in an order that leaves nothing behind. `helm uninstall` runs this module as its first step.

The operator stops, agents drain and exit, and nodes take their bridges down. Then pods, Secrets and default objects are deleted. Users'
objects and the CRDs stay; the objects' status reports that no operator serves them. The module also runs without an operator and a
release, in the Job of the chart's record (charts/sos/templates/removal.yaml), which it deletes last.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sos_operator.cluster.client import Cluster
from sos_operator.core.desired import departure, finalizer, generation, pod_refresh
from sos_operator.core.desired.generation import issued_now
from sos_operator.core.desired.output import build_output
from sos_operator.core.model.cluster_objects import ConfigMap, DaemonSet, Pod
from sos_operator.core.model.conditions import READY, Verdict
from sos_operator.core.model.custom_resources import SosSite
from sos_operator.core.model.errors import KindMissing, NotReady, OperatorError
from sos_operator.core.model.kinds import CHILD_KINDS, CONFIG_MAP, CRD, DEPLOYMENT, GROUP, JOB, NODE, OWN_KINDS, POD, Kind
from sos_operator.core.model.objects import Resource
from sos_operator.core.model.options import Settings
from sos_operator.core.model.world import Seen
from sos_operator.core.plan import Changes, owned
from sos_operator.core.scheduling.change_queue import of_kinds
from sos_operator.core.status.situation import Report
from sos_operator.core.status.status_writer import plan_write
from sos_operator.loop import assembled
from sos_operator.process.metrics import Metrics
from sos_operator.reconcile import Parts

log = logging.getLogger(__name__)

POLL_S = 1.0
AGENT_SHARE = 0.5  # fraction of the timeout within which agents must end their sessions; with all defaults, twice their drainSeconds
NODE_SHARE = 0.8  # fraction of the timeout within which nodes must be clean; the remainder is for the later steps


@dataclass(frozen=True, slots=True)
class Clock:
    """Time budget of an uninstall."""

    start: float
    timeout: float

    def left(self, share: float = 1.0) -> float:
        """Seconds left until `share` of the timeout has passed."""
        return self.start + self.timeout * share - time.monotonic()


async def uninstall(settings: Settings, timeout: float, *, purge: bool = False) -> int:
    """Remove everything that the operator created; with `purge`, also users' objects and the CRDs.

    Return 0 if none of these objects is left, else 1, with the remaining objects in the log.
    """
    clock = Clock(time.monotonic(), timeout)
    async with assembled(settings, Metrics()) as parts:
        parts.observer.spare(OWN_KINDS)  # users' objects and CRDs may be gone already: helm's hook may run after a purge
        await _retried(clock, lambda: _stop_operator(parts, clock))
        seen = await _see(parts)
        await _retried(clock, lambda: _clear_nodes(parts, seen, clock))
        left = await _remove(parts, clock)
        await _retried(clock, lambda: _sign_off(parts))
        await _remove_tests(parts)
        left += await _purge(parts.cluster, clock) if purge and not left else []
        if not left:
            await _retried(clock, lambda: _remove_record(parts))
    for obj in left:
        log.error(f"left behind: {obj.kind} {obj.name}")
    log.info("uninstalled" if not left else "not everything could be removed", extra={"seconds": round(time.monotonic() - clock.start, 1)})
    return 1 if left else 0


async def _retried(clock: Clock, step: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            return await step()
        except NotReady as error:
            if clock.left() < POLL_S:
                raise
            log.warning(f"trying again: {error}")
            await asyncio.sleep(POLL_S)


async def _see(parts: Parts) -> Seen:
    parts.observer.forget(of_kinds(kind.plural for kind in (*OWN_KINDS, *CHILD_KINDS, POD, NODE)))
    return await parts.observer.see(time.monotonic())


async def _stop_operator(parts: Parts, clock: Clock) -> None:
    """Scale the operator down, because it would restore the objects removed here."""
    settings = parts.settings
    deployment = await parts.cluster.get(DEPLOYMENT, settings.deployment, settings.namespace)
    if deployment is None:
        return
    await parts.cluster.merge(deployment, {"spec": {"replicas": 0}})
    while clock.left(0.25) > 0:
        deployment = await parts.cluster.get(DEPLOYMENT, settings.deployment, settings.namespace)
        if deployment is None or not (deployment.get("status") or {}).get("replicas"):
            log.info("the operator has stopped")
            return
        await asyncio.sleep(POLL_S)
    log.warning("the operator is still running; continuing")


async def _remove_tests(parts: Parts) -> None:
    """Delete objects of `helm test`: they are hooks, which helm does not track. A failure is only logged."""
    settings = parts.settings
    try:
        place = {"name": settings.test, "namespace": settings.namespace}
        await parts.cluster.delete({"apiVersion": JOB.api_version, "kind": JOB.kind, "metadata": place})
        selector = f"app.kubernetes.io/instance={settings.release},app.kubernetes.io/component=test-server"
        for server in await parts.cluster.list(DEPLOYMENT, settings.namespace, selector):
            await parts.cluster.delete(server)
    except OperatorError as error:
        log.warning(f"left behind: objects of helm test: {error}")


async def _remove_record(parts: Parts) -> None:
    """Delete the record by which a removal without the release would run (charts/sos/templates/removal.yaml), which helm keeps."""
    settings = parts.settings
    selector = f"app.kubernetes.io/instance={settings.release},app.kubernetes.io/component=removal"
    for record in await parts.cluster.list(CONFIG_MAP, settings.namespace, selector):
        await parts.cluster.delete(record)


def _all_leaving(seen: Seen) -> Seen:
    """The same listing, with every site marked as being deleted."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    marked = {site.meta.uid: replace(site, meta=replace(site.meta, deletion=site.meta.deletion or stamp)) for site in seen.of(SosSite)}
    going = tuple(marked.get(obj.meta.uid, obj) for obj in seen.objects)
    return replace(seen, objects=going)


async def _clear_nodes(parts: Parts, seen: Seen, clock: Clock) -> None:
    """Remove agents first, so that their sessions end; then make every node take its bridge down."""
    last = issued_now(seen.child(ConfigMap, generation.STATE_NAME))
    output = build_output(_all_leaving(seen), parts.settings, last, {})
    agents = [o for o in seen.children if isinstance(o, DaemonSet) and owned(o) and o.component == "agent"]
    await parts.applier.carry_out(Changes((), tuple(agents)))
    # The bridges stay until the agents' sessions have drained.
    await _until(parts, clock, AGENT_SHARE, "agents", lambda now: not _pods_of(now, {o.name for o in agents}))
    result = await parts.applier.carry_out(Changes(tuple(m for d in output.departing for m in d.manifests), ()))
    if result.failures:
        raise NotReady("; ".join(result.failures.values()))

    async def cleaned() -> bool:
        now = await _see(parts)
        for pod, patch in pod_refresh.refresh_patches(now, pod_refresh.config_hashes(output.compiled, output.departing, ()), frozenset()):
            try:
                await parts.cluster.merge(pod.content, patch)
            except OperatorError as error:
                log.warning(f"pod {pod.name} not annotated: {error}")
        answers = await parts.nodes.visit(now.pods, departure.urgent_pods(now, output.departing), lambda: None)
        return all(departure.cleaned(departing, now, answers) for departing in output.departing)

    while clock.left(NODE_SHARE) > 0:
        if await cleaned():
            log.info("every node has taken its bridge down")
            return
        await asyncio.sleep(POLL_S)
    log.warning("some nodes have not reported in time that their bridge is gone")


def _pods_of(seen: Seen, daemon_sets: set[str]) -> list[Pod]:
    return [pod for pod in seen.pods if pod.daemon_set in daemon_sets]


async def _until(parts: Parts, clock: Clock, share: float, what: str, done: Callable[[Seen], bool]) -> None:
    while clock.left(share) > 0:
        if done(await _see(parts)):
            return
        await asyncio.sleep(POLL_S)
    log.warning(f"{what} are not gone in time; continuing")


async def _remove(parts: Parts, clock: Clock) -> list[Resource]:
    """Delete every child, the Secrets created once, and the default objects; return the objects that remain."""
    left: list[Resource] = []
    while True:
        seen = await _see(parts)
        left = [o for o in (*seen.children, *seen.objects) if owned(o)]  # a master key that the user supplied stays
        going = tuple(o for o in left if not o.leaving)
        await parts.applier.carry_out(Changes((), going))
        if not left or clock.left() < POLL_S:
            break
        await asyncio.sleep(POLL_S)
    # The garbage collector deletes the pods; SOS processes run until the pods are gone.
    await _until(parts, clock, 1.0, "pods", lambda now: not now.pods)
    return left


async def _sign_off(parts: Parts) -> None:
    """Report in the status of users' objects that no operator serves them, and remove our finalizers."""
    seen = await _see(parts)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    verdict = Verdict(READY, "Unknown", "NotInstalled", "SOS was uninstalled; no operator serves this object")
    for obj in seen.objects:
        patch = finalizer.finalizer_patch(obj, wanted=False) if isinstance(obj, SosSite) else None
        if patch:
            await parts.cluster.merge(obj.content, patch)
        told = {key: value for key, value in obj.status.items() if key in ("from", "to", "ports")}
        write = plan_write(obj, Report(told, (verdict,)), stamp, 0.0)
        if write:
            try:
                await parts.cluster.apply_status(obj.content, write.status)
            except KindMissing:
                continue


async def _purge(cluster: Cluster, clock: Clock) -> list[Resource]:
    """Delete users' objects, then their CRDs; return the objects that remain, for example because another client's finalizer blocks their
    deletion."""
    left = await _deleted(clock, lambda: _all(cluster, OWN_KINDS), cluster)
    if left:
        return left  # deleting a CRD would also delete these objects, and hang on the same finalizers
    log.info("users' objects are gone")
    return await _deleted(clock, lambda: _definitions(cluster), cluster)


async def _deleted(clock: Clock, look: Callable[[], Awaitable[list[Resource]]], cluster: Cluster) -> list[Resource]:
    while True:
        left = await look()
        if not left or clock.left() < POLL_S:
            return left
        for obj in left:
            if not obj.leaving:
                await cluster.delete(obj.content)
        await asyncio.sleep(POLL_S)


async def _all(cluster: Cluster, kinds: Iterable[Kind]) -> list[Resource]:
    found: list[Resource] = []
    for kind in kinds:
        try:
            found += map(Resource.parse, await cluster.list(kind))
        except KindMissing:  # an earlier purge has already deleted this CRD
            continue
    return found


async def _definitions(cluster: Cluster) -> list[Resource]:
    return [Resource.parse(crd) for crd in await cluster.list(CRD) if crd["spec"]["group"] == GROUP]
