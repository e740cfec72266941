"""Uninstallation: users' objects and the CRDs remain in the cluster, and nothing remains on the nodes."""

import json

from conftest import Lab
from sos_e2e.environment.cluster import PLACES
from sos_e2e.observation import node_state, workload
from sos_e2e.run import wait_for

OURS = "app.kubernetes.io/part-of=sos"
STAYS = ("/var/lib/sos", "/run/sos")


def _ours(lab: Lab) -> list[str]:
    kinds = lab.kube.ctl("api-resources", "--verbs=list", "-o", "name").split()
    listable = [kind for kind in kinds if not kind.startswith(("events", "componentstatuses", "bindings"))]
    found = lab.kube.ctl("get", ",".join(listable), "-A", "-l", OURS, "-o", "name", "--ignore-not-found", timeout=180)
    return sorted(line for line in found.split() if line)


def test_uninstall_leaves_crds_and_users_objects_only(
    lab: Lab, untouched: dict[str, node_state.State], accelerated: tuple[Lab, str]
) -> None:
    shown = set(left_on_nodes(untouched))
    with_sites = {node for place, node in lab.nodes.items() if PLACES[place].site}
    assert shown >= with_sites, "before the removal, the comparison detects SOS on every node of a site"
    workload.stop(lab.kube)
    lab.kube.helm("uninstall", "sos", "--namespace", workload.RELEASE_NAMESPACE, "--wait", "--timeout", "10m", timeout=660)
    left = wait_for(
        "SOS objects gone", lambda: (rest := [o for o in _ours(lab) if "customresourcedefinition" not in o]) == [] or _fail(rest), 120
    )
    assert left
    assert {item["metadata"]["name"] for item in lab.kube.items("sossites")} == {"west", "east", "core1", "core2"}
    secrets = [s["metadata"]["name"] for s in lab.kube.items("-n", workload.RELEASE_NAMESPACE, "secrets")]
    assert not [name for name in secrets if name.startswith("sos")], secrets
    wait_for("nodes in their former state", lambda: (rest := left_on_nodes(untouched)) == {} or _fail(rest), 60)


def left_on_nodes(untouched: dict[str, node_state.State]) -> dict[str, list[str]]:
    """Differences from the state before SOS, by node; the folders named in docs/install.md are left out."""
    found = {node: node_state.differences(before, node_state.look(node), STAYS) for node, before in untouched.items()}
    return {node: said for node, said in found.items() if said}


def _fail(rest: object) -> bool:
    raise LookupError(json.dumps(rest, indent=1))
