"""`kubectl sos uninstall`: the ordered removal, run in the cluster by the operator's own code; this command shows its progress."""

from __future__ import annotations

import json
import secrets
import sys
import time
from typing import Any

import click

from sos_kubectl.base.signals import ended_once
from sos_kubectl.base.source import OPERATORS_CHILDREN, PART_OF, Kubectl, SourceError
from sos_kubectl.cli import options
from sos_kubectl.cli.options import NO, Form, context_option, namespace_option, output_option, say, show
from sos_kubectl.lifecycle import removal
from sos_kubectl.lifecycle.removal import RemovalError

Json = dict[str, Any]

POLL_S = 1.0
CHILDREN = "deployments,daemonsets,services,configmaps"
DELETE_S = 60


@click.command(short_help="Remove everything that the operator created.")
@click.option("--purge", is_flag=True, help="Also remove users' objects and the CRDs.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--timeout", type=click.IntRange(10, 3600), default=240, show_default=True, help="Seconds that the removal may take.")
@namespace_option
@output_option
@context_option
def uninstall(  # noqa: PLR0913 - one parameter per option
    *, purge: bool, yes: bool, timeout: int, namespace: str, output: Form, context: str
) -> None:
    """Remove everything that the operator created: agents drain, nodes take their bridges down, then the rest is deleted.

    The operator's Deployment (scaled to zero) and RBAC objects remain until helm uninstall. Users' objects and CRDs need --purge.
    """
    kubectl = options.kubectl(context)
    operator = _operator(kubectl, namespace)
    where = operator["metadata"]["namespace"]
    if purge and (why := removal.purge_refused(_operators(kubectl, ("--all-namespaces",)), where)):
        raise SourceError(why)
    children = kubectl.json("get", CHILDREN, "-n", where, "-l", OPERATORS_CHILDREN, "-o", "json")["items"]
    kinds = _served(kubectl)
    objects = kubectl.json("get", ",".join(kinds), "--all-namespaces", "-o", "json")["items"] if kinds else []
    for line in removal.what_goes(children, objects, purge=purge):
        say(line)
    if not yes:
        _ask(removal.question(where, objects, purge=purge))
    try:
        job = removal.job(operator, timeout, secrets.token_hex(3))
    except RemovalError as error:
        raise SourceError(str(error)) from None
    with ended_once():
        failed = _run(kubectl, operator, job, timeout)
        purged, kept = _purge(kubectl, kinds) if purge and not failed else ([], "")
    release = (operator["metadata"].get("labels") or {}).get("app.kubernetes.io/instance", "sos")
    last = f"helm uninstall {release} -n {where}"
    document = {"removed": not failed, "why": failed or kept or None, "purged": purged, "left": f"what helm installed: {last}"}
    show(output, lambda: document, lambda: removal.outcome(failed, kept, last, purge=purge))
    if failed or kept:
        raise click.exceptions.Exit(NO)


def _operators(kubectl: Kubectl, where: tuple[str, ...]) -> list[Json]:
    selector = f"{PART_OF},app.kubernetes.io/component={removal.OPERATOR}"
    found: list[Json] = kubectl.json("get", "deployments", *where, "-l", selector, "-o", "json")["items"]
    return found


def _operator(kubectl: Kubectl, namespace: str) -> Json:
    found = _operators(kubectl, ("-n", namespace) if namespace else ("--all-namespaces",))
    if len(found) == 1:
        return found[0]
    places = ", ".join(sorted(item["metadata"]["namespace"] for item in found))
    raise SourceError(f"operators in {places}: choose one with --namespace" if found else "no operator found, so its objects are unknown")


def _served(kubectl: Kubectl) -> list[str]:
    """SOS kinds that still exist, in the order of removal.CRDS. An interrupted purge may have deleted some kinds."""
    words = kubectl.run("get", "crds", *removal.CRDS, "--ignore-not-found", "-o", "name").split()
    there = {word.partition("/")[2] for word in words}
    return [kind for kind in removal.CRDS if kind in there]


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise SourceError("no terminal to ask for confirmation: use --yes")
    click.confirm(question, abort=True, err=True)


def _run(kubectl: Kubectl, operator: Json, job: Json, timeout: int) -> str:
    """Run the Job to its end and print its log; return "" or the reason for its failure.

    A Job that has ended, never started or was interrupted is deleted. If its end was not seen in time, the Job is left running,
    because an incomplete removal is worse than an unobserved removal.
    """
    name, where = job["metadata"]["name"], job["metadata"]["namespace"]
    try:
        kubectl.run("create", "-f", "-", stdin=json.dumps(job))
        over = _followed(kubectl, name, where, 2 * timeout + removal.GRACE_S)
    except KeyboardInterrupt:
        _deleted(kubectl, name, where)
        say("\n".join(removal.interrupted(operator)))
        raise
    except SourceError:  # not created, or created but the API server's answer was lost
        _deleted(kubectl, name, where)
        raise
    if not over:
        return removal.lost(job, 2 * timeout + removal.GRACE_S)
    _deleted(kubectl, name, where)
    return "" if over == "Complete" else over


def _followed(kubectl: Kubectl, name: str, where: str, within_s: float) -> str:
    """Return the Job's result; "" if it was not seen in time. An unreachable API server is polled again."""
    end, told, complaint = time.monotonic() + within_s, 0, ""
    while True:
        try:
            over = removal.ended(kubectl.json("get", "job", name, "-n", where, "-o", "json"))
            complaint = ""
        except SourceError as error:
            over = ""
            if str(error) != complaint:
                say(f"asking again: {error}")
            complaint = str(error)
        told = told if complaint else _progress(kubectl, name, where, told)
        if over or time.monotonic() >= end:
            return over
        time.sleep(POLL_S)


def _deleted(kubectl: Kubectl, name: str, where: str) -> None:
    """Delete the Job. A failure does not change the removal's result: the Job expires some time after its end."""
    command = ("delete", "job", name, "-n", where, "--ignore-not-found", "--cascade=background", "--wait=false")
    if why := kubectl.tidy(*command, timeout_s=DELETE_S):
        say(f"the Job {name} still exists: {why}")


def _progress(kubectl: Kubectl, name: str, namespace: str, told: int) -> int:
    """Print the lines of the Job's log after the first `told`; return the number of lines printed so far. A missing log is no error: the
    Job's pod may not exist yet, or may be deleted already."""
    try:
        lines = kubectl.run("logs", f"job/{name}", "-n", namespace).splitlines()
    except SourceError:
        return told
    for line in lines[told:]:
        say(line)
    return max(told, len(lines))


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
