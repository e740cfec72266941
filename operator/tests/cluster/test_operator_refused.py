"""A refusal by the API server shows in the status of its object, and affects no other object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from operator_fixtures import apply_example, becomes, condition
from operator_kube import Kube
from operator_nodes import Nodes, start_pods
from operator_run import NAMESPACE, eventually, operator_running

TOKEN = "sos-controllertoken-second"


@contextmanager
def refused(kube: Kube, name: str, resources: list[str], expression: str) -> Iterator[None]:
    """Make the API server refuse objects that match an expression, inside the block."""
    group = "sos.network" if resources[0].startswith("sos") else ""
    rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": resources}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": f"!({expression})", "message": "not today"}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    kube.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [policy, binding]}))
    try:
        yield
    finally:
        kube.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", name)


def is_refused(kube: Kube, *command: str) -> bool:
    return "not today" in kube.kubectl(*command, "--dry-run=server", check=False).stderr


def test_a_refusal_shows_at_its_object_and_affects_no_other(cluster: Kube, tmp_path: Path) -> None:
    extra = {"SOS_CONTROLLER_API_OVERRIDE": "default=http://127.0.0.1:1,second=http://127.0.0.1:1"}
    with Nodes(cluster).serving() as nodes, operator_running(cluster, tmp_path, **extra) as operator:
        apply_example(cluster)
        start_pods(cluster, nodes)
        becomes(cluster, "sossite/core1", "BridgesReady", "True", "Ready")
        with (
            refused(cluster, "secret", ["secrets"], f"object.metadata.name == '{TOKEN}'"),
            refused(cluster, "status", ["sossites/status"], "object.metadata.name == 'core2'"),
        ):
            eventually("the Secret refused", lambda: is_refused(cluster, "create", "secret", "generic", TOKEN, "-n", NAMESPACE))
            status = ("patch", "sossite", "core2", "--subresource=status", "--type=merge", "-p", '{"status":{"mtu":1400}}')
            eventually("the status refused", lambda: is_refused(cluster, *status))
            second = {"apiVersion": "sos.network/v1alpha1", "kind": "SosController", "metadata": {"name": "second"}, "spec": {}}
            cluster.apply(second)
            row = becomes(cluster, "soscontroller/second", "Available", "False", "ApplyFailed")
            assert TOKEN in row["message"]
            assert "not today" in row["message"]
            nodes.words.update({"core2": ("Failed", "no"), "edge2": ("Failed", "ovs-vswitchd does not answer")})
            becomes(cluster, "sossite/east", "BridgesReady", "False", "NodeFailed")
            assert condition(cluster, "sossite", "core2", "BridgesReady")["status"] == "True", "the refused status stays unchanged"
            cluster.kubectl("delete", "sossite", "core1", "--timeout=20s")
        becomes(cluster, "sossite/core2", "BridgesReady", "False", "NodeFailed")
        eventually("the Secret", lambda: cluster.get("secret", TOKEN, "-n", NAMESPACE))
        assert operator.http("/healthz")[0] == 200
