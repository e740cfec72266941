"""Removes what an operator created with the rights of this command's user, without the operator's code and without waiting for nodes."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from sos_kubectl.base.labels import OPERATORS_CHILDREN
from sos_kubectl.base.source import Kubectl, SourceError
from sos_kubectl.lifecycle import record, remains, removal
from sos_kubectl.lifecycle.remains import Remains
from sos_kubectl.lifecycle.removal import Json
from sos_kubectl.lifecycle.removal_job import DELETE_S, POLL_S, Say

STOP_S = 60
"""Maximum wait for the operator's end; its pod has a grace period of 20 s."""
NOT_SERVED = "the server doesn't have a resource type"
"""kubectl's message for a kind whose CRD is not installed."""

SWITCHES, OTHERS = "app.kubernetes.io/component=node", "app.kubernetes.io/component!=node"
KINDS = ("deployments", "daemonsets", "services", "networkpolicies", "poddisruptionbudgets", "secrets", "configmaps")
OPTIONAL_KINDS = ("network-attachment-definitions.k8s.cni.cncf.io", "podmonitors.monitoring.coreos.com")
SITES = "sossites.sos.network"
DEFAULTS = ("sosagents.sos.network", "soscontrollers.sos.network")
RECORDED_KINDS = ("configmaps", "jobs", "rolebindings", "roles", "serviceaccounts")
RECORDED_CLUSTER_KINDS = ("clusterrolebindings", "clusterroles")


def look(kubectl: Kubectl) -> Remains:
    """The nodes that have, or may have, a bridge."""
    listed = kubectl.json("get", "pods,configmaps", "--all-namespaces", "-l", remains.NODE_SELECTOR, "-o", "json")
    return remains.remains(listed["items"])


def held_up(kubectl: Kubectl, objects: list[Json]) -> dict[str, str]:
    """Messages about SosSites in deletion while no operator runs, by name. The operator's own status describes all other deletions."""
    sites = [obj["metadata"]["name"] for obj in objects if remains.is_held_up(obj)]
    if not sites:
        return {}
    try:
        operators = kubectl.json("get", "deployments", "--all-namespaces", "-l", removal.OPERATORS, "-o", "json")["items"]
        if any((operator.get("status") or {}).get("availableReplicas") for operator in operators):
            return {}
        stopped = ", ".join(f"deployment {meta['namespace']}/{meta['name']}" for meta in (each["metadata"] for each in operators))
        recorded = bool(kubectl.json("get", "configmaps", "--all-namespaces", "-l", record.SELECTOR, "-o", "json")["items"])
        found = look(kubectl)
    except SourceError:
        return {}  # without the right to list these, the objects' own status remains
    return {site: remains.held_up(site, found, recorded=recorded, stopped=stopped) for site in sites}


@dataclass(frozen=True, slots=True)
class Abandonment:
    """A removal in one namespace, or in all without a name."""

    kubectl: Kubectl
    namespace: str
    say: Say

    def run(self, operator: Json | None, found: Remains, timeout: int) -> float:
        """Remove everything but users' objects; return the seconds for which nodes had no operator before their pods were deleted.

        Switch pods are deleted last, and only after `timeout` or after the time by which their node processes count the operator as gone:
        then each removes its bridge.
        """
        if operator is not None:
            self.say(f"stopping deployment {operator['metadata']['name']}")
            _stop(self.kubectl, operator)
        began = time.monotonic()
        self._delete((*KINDS, *OPTIONAL_KINDS), self.namespace, f"{OPERATORS_CHILDREN},{OTHERS}")
        waits_s = min(timeout, remains.SILENCE_S) if found.ready_nodes else 0
        if waits_s:
            self.say(f"waiting {waits_s} s: a node removes its bridge when its pod ends, if no operator has polled it for two minutes")
            time.sleep(waits_s)
        waited_s = time.monotonic() - began
        self._delete(KINDS, self.namespace, f"{OPERATORS_CHILDREN},{SWITCHES}")
        self._delete(DEFAULTS, "", OPERATORS_CHILDREN)
        self._release_sites()
        self._delete(RECORDED_KINDS, self.namespace, record.SELECTOR)
        self._delete(RECORDED_CLUSTER_KINDS, "", record.SELECTOR)
        return waited_s

    def _delete(self, kinds: tuple[str, ...], namespace: str, selector: str) -> None:
        """Delete objects by label."""
        where = ("-n", namespace) if namespace else ("--all-namespaces",)
        for kind in kinds:
            try:
                done = self.kubectl.run("delete", kind, *where, "-l", selector, "--wait=false", "-o", "name", timeout_s=DELETE_S)
            except SourceError as error:
                if NOT_SERVED not in str(error):
                    raise
                continue
            for name in done.split():
                self.say(f"deleted {name}")

    def _release_sites(self) -> None:
        """Remove our finalizer from all sites."""
        try:
            sites = self.kubectl.json("get", SITES, "-o", "json")["items"]
        except SourceError as error:
            if NOT_SERVED not in str(error):
                raise
            return
        for site in sites:
            if patch := remains.finalizers_without_ours(site):
                name = site["metadata"]["name"]
                self.kubectl.run("patch", SITES, name, "--type=merge", "-p", json.dumps(patch))
                self.say(f"sossite {name} no longer waits for its nodes")


def _stop(kubectl: Kubectl, operator: Json) -> None:
    """Scale the operator down, because it would create everything again."""
    name, where = operator["metadata"]["name"], operator["metadata"]["namespace"]
    kubectl.run("scale", "deployment", name, "-n", where, "--replicas=0")
    end = time.monotonic() + STOP_S
    while (kubectl.json("get", "deployment", name, "-n", where, "-o", "json").get("status") or {}).get("replicas"):
        if time.monotonic() >= end:
            raise SourceError(f"deployment {name} has not stopped within {STOP_S} s: delete its pods, and repeat this")
        time.sleep(POLL_S)
