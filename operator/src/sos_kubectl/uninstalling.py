"""`kubectl sos uninstall`: the ordered removal, run in the cluster by the operator's own code, watched from here."""

from __future__ import annotations

import json
import secrets
import sys
import time
from typing import Annotated, Any

import typer

from sos_kubectl import options, removal
from sos_kubectl.options import NO, ContextOption, Form, FormOption, NamespaceOption, say, show
from sos_kubectl.removal import RemovalError
from sos_kubectl.source import OPERATORS_CHILDREN, PART_OF, Kubectl, SourceError

Json = dict[str, Any]

POLL_S = 1.0
CHILDREN = "deployments,daemonsets,services,configmaps"
DELETE_S = 60


def uninstall(  # noqa: PLR0913, PLR0917 - one parameter per option
    purge: Annotated[bool, typer.Option("--purge", help="Remove users' objects and the CRDs, too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    timeout: Annotated[int, typer.Option(min=10, max=3600, help="Seconds that the removal may take.")] = 120,
    namespace: NamespaceOption = "",
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """Take everything away that the operator made: agents drain, nodes take their bridges down, then the rest goes.

    The operator's Deployment, scaled to nothing, and its rights stay: helm uninstall takes them. Users' objects and CRDs need --purge.
    """
    kubectl = options.kubectl(context)
    operator = _operator(kubectl, namespace)
    where = operator["metadata"]["namespace"]
    children = kubectl.json("get", CHILDREN, "-n", where, "-l", OPERATORS_CHILDREN, "-o", "json")["items"]
    objects = kubectl.objects()
    for line in removal.what_goes(children, objects, purge=purge):
        say(line)
    if not yes:
        _ask(where)
    try:
        job = removal.job(operator, timeout, secrets.token_hex(3))
    except RemovalError as error:
        raise SourceError(str(error)) from None
    failed = _run(kubectl, job, timeout)
    purged = _purge(kubectl) if purge and not failed else []
    release = (operator["metadata"].get("labels") or {}).get("app.kubernetes.io/instance", "sos")
    last = f"helm uninstall {release} -n {where}"
    document = {"removed": not failed, "why": failed or None, "purged": purged, "left": f"what helm installed: {last}"}
    lines = [f"not removed: {failed}"] if failed else ["removed" + (", with objects and CRDs" if purge else "; objects and CRDs stay")]
    show(output, lambda: document, lambda: [*lines, *([] if failed else [f"the rest: {last}"])])
    if failed:
        raise typer.Exit(NO)


def _operator(kubectl: Kubectl, namespace: str) -> Json:
    where = ("-n", namespace) if namespace else ("--all-namespaces",)
    selector = f"{PART_OF},app.kubernetes.io/component={removal.OPERATOR}"
    found: list[Json] = kubectl.json("get", "deployments", *where, "-l", selector, "-o", "json")["items"]
    if len(found) == 1:
        return found[0]
    places = ", ".join(sorted(item["metadata"]["namespace"] for item in found))
    raise SourceError(
        f"operators in {places}: which? use --namespace" if found else "there is no operator: nothing that it made can be told"
    )


def _ask(namespace: str) -> None:
    if not sys.stdin.isatty():
        raise SourceError("nobody is there to be asked: use --yes")
    typer.confirm(f"remove SOS of namespace {namespace}?", abort=True, err=True)


def _run(kubectl: Kubectl, job: Json, timeout: int) -> str:
    """Run the Job to its end, with its words as they come; "" or why it failed. It is deleted in any case."""
    name, where = job["metadata"]["name"], job["metadata"]["namespace"]
    kubectl.run("create", "-f", "-", stdin=json.dumps(job))
    try:
        end, told = time.monotonic() + 2 * timeout + removal.GRACE_S, 0
        while True:
            over = removal.ended(kubectl.json("get", "job", name, "-n", where, "-o", "json"))
            told = _progress(kubectl, name, where, told)
            if over:
                return "" if over == "Complete" else over
            if time.monotonic() >= end:
                return f"the Job {name} is not over after {2 * timeout + removal.GRACE_S} s"
            time.sleep(POLL_S)
    finally:
        kubectl.run("delete", "job", name, "-n", where, "--ignore-not-found", "--cascade=background", "--wait=false", timeout_s=DELETE_S)


def _progress(kubectl: Kubectl, name: str, namespace: str, told: int) -> int:
    """Print what the Job has said since last time. Its pod may not be there yet, or not any more: that says nothing about the removal."""
    try:
        lines = kubectl.run("logs", f"job/{name}", "-n", namespace).splitlines()
    except SourceError:
        return told
    for line in lines[told:]:
        say(line)
    return max(told, len(lines))


def _purge(kubectl: Kubectl) -> list[str]:
    """Users' objects, then the CRDs; with the user's rights, since the operator has none to do so."""
    for kind in removal.PURGED:
        say(f"deleting {kind}")
        kubectl.run("delete", kind, "--all", "--all-namespaces", f"--timeout={DELETE_S}s", timeout_s=2 * DELETE_S)
    say("deleting CRDs")
    words = kubectl.run("delete", "crds", "-l", PART_OF, f"--timeout={DELETE_S}s", "-o", "name", timeout_s=2 * DELETE_S)
    return words.split()
