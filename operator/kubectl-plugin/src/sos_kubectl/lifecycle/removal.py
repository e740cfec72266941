"""Objects that `kubectl sos uninstall` creates and deletes, as values. Pure.

Only `sos_operator uninstall` knows the order of a removal: this module builds the same Job that `helm uninstall` runs, from the
operator's own Deployment. Without a Deployment, `record` builds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sos_kubectl.base import tables
from sos_kubectl.base.labels import PART_OF

Json = dict[str, Any]

OPERATOR = "operator"
OPERATORS = f"{PART_OF},app.kubernetes.io/component={OPERATOR}"
"""Deployments of operators."""
JOB_LABEL = "uninstall"
GRACE_S = 60
"""Time for the pod to start, beyond the time limit of the removal."""
KEPT_S = 600
"""Lifetime of a finished Job that was not deleted."""
PURGED = ("sosservices", "sospeers", "sosagents", "soslinks", "sossites", "soscontrollers")
"""Users' objects in order of dependency."""
GROUP = "sos.network"
CRDS = tuple(f"{kind}.{GROUP}" for kind in PURGED)
"""CRDs by name, because other objects may also have the chart's labels."""


class RemovalError(ValueError):
    """The Deployment is not the operator's, or the record is no removal."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A Job to run, the objects that it needs, and the message after an interruption."""

    namespace: str
    job: Json
    rights: tuple[Json, ...]
    interrupted: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the Job."""
        return str(self.job["metadata"]["name"])


def plan(deployment: Json, timeout: int, suffix: str) -> Plan:
    """The removal of everything made by this Deployment's operator. Raises RemovalError for another Deployment."""
    made = job(deployment, timeout, suffix)
    return Plan(made["metadata"]["namespace"], made, (), tuple(interrupted(deployment)))


def deadline(timeout: int) -> Json:
    """Time limits of a Job whose two attempts have this time limit in seconds."""
    return {"activeDeadlineSeconds": 2 * timeout + GRACE_S, "ttlSecondsAfterFinished": KEPT_S}


def job(deployment: Json, timeout: int, suffix: str) -> Json:
    """A Job that removes everything made by this Deployment's operator, with the operator's image, settings and rights."""
    meta, pod = deployment["metadata"], deployment["spec"]["template"]["spec"]
    found = [container for container in pod["containers"] if container["name"] == OPERATOR]
    if not found:
        raise RemovalError(f"deployment {meta['name']} has no container {OPERATOR!r}: it is not the operator's")
    (operator,) = found
    volumes = [volume for volume in pod.get("volumes", ()) if "emptyDir" in volume]
    names = {volume["name"] for volume in volumes}
    container = {
        **{key: operator[key] for key in ("image", "imagePullPolicy", "env", "securityContext", "resources") if key in operator},
        "name": JOB_LABEL,
        "args": ["uninstall", "--timeout", str(timeout)],
        "volumeMounts": [mount for mount in operator.get("volumeMounts", ()) if mount["name"] in names],
    }
    kept = ("serviceAccountName", "securityContext", "imagePullSecrets", "nodeSelector", "tolerations", "affinity", "priorityClassName")
    labels = {**meta.get("labels", {}), "app.kubernetes.io/component": JOB_LABEL, "app.kubernetes.io/managed-by": "kubectl-sos"}
    labels = {key: value for key, value in labels.items() if not key.startswith("helm.sh/")}
    spec = {**{key: pod[key] for key in kept if key in pod}, "restartPolicy": "Never", "containers": [container], "volumes": volumes}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{meta['name'][:40]}-{JOB_LABEL}-{suffix}", "namespace": meta["namespace"], "labels": labels},
        "spec": {
            "backoffLimit": 1,  # a second attempt continues where the first ended
            **deadline(timeout),
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def ended(found: Json) -> str:
    """Return a Job's result: "" while it runs, `Complete`, or `Failed` with its message."""
    for condition in (found.get("status") or {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return (
                "Complete"
                if condition["type"] == "Complete"
                else f"Failed: {condition.get('reason', '')} {condition.get('message', '')}".strip()
            )
    return ""


def interrupted(operator: Json) -> list[str]:
    """Message after an interrupted removal: its state, and the two ways to continue."""
    meta = operator["metadata"]
    said = "interrupted: objects may be missing and the operator scaled to zero. Run this again to continue, or restore the operator:"
    back = f"kubectl -n {meta['namespace']} scale deployment {meta['name']} --replicas=1"
    return [*tables.wrapped(said, indent=""), *tables.command(back)]


def lost(made: Plan, seconds: int) -> str:
    """Message about a Job whose end was not seen. Its rights stay as long as it runs."""
    look = f"kubectl -n {made.namespace} logs job/{made.name}"
    rights = f"; then kubectl -n {made.namespace} delete {' '.join(names(made.rights))}" if made.rights else ""
    return f"Job {made.name} did not report its end within {seconds} s; it continues without this command: {look}{rights}"


def names(objects: tuple[Json, ...]) -> list[str]:
    """Objects as arguments of kubectl: kind/name."""
    return [f"{obj['kind'].lower()}/{obj['metadata']['name']}" for obj in objects]


def what_goes(children: list[Json], objects: list[Json], *, purge: bool) -> list[str]:
    """Lines that list what will be deleted, for confirmation."""
    counts: dict[str, int] = {}
    for child in children:
        counts[child["kind"]] = counts.get(child["kind"], 0) + 1
    made = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    lines = tables.wrapped(f"created by the operator: {made or 'nothing'}", indent="")
    names = [f"{obj['kind']} {'/'.join(p for p in (obj['metadata'].get('namespace'), obj['metadata']['name']) if p)}" for obj in objects]
    if purge:
        lines += tables.wrapped(f"and permanently, with the CRDs, in all namespaces: {', '.join(sorted(names)) or 'no objects'}", indent="")
    return lines


def question(namespace: str, objects: list[Json], *, purge: bool, abandon: bool = False) -> str:
    """The question to confirm."""
    purged = f", and delete all {len(objects)} SOS objects of this cluster permanently" if purge else ""
    unwatched = ", without waiting for agents and nodes" if abandon else ""
    said = f"remove everything that the operator of namespace {namespace or '(unknown)'} created{unwatched}{purged}?"
    return "\n".join(tables.wrapped(said, indent=""))


def refused_for_others(option: str, operators: list[Json], namespace: str) -> str:
    """Reason for refusing an option that changes users' objects: these are cluster-wide, and operators of other namespaces need them; "" if
    allowed."""
    others = sorted({item["metadata"]["namespace"] for item in operators} - {namespace})
    if not others:
        return ""
    return f"{option}: operators in {', '.join(others)} also need the objects and CRDs: uninstall these operators first, without {option}"


def outcome(failed: str, kept: str, last: str, *, purge: bool) -> list[str]:
    """Result, and the next step, if any."""
    if failed:
        return tables.wrapped(f"not removed: {failed}", indent="")
    if kept:
        return [*tables.wrapped(f"removed, but not all objects and CRDs: {kept}", indent=""), "run the same again after correcting this"]
    done = f"removed{', with objects and CRDs' if purge else '; objects and CRDs stay'}"
    return [f"{done}; the rest:", *tables.command(last)] if last else [done]
