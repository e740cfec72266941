"""Pods of a release against OpenShift's SecurityContextConstraints: the page's own for agents and switches, restricted-v2 for the rest."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
import sos_compile
import yaml
from operator_kube import ROOT
from operator_run import render
from sos_compile.artifacts import FIGURE8, example_world
from sos_operator.core.model.world import compile_settings
from sos_operator.process.settings import parse_settings

CHART = ROOT / "charts" / "sos"
PAGE = ROOT / "docs" / "platforms.md"
OPENSHIFT = ("-f", str(CHART / "ci" / "openshift-values.yaml"))
RESTRICTED = {
    "allowPrivilegedContainer": False,
    "allowPrivilegeEscalation": False,
    "allowHostNetwork": False,
    "allowHostPorts": False,
    "allowHostDirVolumePlugin": False,
    "readOnlyRootFilesystem": False,
    "requiredDropCapabilities": ["ALL"],
    "allowedCapabilities": ["NET_BIND_SERVICE"],
    "volumes": ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"],
    "seccompProfiles": ["runtime/default"],
    "runAsUser": {"type": "MustRunAsRange"},
    "fsGroup": {"type": "MustRunAs"},
}
"""restricted-v2 of OpenShift 4.11 and newer."""
EXAMPLES = ("01-two-sites", "03-proactive", "05-slices", "06-routed", "07-pods", "08-routed-wan")
PROFILES = {"RuntimeDefault": "runtime/default", "Unconfined": "unconfined"}


def constraints() -> dict[str, Any]:
    """The constraints on the page."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (text,) = [block for block in blocks if "SecurityContextConstraints" in block]
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def refusals(allowed: dict[str, Any], pod: dict[str, Any]) -> set[str]:
    """Return the fields of the constraints that the pod violates, by the rules of OpenShift's admission plugin."""
    said = set()
    if pod.get("hostNetwork") and not allowed["allowHostNetwork"]:
        said.add("allowHostNetwork")
    kinds = {kind for volume in pod.get("volumes", ()) for kind in volume if kind != "name"}
    said |= {"volumes"} if kinds - set(allowed["volumes"]) else set()
    said |= {"allowHostDirVolumePlugin"} if "hostPath" in kinds and not allowed["allowHostDirVolumePlugin"] else set()
    own = pod.get("securityContext", {})
    if allowed["fsGroup"]["type"] != "RunAsAny" and "fsGroup" in own:
        said.add("fsGroup")
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        said |= _container_refusals(allowed, {**own, **container["securityContext"]}, container)
    return said


def _container_refusals(allowed: dict[str, Any], context: dict[str, Any], container: dict[str, Any]) -> set[str]:
    said = set()
    capabilities = context.get("capabilities", {})
    if set(capabilities.get("add", ())) - set(allowed["allowedCapabilities"]):
        said.add("allowedCapabilities")
    if not set(allowed["requiredDropCapabilities"]) <= set(capabilities.get("drop", ())):
        said.add("requiredDropCapabilities")
    if context.get("privileged") and not allowed["allowPrivilegedContainer"]:
        said.add("allowPrivilegedContainer")
    if context.get("allowPrivilegeEscalation", True) and not allowed["allowPrivilegeEscalation"]:
        said.add("allowPrivilegeEscalation")
    if allowed["readOnlyRootFilesystem"] and not context.get("readOnlyRootFilesystem"):
        said.add("readOnlyRootFilesystem")
    if allowed["runAsUser"]["type"] != "RunAsAny" and "runAsUser" in context:
        said.add("runAsUser")
    if PROFILES[context["seccompProfile"]["type"]] not in allowed["seccompProfiles"]:
        said.add("seccompProfiles")
    if any("hostPort" in port for port in container.get("ports", ())) and not allowed["allowHostPorts"]:
        said.add("allowHostPorts")
    return said


def pods(example: str, nodes: Any) -> list[tuple[str, dict[str, Any]]]:
    """Component and pod spec of each workload of an example, with the settings of the chart on OpenShift."""
    (deployment,) = [o for o in render(*OPENSHIFT) if o["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = parse_settings({e["name"]: e.get("value", "sos-system") for e in container["env"]})
    world = replace(example_world(example, nodes), settings=compile_settings(settings, 1))
    workloads = [m for m in sos_compile.compile_world(world).manifests if m["kind"] in ("Deployment", "DaemonSet")]
    return [(m["metadata"]["labels"]["app.kubernetes.io/component"], m["spec"]["template"]["spec"]) for m in workloads]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_constraints_of_the_page_admit_agents_and_switches(example: str) -> None:
    found = constraints()
    admitted = 0
    for component, pod in pods(example, FIGURE8):
        if component in ("agent", "node"):
            assert refusals(found, pod) == set(), component
            assert f"system:serviceaccount:sos-system:{pod['serviceAccountName']}" in found["users"]
            admitted += 1
    assert admitted >= 2


def test_restricted_v2_admits_all_other_pods_without_users_of_their_own() -> None:
    others = [pod for component, pod in pods("01-two-sites", FIGURE8) if component == "controller"]
    others += [o["spec"]["template"]["spec"] for o in render(*OPENSHIFT) if o["kind"] in ("Deployment", "Job")]
    assert len(others) >= 3
    for pod in others:
        assert refusals(RESTRICTED, pod) == set()
    (operator,) = [o["spec"]["template"]["spec"] for o in render() if o["kind"] == "Deployment"]
    assert refusals(RESTRICTED, operator) == {"runAsUser", "fsGroup"}, "the default users are outside a namespace's range"


@pytest.mark.parametrize(
    "field", ["allowHostNetwork", "allowHostDirVolumePlugin", "allowedCapabilities", "volumes", "seccompProfiles", "runAsUser"]
)
def test_a_missing_permission_is_noticed(field: str) -> None:
    found = copy.deepcopy(constraints())
    empty: dict[str, Any] = {"runAsUser": {"type": "MustRunAsRange"}}
    found[field] = empty.get(field, [] if isinstance(found[field], list) else False)
    assert any(field in refusals(found, pod) for component, pod in pods("01-two-sites", FIGURE8) if component in ("agent", "node"))
