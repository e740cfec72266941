"""Rights that the chart aggregates to the cluster's default roles, and the notes after installation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from operator_kube import ROOT, Kube
from operator_run import NAMESPACE, helm, render

CHART = str(ROOT / "charts" / "sos")
ROLES = ("view", "edit", "admin")


@pytest.fixture(scope="module")
def bound(installed: Kube) -> Iterator[Kube]:
    """A service account for each of the cluster's roles in `default`, with the rules that the role aggregates.

    The controller that aggregates rules is not part of an API server, so the test selects the rules by their labels.
    """
    for role in ROLES:
        chosen = [o for o in render() if o["kind"] == "ClusterRole" and _adds_to(o["metadata"]["labels"], role)]
        rules = [rule for each in chosen for rule in each["rules"]]
        meta = {"name": f"as-{role}", "namespace": "default"}
        subjects = [{"kind": "ServiceAccount", **meta}]
        installed.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": meta["name"]}, "rules": rules},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": meta,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": meta["name"]},
                "subjects": subjects,
            },
        )
    yield installed
    for role in ROLES:
        installed.kubectl("delete", "clusterrole", f"as-{role}")
        installed.kubectl("delete", "rolebinding,serviceaccount", f"as-{role}", "-n", "default")


def _adds_to(labels: dict[str, str], role: str) -> bool:
    """True if a role includes these rules: Kubernetes itself adds view to edit, and edit to admin."""
    below = ROLES[: ROLES.index(role) + 1]
    return any(labels.get(f"rbac.authorization.k8s.io/aggregate-to-{each}") == "true" for each in below)


@pytest.mark.parametrize(
    ("role", "verb", "what", "may"),
    [
        ("view", "list", "sosservices", "yes"),
        ("view", "create", "sosservices", "no"),
        ("edit", "create", "sosservices", "yes"),
        ("edit", "delete", "sosservices", "yes"),
        ("admin", "patch", "sosservices", "yes"),
        ("admin", "create", "sossites", "no"),
        ("admin", "patch", "sosservices/status", "no"),
        ("edit", "get", "secrets", "no"),
    ],
)
def test_users_get_rights_by_their_role(bound: Kube, role: str, verb: str, what: str, may: str) -> None:
    kind, _, part = what.partition("/")
    asked = ("auth", "can-i", verb, kind, f"--subresource={part}", "-n", "default", "--as", f"system:serviceaccount:default:as-{role}")
    assert bound.kubectl(*asked, check=False).stdout.strip() == may


def test_aggregated_rights_exclude_the_operator_and_are_optional() -> None:
    (binding,) = [o for o in render() if o["kind"] == "ClusterRoleBinding"]
    assert binding["roleRef"]["name"] == "sos-operator"
    assert [o["metadata"]["name"] for o in render("--set", "rbac.aggregate=false") if o["kind"] == "ClusterRole"] == ["sos-operator"]


@pytest.mark.parametrize(("level", "warned"), [("restricted", True), ("baseline", True), ("privileged", False)])
def test_notes_warn_of_a_namespace_that_refuses_agents(installed: Kube, level: str, warned: bool) -> None:
    """The notes still end with the next command."""
    installed.kubectl("label", "--overwrite", "namespace", NAMESPACE, f"pod-security.kubernetes.io/enforce={level}")
    try:
        said = helm(installed, "upgrade", "sos", CHART, "-n", NAMESPACE)
    finally:
        installed.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce-")
    assert (f'enforces the Pod Security Standard "{level}"' in said) == warned
    assert (f"namespace {NAMESPACE} pod-security.kubernetes.io/enforce=privileged" in said) == warned
    assert said.strip().splitlines()[-1].strip() == "kubectl apply -f examples/02-overlay/ && kubectl get sos -A"
