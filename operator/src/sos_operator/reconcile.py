"""Body of a reconcile pass: observe, compile, plan, apply, push, report."""

from __future__ import annotations

import asyncio
import logging
import secrets as random_source
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from sos_compile.certificates import new_ca
from sos_compile.model.site_card import SiteCard

from sos_operator.cluster.apply import Applier, Result
from sos_operator.cluster.client import Cluster
from sos_operator.cluster.kubernetes_services import ServiceObserver
from sos_operator.cluster.observe import Observer
from sos_operator.cluster.workload_pods import PodObserver
from sos_operator.core.desired import departure, finalizer, generation, network_attachment, pod_refresh, rollout
from sos_operator.core.desired.departed_nodes import Place, with_left
from sos_operator.core.desired.expected_pods import expected_pods
from sos_operator.core.desired.generation import Issued, credible, encode_issued, issued_now
from sos_operator.core.desired.output import Memos, Output, build_output, owners_of
from sos_operator.core.desired.release import release_manifests
from sos_operator.core.desired.retained_children import held_refs
from sos_operator.core.model.cluster_objects import ConfigMap, Secret
from sos_operator.core.model.custom_resources import CustomResource, SosSite
from sos_operator.core.model.errors import KindMissing, NotReady, OperatorError, Refused
from sos_operator.core.model.kinds import NAD, SECRET, SITE, kind_of
from sos_operator.core.model.objects import Object, Ref
from sos_operator.core.model.options import Settings
from sos_operator.core.model.remote import agent_status
from sos_operator.core.model.remote.agent_status import AgentAnswer
from sos_operator.core.model.remote.controller_view import ControllerView
from sos_operator.core.model.remote.node_status import NodeAnswer, address_of
from sos_operator.core.model.world import Seen, compiled_from, parse_allocations
from sos_operator.core.peers.desired import (
    Peering,
    key_files,
    known_cards,
    machine_configurations,
    own_cards,
    peer_manifests,
    read_pairings,
    targets,
)
from sos_operator.core.peers.machine import Configuration
from sos_operator.core.peers.pairing import wanted_pairings
from sos_operator.core.plan import Changes, fingerprint, owned, plan, ref_of
from sos_operator.core.scheduling.backoff import Outcome
from sos_operator.core.scheduling.change_queue import Changed, of_kinds
from sos_operator.core.secrets import ca_rotation, certificates, key_rotation, keys, secrets, token_rotation
from sos_operator.core.status.direct_agents import agents_without_controller, outdated
from sos_operator.core.status.report import report, unknown
from sos_operator.core.status.situation import Report, Situation
from sos_operator.core.status.status_writer import Write, build_event, plan_write, still_pending
from sos_operator.core.workloads.client_pods import selects_pods
from sos_operator.core.workloads.kubernetes_services import named_services
from sos_operator.process.bugs import Bugs
from sos_operator.process.defaults import is_default
from sos_operator.process.metrics import Metrics
from sos_operator.remote.bounded_requests import in_batches
from sos_operator.remote.controllers import Controllers
from sos_operator.remote.peers import Peers
from sos_operator.remote.pod_statuses import PodStatuses

log = logging.getLogger(__name__)

# Head start in seconds of the push of configurations before the rest of the pass: users wait for the push, and with a thousand services the
# rest takes longer than a controller's answer.
HEAD_START_S = 0.15
# Maximum number of concurrent status writes: an API server persists concurrent writes together, but sequential writes one by one.
WRITES_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts that a reconciler works with."""

    cluster: Cluster
    observer: Observer
    pods: PodObserver
    services: ServiceObserver
    applier: Applier
    controllers: Controllers
    nodes: PodStatuses[NodeAnswer]
    agents: PodStatuses[AgentAnswer]
    peers: Peers
    metrics: Metrics
    bugs: Bugs
    settings: Settings
    defaults: tuple[Object, ...] | None = ()
    """None if the defaults cannot be read: existing default objects then stay."""


class Reconciler:
    """Carries state from one pass to the next. Losing this state does no harm."""

    def __init__(self, parts: Parts, late: Callable[[], None] = lambda: None) -> None:
        self._p = parts
        self._late = late
        self._compiled: tuple[Hashable, Output] | None = None
        self._written: dict[str, float] = {}
        self._renewed: dict[str, CustomResource] = {}
        self._errors: dict[tuple[str, str], str] = {}
        self._without_secret: dict[tuple[str, str], str] = {}
        self._memos = Memos()
        self._left_since: dict[Place, float] = {}
        self._views: dict[str, ControllerView] = {}
        self._peering = Peering()
        self._own_cards: Mapping[str, SiteCard] = {}
        self._machines: Mapping[str, Configuration] = {}
        self._issuer = certificates.Issuer()

    async def reconcile(self, woken: frozenset[Changed]) -> Outcome:
        """Run one pass. Raises OperatorError if the cluster cannot be read or the master key is missing; an object's own errors are
        reported in its status."""
        self._renewed = {}
        self._p.observer.forget(woken)
        seen = await self._p.observer.see(time.monotonic())
        self._p.metrics.expect(expected_pods(seen.children))
        before = self._p.bugs.count
        try:
            outcome = await self._pass(seen)
        except Exception:
            # An error that ends a pass must not block the deletion of a site: the site's cleanup time limit still applies.
            await self._release_overdue(self._current(seen))
            raise
        return replace(outcome, failed=outcome.failed or self._p.bugs.count > before)

    async def _pass(self, seen: Seen) -> Outcome:
        workload = await self._p.pods.see(selects_pods(seen), time.monotonic())
        named = await self._p.services.see(named_services(seen), time.monotonic())
        seen = replace(
            seen,
            workload_pods=workload.pods,
            pods_problem=workload.problem,
            kubernetes_services=named.services,
            kubernetes_services_problem=named.problem,
        )
        secret_objects = await self._secrets(seen)
        pairings = read_pairings(seen, secret_objects)
        contacts = self._p.peers.contacts
        key_ids = {name: contact.key_id for name, contact in contacts.items() if contact.key_id is not None}
        self._peering = Peering(pairings, known_cards(seen, pairings, contacts), key_ids)
        reports = [contact.report for contact in contacts.values() if contact.report is not None]
        claims = tuple(sorted((report.generation, report.hash) for report in reports if report.hash))
        seen = replace(seen, cards=self._peering.cards, claims=claims)
        output = await self._compile(seen)
        self._own_cards = own_cards(seen, output.compiled, self._peering, time.time_ns() // 1_000_000)
        self._machines = machine_configurations(output.compiled, self._own_cards, self._peering)
        if not output.compiled.allocations.within(parse_allocations(seen.objects)):
            # Write allocations before anything is built from them.
            known = self._p.nodes.answers
            await self._publish(seen, self._situation(seen, output, known, rollout.plan_rollouts(seen, output.compiled, known)))
            seen = self._current(seen)
        controllers = asyncio.ensure_future(self._p.controllers.visit(seen, output.compiled, secret_objects, self._late))
        try:
            await asyncio.wait([controllers], timeout=HEAD_START_S)
            answers = await self._ask_nodes(seen, output)
            rollouts = rollout.plan_rollouts(seen, output.compiled, answers)
            if NAD in self._p.observer.missing:
                rollouts = rollout.without_networks(rollouts, seen, output.compiled)
            output = replace(output, compiled=rollout.withhold(output.compiled, seen, rollouts))
            result = await self._apply(seen, output, secret_objects)
            direct = agents_without_controller(seen, output.compiled)
            own = tuple(filter(None, (address_of(pod, agent_status.CONTAINER) for pod in direct)))
            self._p.peers.serve(targets(seen, self._own_cards, self._machines, self._peering), own, self._late)
            await self._p.agents.visit(direct, outdated(seen, output.compiled, self._p.agents.answers), self._late)
        finally:
            self._views = await controllers
        pending, refused = await self._publish(seen, self._situation(seen, output, answers, rollouts))
        refused |= await self._finalize(self._current(seen), output, answers)
        self._p.metrics.problems.set(sum(not problem.warning for problem in output.compiled.problems) + (self._p.defaults is None))
        rotating = key_rotation.is_asked_for(secret_objects[secrets.MASTER])
        rotating = rotating or ca_rotation.is_asked_for(secret_objects[certificates.OPENFLOW_CA])
        rotating = rotating or any(token_rotation.is_asked_for(secret) for secret in filter(secrets.is_token, secret_objects.values()))
        going = bool(output.departing or output.left)
        failed = result.retry or refused or bool(self._without_secret)
        return Outcome(failed=failed, pending=pending or rotating or going or bool(result.touched))

    def _situation(
        self, seen: Seen, output: Output, answers: Mapping[str, NodeAnswer], rollouts: Mapping[str, rollout.Rollout]
    ) -> Situation:
        return Situation(
            seen=seen,
            compiled=output.compiled,
            rollouts=rollouts,
            views=self._views,
            answers=answers,
            agent_answers=self._p.agents.answers,
            apply_errors=self._without_secret | self._errors,
            contacts=self._p.peers.contacts,
            received=self._peering.received,
            pairing_errors=self._peering.pairings.errors,
            undelivered=frozenset(output.compiled.machines.keys() & self._peering.pairings.usable.keys() - self._machines.keys()),
            departing={departing.site: departing for departing in output.departing},
            now_s=time.monotonic(),
            multus=NAD not in self._p.observer.missing,
        )

    async def _ask_nodes(self, seen: Seen, output: Output) -> Mapping[str, NodeAnswer]:
        """Return the nodes' answers by pod uid. Nodes that a rollout or a cleanup waits for are queried in every pass."""
        nodes = self._p.nodes
        waited_for = rollout.urgent_pods(seen, rollout.plan_rollouts(seen, output.compiled, nodes.answers))
        return await nodes.visit(seen.pods, departure.urgent_pods(seen, (*output.departing, *output.left)) | waited_for, self._late)

    async def _secrets(self, seen: Seen) -> dict[str, Secret]:
        """Return every Secret that the pass needs, by name; create missing ones.

        If the API server refuses a Secret, the status of the object that needs the Secret reports this. Without the master key, the pass
        ends.
        """
        found = {o.name: o for o in seen.children if isinstance(o, Secret)}
        self._without_secret = {}
        for wanted in (*secrets.wanted_secrets(seen), *secrets.external_tokens(seen), *wanted_pairings(seen)):
            try:
                await self._secret(wanted, found)
            except Refused as error:
                if wanted.owner is None:
                    raise
                owner = wanted.owner.kind, wanted.owner.name
                self._without_secret[owner] = f"Secret {wanted.name}: {error}"
                log.warning(f"Secret {wanted.name}: {error}", extra={"object": wanted.name})
        return found

    async def _secret(self, wanted: secrets.Wanted, found: dict[str, Secret]) -> None:
        """Read one Secret; create it if it is missing and the operator is responsible for it."""
        if wanted.name not in found and (there := await self._p.cluster.get(SECRET, wanted.name, self._p.settings.namespace)):
            found[wanted.name] = Secret.parse(there)
        if wanted.file is None:
            return
        if wanted.name not in found:
            files = {wanted.file: random_source.token_hex(keys.RANDOM_BYTES)}
            if wanted.name == certificates.OPENFLOW_CA:
                files = certificates.ca_files(certificates.FIRST_CA_ID, new_ca(datetime.now(UTC)))
            manifest = secrets.build_secret(self._p.settings, wanted.name, "operator", files, wanted.owner)
            found[wanted.name] = Secret.parse(await self._p.cluster.create(manifest))
            self._p.observer.forget(of_kinds([SECRET.plural]))
            log.info(f"made Secret {wanted.name}", extra={"object": wanted.name})
        elif patch := secrets.adoption(found[wanted.name], wanted):
            await self._p.cluster.merge(found[wanted.name].content, patch)
            self._p.observer.forget(of_kinds([SECRET.plural]))

    async def _rotate(self, secret_objects: Mapping[str, Secret], everywhere: bool) -> bool:
        """Write the rotation steps that are due. True if a write failed."""
        now, overlap = datetime.now(UTC), timedelta(seconds=self._p.settings.key_overlap_seconds)
        master = secret_objects[secrets.MASTER]
        fresh = random_source.token_hex(keys.RANDOM_BYTES)
        steps = [(master, "keys", key_rotation.next_step(master, now, overlap, fresh, everywhere=everywhere))]
        for secret in filter(secrets.is_token, secret_objects.values()):
            steps.append((secret, "token", token_rotation.next_step(secret, now, overlap, random_source.token_hex(keys.RANDOM_BYTES))))
        return any([await self._step(secret, word, step) for secret, word, step in steps if step is not None])

    async def _replace_ca(self, secret_objects: Mapping[str, Secret], everywhere: bool) -> bool:
        """Write the step that is due in the replacement of the CA. True if the write failed."""
        ca, overlap = secret_objects[certificates.OPENFLOW_CA], timedelta(seconds=self._p.settings.key_overlap_seconds)
        step = ca_rotation.next_step(ca, certificates.parse_authorities(ca), datetime.now(UTC), overlap, everywhere=everywhere)
        return step is not None and await self._step(ca, "certificates", step)

    async def _step(self, secret: Secret, word: str, step: tuple[str, Object]) -> bool:
        """Write one step. True if the write failed."""
        (said, patch), name = step, secret.name
        self._p.observer.forget(of_kinds([SECRET.plural]))
        try:
            await self._p.cluster.merge(secret.content, patch)
        except OperatorError as error:
            # A stalled rotation does no harm, and everything else continues.
            log.warning(f"{word}: the next step cannot be written: {error}", extra={"object": name})
            return True
        log.info(f"{word}: {said}", extra={"object": name})
        return False

    async def _compile(self, seen: Seen) -> Output:
        state, depends_on = seen.child(ConfigMap, generation.STATE_NAME), compiled_from(seen)
        known, before = self._compiled or (None, None)
        last = max(issued_now(state), before.issued if before else Issued(0, ""), key=lambda issued: issued.generation)
        in_force = self._p.controllers.in_force()
        claims = [*seen.claims, *in_force.values(), *((answer.generation, answer.hash) for answer in self._p.nodes.answers.values())]
        newest = max((generation for generation, _ in credible(claims)), default=0)
        # Absent documents (of departed nodes, and of the nodes of deleted sites) also depend on children and on nodes' answers, which
        # `depends_on` does not contain: while there are any, compile again in each pass.
        going = before is None or before.departing or before.left
        if before and not going and known == depends_on and last == before.issued and newest <= last.generation:
            return before
        seen = replace(seen, answers=self._p.nodes.answers, given_up=self._given_up())
        output = build_output(seen, self._p.settings, last, in_force, self._memos)
        self._note_left(output)
        if output.issued != issued_now(state):
            # Record the generation before any document carries it.
            self._p.observer.learn(await self._p.applier.apply(generation.state_manifest(self._p.settings, encode_issued(output.issued))))
        self._p.bugs.compiled(output.compiled.faults)
        self._compiled = (depends_on, output)
        self._p.metrics.generation.set(output.issued.generation)
        return output

    def _given_up(self) -> frozenset[Place]:
        """Departed nodes that did not report clean within the time limit."""
        now, patience = time.monotonic(), self._p.settings.site_cleanup_seconds
        return frozenset(place for place, since in self._left_since.items() if now - since > patience)

    def _note_left(self, output: Output) -> None:
        now, patience = time.monotonic(), self._p.settings.site_cleanup_seconds
        places = {(gone.site, node) for gone in output.left for node in gone.nodes}
        for site, node in sorted(places - self._left_since.keys()):
            log.info(f"node {node} has left site {site}: it removes everything that SOS created on it", extra={"node": node, "site": site})
        # Keep the time of a given-up node for as long again, until its document is certainly gone from the ConfigMap: otherwise the node
        # would count as newly departed, and the operator would wait for it again.
        kept = {place: since for place, since in self._left_since.items() if place in places or patience < now - since < 2 * patience}
        self._left_since = dict.fromkeys(places, now) | kept

    async def _apply(self, seen: Seen, output: Output, secret_objects: Mapping[str, Secret]) -> Result:
        settings = self._p.settings
        master = secret_objects[secrets.MASTER]
        found = keys.parse_masters(secrets.secret_files(master))
        if not found:
            raise NotReady(f"Secret {secrets.MASTER} holds no master key (a key named master-1 of 64 hex digits)")
        masters = keys.Masters(found, key_rotation.sending(master, found))
        derived = secrets.derived_secrets(output.compiled, masters, settings, seen, key_files(output.compiled, self._peering))
        certified = self._certified(seen, output, secret_objects[certificates.OPENFLOW_CA])
        of_peers = peer_manifests(settings, seen, self._own_cards, self._machines, self._peering)
        manifests = (
            generation.state_manifest(settings, encode_issued(output.issued)),
            *derived,
            *certified,
            *of_peers,
            *with_left(output.compiled.manifests, output.left, seen),
            *(m for departing in output.departing for m in departing.manifests),
            *release_manifests(settings),
            *(self._p.defaults or ()),
        )
        waiting = network_attachment.unattachable(manifests) if NAD in self._p.observer.missing else frozenset()
        served = tuple(m for m in manifests if kind_of(m) not in self._p.observer.missing and ref_of(m) not in waiting)
        observed = (*seen.children, *(o for o in seen.objects if owned(o)))
        keep = secrets.secret_refs(settings, secrets.wanted_secrets(seen)) | held_refs(output.compiled, settings) | waiting
        if self._p.defaults is None:
            keep = keep.union(o.ref for o in observed if is_default(o))
        keep = keep.union(*(departing.keeps for departing in output.departing))
        changes = plan(served, observed, self._p.applier.memory, keep)
        result = await self._p.applier.carry_out(changes)
        self._p.applier.remember_only(ref_of(m) for m in manifests)
        for answer in result.applied:
            self._p.observer.learn(answer)
        self._p.observer.forget(of_kinds(_plurals(changes, result)))
        self._errors = owners_of(manifests, result.failures)
        await self._poke(seen, output, (*derived, *certified, *of_peers), frozenset(ref_of(m) for m in changes.apply))
        result.retry |= await self._rotate(secret_objects, key_rotation.handed_out(derived, seen.children, output.compiled.held))
        result.retry |= await self._replace_ca(secret_objects, key_rotation.handed_out(certified, seen.children, output.compiled.held))
        return result

    def _certified(self, seen: Seen, output: Output, ca: Secret) -> tuple[Object, ...]:
        """The TLS folders of controllers and sites. Raise NotReady without a usable CA."""
        known = certificates.parse_authorities(ca)
        if not known:
            raise NotReady(f"Secret {ca.name} holds no usable CA (ca-1.crt and ca-1.key): delete the Secret, and it is created again")
        authorities = ca_rotation.authorities(ca, known)
        return self._issuer.folders(output.compiled, authorities, self._p.settings, seen, datetime.now(UTC))

    async def _poke(self, seen: Seen, output: Output, derived: tuple[Object, ...], unapplied: frozenset[Ref]) -> None:
        hashes = pod_refresh.config_hashes(output.compiled, (*output.departing, *output.left), derived)
        for pod, patch in pod_refresh.refresh_patches(seen, hashes, unapplied):
            try:
                await self._p.cluster.merge(pod.content, patch)
            except OperatorError as error:
                # The annotation only makes the kubelet update the pod's volumes immediately instead of within a minute.
                log.debug("pod not annotated", extra={"pod": pod.name, "error": str(error)})

    async def _publish(self, seen: Seen, situation: Situation) -> tuple[bool, bool]:
        """Write changed statuses. Return two flags: an accepted object is not ready yet; the API server refused a status."""
        pending, writes = False, []
        now, stamp = time.monotonic(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for obj in seen.objects:
            if situation.undecided(obj):
                pending = True
                continue
            written, write = self._reported(obj, situation, stamp, now)
            pending = pending or still_pending(written)
            if write is not None:
                writes.append(write)
        refused: list[str] = []
        await in_batches((partial(self._write, write, stamp, now, refused) for write in writes), WRITES_AT_ONCE)
        present = {o.meta.uid for o in seen.objects}
        self._written = {uid: at for uid, at in self._written.items() if uid in present}
        return pending, bool(refused)

    def _reported(self, obj: CustomResource, situation: Situation, stamp: str, now: float) -> tuple[Report, Write | None]:
        """Return one object's status and its write. If the status cannot be determined, only this object reports an error."""
        since_last = now - self._written.get(obj.meta.uid, 0.0)
        try:
            written = report(obj, situation)
            return written, plan_write(obj, written, stamp, since_last)
        except Exception as error:
            self._p.bugs.note("status", f"{obj.kind} {obj.name}", error)
            written = unknown(error)
        with self._p.bugs.fence("status", f"{obj.kind} {obj.name}"):
            return written, plan_write(obj, written, stamp, since_last)
        return written, None

    def _current(self, seen: Seen) -> Seen:
        """Return the listing with the statuses that this pass has written, so that a second publication is compared with them."""
        return replace(seen, objects=tuple(self._renewed.get(obj.meta.uid, obj) for obj in seen.objects)) if self._renewed else seen

    async def _write(self, write: Write, stamp: str, now: float, refused: list[str]) -> None:
        obj = write.obj
        try:
            answer = await self._p.cluster.apply_status(obj.content, write.status)
        except KindMissing:
            return  # deleted meanwhile
        except Refused as error:
            # A refused status must not stop the writes of other statuses.
            name = f"{obj.kind} {obj.name}"
            refused.append(name)
            self._p.metrics.writes.labels(verb="status", kind=obj.kind, result="failed").inc()
            log.warning(f"status of {name} not written: {error}", extra={"object": name})
            return
        self._written[obj.meta.uid] = now
        if fingerprint(answer) == fingerprint(obj.content):
            self._renewed[obj.meta.uid] = type(obj).parse(answer)
            self._p.observer.learn(answer)
        else:
            # Another client has changed the object: this pass keeps the version that it has compiled, the next pass reads the object again.
            self._renewed[obj.meta.uid] = type(obj).parse({**obj.content, "status": answer.get("status") or {}})
            self._p.observer.forget([Changed(kind_of(obj.content).plural, obj.meta.namespace, obj.name)])
        self._p.metrics.writes.labels(verb="status", kind=obj.kind, result="done").inc()
        for transition in write.transitions:
            name = f"{obj.name[:200]}.{random_source.token_hex(8)}"
            try:
                await self._p.cluster.create(build_event(obj, transition, name, stamp))
            except OperatorError as error:
                log.warning(f"event not written: {error}")

    async def _finalize(self, seen: Seen, output: Output, answers: Mapping[str, NodeAnswer]) -> bool:
        """Add our finalizer to sites with nodes; remove it when the nodes are clean or the cleanup time is over. True if a write was
        refused."""
        refused = False
        waiting = {d.site: d for d in output.departing}
        built = {str(doc["site"]) for doc in output.compiled.nodes.values()}
        for site in seen.of(SosSite):
            name = site.name
            patch = None
            with self._p.bugs.fence("finalizer", f"SosSite {name}"):
                if not site.leaving:
                    patch = finalizer.finalizer_patch(site, wanted=True) if name in built else None
                elif name not in waiting or self._overdue(site) or departure.cleaned(waiting[name], seen, answers):
                    patch = finalizer.finalizer_patch(site, wanted=False)
            if patch is not None:
                refused |= await self._set_finalizers(site, patch)
        return refused

    async def _release_overdue(self, seen: Seen) -> None:
        """Remove the finalizer from deleted sites whose cleanup time is over."""
        for site in seen.of(SosSite):
            with suppress(OperatorError), self._p.bugs.fence("finalizer", f"SosSite {site.name}"):
                if site.leaving and self._overdue(site) and (patch := finalizer.finalizer_patch(site, wanted=False)):
                    await self._set_finalizers(site, patch)

    async def _set_finalizers(self, site: SosSite, patch: Object) -> bool:
        """Apply the patch. True if the API server refuses it."""
        try:
            await self._p.cluster.merge(site.content, patch)
        except KindMissing:
            return False
        except (NotReady, Refused) as error:
            log.info(f"finalizer of site {site.name} not written yet: {error}")
            self._p.observer.forget(of_kinds([SITE.plural]))
            return isinstance(error, Refused)
        self._p.observer.forget(of_kinds([SITE.plural]))
        return False

    def _overdue(self, site: SosSite) -> bool:
        since = datetime.fromisoformat(site.meta.deletion.replace("Z", "+00:00"))
        return (datetime.now(UTC) - since).total_seconds() > self._p.settings.site_cleanup_seconds


def _plurals(changes: Changes, result: Result) -> set[str]:
    contents = (*changes.apply, *(obj.content for obj in changes.delete))
    return {kind_of(content).plural for content in contents if content["kind"] in result.stale}
