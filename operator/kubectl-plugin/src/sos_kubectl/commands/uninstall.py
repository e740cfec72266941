"""`kubectl sos uninstall`: the ordered removal, run in the cluster by the operator's own code; this command shows its progress."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from sos_kubectl.base.labels import OPERATORS_CHILDREN
from sos_kubectl.base.signals import ended_once
from sos_kubectl.base.source import Kubectl, SourceError
from sos_kubectl.base.tables import wrapped
from sos_kubectl.cli import options
from sos_kubectl.cli.options import NO, Form, context_option, namespace_option, output_option, say, show
from sos_kubectl.lifecycle import abandonment, record, remains, removal, removal_job
from sos_kubectl.lifecycle.abandonment import Abandonment
from sos_kubectl.lifecycle.removal import Plan, RemovalError
from sos_kubectl.lifecycle.removal_job import DELETE_S

Json = dict[str, Any]

CHILDREN = "deployments,daemonsets,services,configmaps"


@dataclass(frozen=True, slots=True)
class Wishes:
    """Options of the command."""

    purge: bool
    yes: bool
    timeout: int
    output: Form


@click.command(short_help="Remove everything that the operator created.")
@click.option("--purge", is_flag=True, help="Also remove users' objects and the CRDs.")
@click.option("--abandon", is_flag=True, help="Do not run the removal in the cluster, and wait for no node. For when it cannot run.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--timeout", type=click.IntRange(10, 3600), default=240, show_default=True, help="Seconds that the removal may take.")
@namespace_option
@output_option
@context_option
def uninstall(  # noqa: PLR0913 - one parameter per option
    *, purge: bool, abandon: bool, yes: bool, timeout: int, namespace: str, output: Form, context: str
) -> None:
    """Remove everything that the operator created: agents drain, nodes take their bridges down, then the rest is deleted.

    The operator's Deployment (scaled to zero) and RBAC objects remain until helm uninstall. If they are gone already (helm uninstall
    --no-hooks), the removal runs from the record that the chart has left. Users' objects and CRDs need --purge.
    """
    kubectl, wishes = options.kubectl(context), Wishes(purge, yes, timeout, output)
    operator = _operator(kubectl, namespace)
    where = namespace or (operator["metadata"]["namespace"] if operator else "")
    if abandon:
        _abandon(kubectl, operator, where, wishes)
    else:
        _remove(kubectl, operator, where, wishes)


def _remove(kubectl: Kubectl, operator: Json | None, namespace: str, wishes: Wishes) -> None:
    plan = _plan(kubectl, operator, namespace, wishes.timeout)
    where = plan.namespace
    if wishes.purge:
        _refuse_for_others(kubectl, "--purge", where)
    kinds = _confirmed(kubectl, where, wishes, removal.question)
    with ended_once():
        failed = removal_job.run(kubectl, plan, wishes.timeout, say)
        purged, kept = _purge(kubectl, kinds) if wishes.purge and not failed else ([], "")
    last = _last(operator)
    left = f"what helm installed: {last}" if last else None
    document = {"removed": not failed, "why": failed or kept or None, "purged": purged, "left": left}
    show(wishes.output, lambda: document, lambda: removal.outcome(failed, kept, last, purge=wishes.purge))
    if failed or kept:
        raise click.exceptions.Exit(NO)


def _plan(kubectl: Kubectl, operator: Json | None, namespace: str, timeout: int) -> Plan:
    """The removal by the operator's Deployment, or else by the record of a release that was deleted without its hooks."""
    if operator is not None:
        try:
            return removal.plan(operator, timeout, secrets.token_hex(3))
        except RemovalError as error:
            raise SourceError(str(error)) from None
    found = removal_job.find_record(kubectl, namespace)
    if found is None:
        raise SourceError(record.missing(namespace))
    say(f"no operator found; using the record of the one in namespace {found.namespace}")
    return record.plan(found, timeout)


def _abandon(kubectl: Kubectl, operator: Json | None, namespace: str, wishes: Wishes) -> None:
    where = namespace or _namespace_of_children(kubectl)
    _refuse_for_others(kubectl, "--abandon", where)
    found = abandonment.look(kubectl)
    kinds = _confirmed(kubectl, where, wishes, lambda *a, purge: removal.question(*a, purge=purge, abandon=True))
    waited_s = Abandonment(kubectl, where, say).run(operator, found, wishes.timeout)
    purged, kept = _purge(kubectl, kinds) if wishes.purge else ([], "")
    last, said = _last(operator), remains.after_abandonment(found, waited_s)
    lines = [line for sentence in said for line in wrapped(sentence, indent="")]
    document = {"removed": True, "why": kept or None, "purged": purged, "nodes": said, "left": last or None}
    show(wishes.output, lambda: document, lambda: [*removal.outcome("", kept, last, purge=wishes.purge), *lines])
    if kept:
        raise click.exceptions.Exit(NO)


def _namespace_of_children(kubectl: Kubectl) -> str:
    """The only namespace with objects of an operator; "" without any."""
    children = kubectl.json("get", CHILDREN, "--all-namespaces", "-l", OPERATORS_CHILDREN, "-o", "json")["items"]
    places = sorted({child["metadata"]["namespace"] for child in children})
    if len(places) > 1:
        raise SourceError(f"objects of operators in {', '.join(places)}: choose one with --namespace")
    return places[0] if places else ""


def _refuse_for_others(kubectl: Kubectl, option: str, namespace: str) -> None:
    if why := removal.refused_for_others(option, _operators(kubectl, ("--all-namespaces",)), namespace):
        raise SourceError(why)


def _confirmed(kubectl: Kubectl, where: str, wishes: Wishes, question: Callable[..., str]) -> list[str]:
    """List what will be removed, and ask; return the SOS kinds that still exist."""
    place = ("-n", where) if where else ("--all-namespaces",)
    children = kubectl.json("get", CHILDREN, *place, "-l", OPERATORS_CHILDREN, "-o", "json")["items"]
    kinds = _served(kubectl)
    objects = kubectl.json("get", ",".join(kinds), "--all-namespaces", "-o", "json")["items"] if kinds else []
    for line in removal.what_goes(children, objects, purge=wishes.purge):
        say(line)
    if held := [site for site in objects if remains.is_held_up(site)]:
        found = abandonment.look(kubectl)
        for site in held:
            name = site["metadata"]["name"]
            say(f"SosSite {name} is being deleted and waits for {remains.named(found.of(name)) or 'no known node'}")
    if not wishes.yes:
        _ask(question(where, objects, purge=wishes.purge))
    return kinds


def _last(operator: Json | None) -> str:
    """The command that removes the rest; "" without a release."""
    if operator is None:
        return ""
    meta = operator["metadata"]
    release = (meta.get("labels") or {}).get("app.kubernetes.io/instance", "sos")
    return f"helm uninstall {release} -n {meta['namespace']}"


def _operators(kubectl: Kubectl, where: tuple[str, ...]) -> list[Json]:
    found: list[Json] = kubectl.json("get", "deployments", *where, "-l", removal.OPERATORS, "-o", "json")["items"]
    return found


def _operator(kubectl: Kubectl, namespace: str) -> Json | None:
    """The only operator's Deployment, in this namespace or in all; None without one."""
    found = _operators(kubectl, ("-n", namespace) if namespace else ("--all-namespaces",))
    if len(found) > 1:
        places = ", ".join(sorted(item["metadata"]["namespace"] for item in found))
        raise SourceError(f"operators in {places}: choose one with --namespace")
    return found[0] if found else None


def _served(kubectl: Kubectl) -> list[str]:
    """SOS kinds that still exist, in the order of removal.CRDS. An interrupted purge may have deleted some kinds."""
    words = kubectl.run("get", "crds", *removal.CRDS, "--ignore-not-found", "-o", "name").split()
    there = {word.partition("/")[2] for word in words}
    return [kind for kind in removal.CRDS if kind in there]


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise SourceError("no terminal to ask for confirmation: use --yes")
    click.confirm(question, abort=True, err=True)


def _purge(kubectl: Kubectl, kinds: list[str]) -> tuple[list[str], str]:
    """Delete users' objects, then the CRDs, with the permissions of this command's user, because the operator lacks the permission. Return
    the deleted kinds, and the reason if some kinds are left."""
    purged: list[str] = []
    within = (f"--timeout={DELETE_S}s", "-o", "name")
    steps = [*((kind, "--all", "--all-namespaces") for kind in kinds), *((("crds", *kinds),) if kinds else ())]
    for step in steps:
        say(f"deleting {step[0]}")
        try:
            purged += kubectl.run("delete", *step, "--ignore-not-found", *within, timeout_s=2 * DELETE_S).split()
        except SourceError as error:
            return purged, f"{step[0]}: {error}"
    return purged, ""
