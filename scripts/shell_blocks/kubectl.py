"""Check of kubectl commands: verbs, options, kinds and files. `kubectl sos` is a program of its own.

The tables have what the pages use; a test compares them with the help of kubectl itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from shell_blocks import options
from shell_blocks.shell import is_placeholder

WITH_VALUE = (
    *("-n", "--namespace", "--context", "--kubeconfig", "-l", "--selector", "-o", "--output", "-f", "--filename", "--field-selector"),
    *("--sort-by", "--timeout", "--for", "--tail", "--since", "-c", "--container", "--replicas", "-p", "--patch", "--type", "--image"),
    *("--grace-period", "--as", "--raw", "--api-group"),
)
FLAGS = (
    *("-A", "--all-namespaces", "--all", "-w", "--watch", "-i", "-t", "-it", "--overwrite", "--server-side", "--ignore-not-found"),
    *("--show-labels", "--dry-run", "--force", "--follow", "--previous", "--ignore-daemonsets", "--delete-emptydir-data", "--wait"),
    *("--no-headers", "--help", "-h", "--client", "--undo", "--recursive", "--manifest", "--restart"),
)
OF_KINDS = ("get", "describe", "delete", "wait", "label", "annotate", "edit", "patch", "scale", "explain", "taint")
"""Verbs whose first operand is a kind, a list of kinds, or KIND/NAME."""
OF_PODS = ("logs", "exec", "port-forward", "attach", "debug", "cp")
"""Verbs whose first operand is a pod's name or KIND/NAME."""
OTHER_VERBS = (
    *("apply", "create", "replace", "diff", "top", "drain", "cordon", "uncordon", "rollout", "auth", "version", "config", "run"),
    *("completion", "krew", "options", "proxy", "cluster-info", "api-resources", "kustomize"),
)
BUILT_IN = {
    "pod": ("pods", "po"), "deployment": ("deployments", "deploy"), "daemonset": ("daemonsets", "ds"), "job": ("jobs",),
    "service": ("services", "svc"), "namespace": ("namespaces", "ns"), "node": ("nodes", "no"), "secret": ("secrets",),
    "configmap": ("configmaps", "cm"), "event": ("events", "ev"), "lease": ("leases",), "serviceaccount": ("serviceaccounts", "sa"),
    "networkpolicy": ("networkpolicies", "netpol"), "poddisruptionbudget": ("poddisruptionbudgets", "pdb"),
    "customresourcedefinition": ("customresourcedefinitions", "crd", "crds"), "clusterrole": ("clusterroles",),
    "clusterrolebinding": ("clusterrolebindings",), "endpointslice": ("endpointslices",), "role": ("roles",),
    "network-attachment-definition": ("network-attachment-definitions", "net-attach-def"),
    "podmonitor": ("podmonitors",), "prometheusrule": ("prometheusrules",),
    "validatingadmissionpolicy": ("validatingadmissionpolicies",),
}  # fmt: skip
"""Kinds of Kubernetes, Multus and Prometheus Operator with their other names."""


def kinds(crds: Path) -> frozenset[str]:
    """Names by which kubectl knows kinds: those of Kubernetes, and those of the CRDs in a folder, short names and categories included."""
    found = {name for one, others in BUILT_IN.items() for name in (one, *others)}
    for path in sorted(crds.glob("*.yaml")):
        spec: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
        names = spec["names"]
        ours = (names["plural"], names["singular"], *names.get("shortNames", ()))
        found.update((*ours, *names.get("categories", ()), f"{names['plural']}.{spec['group']}", f"{names['singular']}.{spec['group']}"))
    return frozenset(found)


def verb_of(words: Sequence[str]) -> str:
    """The verb of the words after `kubectl`; "" if there is none."""
    return next(iter(options.split(words, WITH_VALUE, FLAGS).operands), "")


def problems(words: Sequence[str], known: Collection[str], *, mention: bool) -> Iterator[str]:
    """Report unknown verbs, options, kinds and files in the words after `kubectl`."""
    given = options.split(words, WITH_VALUE, FLAGS)
    yield from (f"kubectl: unknown option {name}" for name in given.unknown)
    if not given.operands:
        if not mention:
            yield "kubectl: no verb"
        return
    verb, *operands = given.operands
    if is_placeholder(verb):
        return
    if verb not in (*OF_KINDS, *OF_PODS, *OTHER_VERBS):
        yield f"kubectl: unknown verb {verb}"
    elif verb in OF_KINDS and not given.values("-f", "--filename", "--raw"):
        yield from _kinds(verb, operands, known, mention=mention)
    elif verb in {"apply", "replace"} and not given.values("-f", "--filename") and not mention:
        yield f"kubectl {verb}: no -f"
    elif verb in OF_PODS or verb == "rollout":
        yield from _kinds(verb, [word for word in operands if "/" in word][:1], known, mention=True)


def _kinds(verb: str, operands: Sequence[str], known: Collection[str], *, mention: bool) -> Iterator[str]:
    if not operands:
        if not mention:
            yield f"kubectl {verb}: no kind"
        return
    for word in operands[0].split(","):
        kind = word.partition("/")[0].partition(".spec")[0].partition(".status")[0]
        if not is_placeholder(kind) and kind.lower() not in known:
            yield f"kubectl {verb}: unknown kind {kind}"
