"""Runs the Job of a removal, prints its progress, and deletes the Job and its rights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from sos_kubectl.base.source import Kubectl, SourceError
from sos_kubectl.lifecycle import record, removal
from sos_kubectl.lifecycle.record import Record
from sos_kubectl.lifecycle.removal import Json, Plan, RemovalError

Say = Callable[[str], None]
"""Prints a line of progress."""

POLL_S = 1.0
DELETE_S = 60


def find_record(kubectl: Kubectl, namespace: str) -> Record | None:
    """The record of a removed release; None without one. Raises SourceError if there are several, or if it is no removal."""
    where = ("-n", namespace) if namespace else ("--all-namespaces",)
    found: list[Json] = kubectl.json("get", "configmaps", *where, "-l", record.SELECTOR, "-o", "json")["items"]
    if not found:
        return None
    if len(found) > 1:
        raise SourceError(record.several(found))
    try:
        printed = kubectl.run("create", "--dry-run=client", "-o", "json", "-f", "-", stdin=record.text(found[0]))
        return record.parse(found[0], record.documents(printed))
    except RemovalError as error:
        raise SourceError(str(error)) from None


def run(kubectl: Kubectl, plan: Plan, timeout: int, say: Say) -> str:
    """Run the Job to its end and print its log; return "" or the reason for its failure.

    A Job that has ended, never started or was interrupted is deleted. If its end was not seen in time, the Job is left running,
    because an incomplete removal is worse than an unobserved removal.
    """
    within_s = 2 * timeout + removal.GRACE_S
    try:
        if plan.rights:
            # The Job of an earlier attempt has the same name.
            kubectl.run("delete", "job", plan.name, "-n", plan.namespace, "--ignore-not-found", timeout_s=DELETE_S)
            rights = {"apiVersion": "v1", "kind": "List", "items": list(plan.rights)}
            kubectl.run("apply", "-f", "-", stdin=json.dumps(rights))
        kubectl.run("create", "-f", "-", stdin=json.dumps(plan.job))
        over = _followed(kubectl, plan, within_s, say)
    except KeyboardInterrupt:
        _tidy(kubectl, plan, say)
        say("\n".join(plan.interrupted))
        raise
    except SourceError:  # not created, or created but the API server's answer was lost
        _tidy(kubectl, plan, say)
        raise
    if not over:
        return removal.lost(plan, within_s)
    _tidy(kubectl, plan, say)
    return "" if over == "Complete" else over


def _followed(kubectl: Kubectl, plan: Plan, within_s: float, say: Say) -> str:
    """Return the Job's result; "" if it was not seen in time. An unreachable API server is polled again."""
    end, told, complaint = time.monotonic() + within_s, 0, ""
    while True:
        try:
            over = removal.ended(kubectl.json("get", "job", plan.name, "-n", plan.namespace, "-o", "json"))
            complaint = ""
        except SourceError as error:
            over = ""
            if str(error) != complaint:
                say(f"asking again: {error}")
            complaint = str(error)
        told = told if complaint else _progress(kubectl, plan, told, say)
        if over or time.monotonic() >= end:
            return over
        time.sleep(POLL_S)


def _tidy(kubectl: Kubectl, plan: Plan, say: Say) -> None:
    """Delete the Job and its rights. A failure does not change the removal's result: the Job expires some time after its end."""
    for objects in ([f"job/{plan.name}"], removal.names(plan.rights)):
        command = ("delete", *objects, "-n", plan.namespace, "--ignore-not-found", "--cascade=background", "--wait=false")
        if objects and (why := kubectl.tidy(*command, timeout_s=DELETE_S)):
            say(f"{', '.join(objects)} still exists: {why}")


def _progress(kubectl: Kubectl, plan: Plan, told: int, say: Say) -> int:
    """Print the lines of the Job's log after the first `told`; return the number of lines printed so far. A missing log is no error: the
    Job's pod may not exist yet, or may be deleted already."""
    try:
        lines = kubectl.run("logs", f"job/{plan.name}", "-n", plan.namespace).splitlines()
    except SourceError:
        return told
    for line in lines[told:]:
        say(line)
    return max(told, len(lines))
