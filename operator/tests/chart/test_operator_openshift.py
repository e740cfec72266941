"""Pods of a release against OpenShift's SecurityContextConstraints: the page's own for agents and switches, restricted-v2 for the rest."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from functools import cache
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
    "allowHostPID": False,
    "allowHostIPC": False,
    "readOnlyRootFilesystem": False,
    "requiredDropCapabilities": ["ALL"],
    "allowedCapabilities": ["NET_BIND_SERVICE"],
    "volumes": ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"],
    "seccompProfiles": ["runtime/default"],
    "runAsUser": {"type": "MustRunAsRange"},
    "seLinuxContext": {"type": "MustRunAs"},
    "fsGroup": {"type": "MustRunAs"},
    "supplementalGroups": {"type": "RunAsAny"},
}
"""restricted-v2 of OpenShift 4.11 and newer."""
EXAMPLES = ("01-two-sites", "03-proactive", "05-slices", "06-routed", "07-pods", "08-routed-wan")
HOST_NAMESPACES = {"hostNetwork": "allowHostNetwork", "hostPID": "allowHostPID", "hostIPC": "allowHostIPC"}
PROFILES = {"RuntimeDefault": "runtime/default", "Unconfined": "unconfined"}


def constraints() -> dict[str, Any]:
    """The constraints on the page."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (text,) = [block for block in blocks if "SecurityContextConstraints" in block]
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def refusals(allowed: dict[str, Any], pod: dict[str, Any]) -> set[str]:
    """Return the fields of the constraints that the pod violates, by the rules of OpenShift's admission plugin."""
    said = {permission for field, permission in HOST_NAMESPACES.items() if pod.get(field) and not allowed[permission]}
    kinds = {kind for volume in pod.get("volumes", ()) for kind in volume if kind != "name"}
    said |= {"volumes"} if kinds - set(allowed["volumes"]) else set()
    said |= {"allowHostDirVolumePlugin"} if "hostPath" in kinds and not allowed["allowHostDirVolumePlugin"] else set()
    own = pod.get("securityContext", {})
    said |= {field for field in ("fsGroup", "supplementalGroups") if field in own and allowed[field]["type"] != "RunAsAny"}
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        said |= _container_refusals(allowed, {**own, **container["securityContext"]})
        # On the host's network, the API server makes every port of a container a port of the host.
        ports = container.get("ports", ())
        if (any("hostPort" in port for port in ports) or (ports and pod.get("hostNetwork"))) and not allowed["allowHostPorts"]:
            said.add("allowHostPorts")
    return said


def _container_refusals(allowed: dict[str, Any], context: dict[str, Any]) -> set[str]:
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
    # These strategies accept only values of the namespace, which SOS does not know.
    for strategy, field in (("runAsUser", "runAsUser"), ("seLinuxContext", "seLinuxOptions")):
        if field in context and allowed[strategy]["type"] != "RunAsAny":
            said.add(strategy)
    if PROFILES[context["seccompProfile"]["type"]] not in allowed["seccompProfiles"]:
        said.add("seccompProfiles")
    return said


def data_plane(example: str, *values: str) -> list[dict[str, Any]]:
    """Pod specs of agents and switches of an example."""
    return [pod for component, pod in pods(example, *values) if component in ("agent", "node")]


@cache
def pods(example: str, *values: str) -> list[tuple[str, dict[str, Any]]]:
    """Component and pod spec of each workload of an example, with the settings of the chart on OpenShift."""
    (deployment,) = [o for o in render(*OPENSHIFT, *values) if o["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = parse_settings({e["name"]: e.get("value", "sos-system") for e in container["env"]})
    world = replace(example_world(example, FIGURE8), settings=compile_settings(settings, 1))
    workloads = [m for m in sos_compile.compile_world(world).manifests if m["kind"] in ("Deployment", "DaemonSet")]
    return [(m["metadata"]["labels"]["app.kubernetes.io/component"], m["spec"]["template"]["spec"]) for m in workloads]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_constraints_of_the_page_admit_agents_and_switches(example: str) -> None:
    found = constraints()
    admitted = data_plane(example)
    for pod in admitted:
        assert refusals(found, pod) == set(), pod["serviceAccountName"]
        assert f"system:serviceaccount:sos-system:{pod['serviceAccountName']}" in found["users"]
        assert {"allowHostNetwork", "allowedCapabilities"} <= refusals(RESTRICTED, pod), "the pod needs no constraints of its own"
    assert len(admitted) >= 2


def test_only_agents_and_switches_get_the_constraints_of_the_page() -> None:
    accounts = {pod["serviceAccountName"] for example in EXAMPLES for pod in data_plane(example)}
    assert {user.rpartition(":")[2] for user in constraints()["users"]} == accounts


def test_restricted_v2_admits_all_other_pods_without_users_of_their_own() -> None:
    ends = {f"test.{end}.{key}={value}" for end in ("client", "server") for key, value in (("site", "west"), ("address", "10.0.0.9/24"))}
    rendered = render(*OPENSHIFT, *(word for value in sorted(ends) for word in ("--set", value)))
    others = [o["spec"]["template"]["spec"] for o in rendered if o["kind"] in ("Deployment", "Job")]
    assert len(others) == 4, "the operator, its removal, and both ends of the test"
    others += [pod for example in EXAMPLES for component, pod in pods(example) if component == "controller"]
    assert len(others) >= 5
    for pod in others:
        assert refusals(RESTRICTED, pod) == set()
    (operator,) = [o["spec"]["template"]["spec"] for o in render() if o["kind"] == "Deployment"]
    assert refusals(RESTRICTED, operator) == {"runAsUser", "fsGroup"}, "the default users are outside a namespace's range"


def without(permission: str) -> dict[str, Any]:
    """The page's constraints without one permission: FIELD, or FIELD=VALUE of a list."""
    found = copy.deepcopy(constraints())
    field, _, value = permission.partition("=")
    if value:
        found[field].remove(value)
    elif isinstance(found[field], dict):
        found[field] = {"type": "MustRunAs"}
    else:
        found[field] = False
    return found


LISTS = ("allowedCapabilities", "volumes", "seccompProfiles")
PERMISSIONS = ("allowHostNetwork", "allowHostPorts", "allowHostDirVolumePlugin", "runAsUser")
GRANTED = [*PERMISSIONS, *(f"{field}={value}" for field in LISTS for value in constraints()[field])]


@pytest.mark.parametrize("permission", GRANTED)
def test_every_permission_of_the_page_is_needed(permission: str) -> None:
    found, field = without(permission), permission.partition("=")[0]
    assert any(field in refusals(found, pod) for example in EXAMPLES for pod in data_plane(example))


def test_only_loading_modules_needs_another_capability() -> None:
    found = constraints()
    loading = data_plane("01-two-sites", "--set", "dataPlane.loadModules=true")
    assert {"allowedCapabilities"} == set.union(*(refusals(found, pod) for pod in loading))
    found["allowedCapabilities"].append("SYS_MODULE")
    assert [refusals(found, pod) for pod in loading] == [set() for _ in loading]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("allowHostPID", {"hostPID": True}),
        ("allowHostIPC", {"hostIPC": True}),
        ("volumes", {"volumes": [{"name": "disk", "nfs": {}}]}),
    ],
)
def test_other_permissions_are_refused(field: str, change: dict[str, Any]) -> None:
    assert refusals(constraints(), {**data_plane("01-two-sites")[0], **change}) == {field}
