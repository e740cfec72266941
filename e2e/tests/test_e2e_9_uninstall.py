"""Uninstallation with and without hooks: users' objects and the CRDs remain in the cluster, and nothing remains on the nodes."""

import json
import sys
import time
from pathlib import Path

import pytest
from conftest import Lab
from sos_e2e.environment.cluster import PLACES
from sos_e2e.observation import node_state, workload
from sos_e2e.run import run, say, wait_for
from sos_e2e.settings import ROOT

OURS = "app.kubernetes.io/part-of=sos"
STAYS = ("/var/lib/sos", "/run/sos")
RELEASE = ("sos", "--namespace", workload.RELEASE_NAMESPACE)
REMOVED_WITHIN_S = 120.0
"""Time limit of the documented commands after `helm uninstall --no-hooks`."""
ORPHANED_AFTER_S = 120
"""Time without a poll after which a node process counts its operator as gone (spec/node-config.md clause 45)."""


@pytest.fixture(scope="module")
def values(installed: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The values of the release, with which it is installed again."""
    path = tmp_path_factory.mktemp("values") / "values.yaml"
    path.write_text(installed.kube.helm("get", "values", *RELEASE, "-o", "yaml"))
    return path


def _ours(lab: Lab) -> list[str]:
    kinds = lab.kube.ctl("api-resources", "--verbs=list", "-o", "name").split()
    listable = [kind for kind in kinds if not kind.startswith(("events", "componentstatuses", "bindings"))]
    found = lab.kube.ctl("get", ",".join(listable), "-A", "-l", OURS, "-o", "name", "--ignore-not-found", timeout=180)
    return sorted(line for line in found.split() if line)


def test_uninstall_leaves_crds_and_users_objects_only(
    lab: Lab, untouched: dict[str, node_state.State], accelerated: tuple[Lab, str], values: Path
) -> None:
    shown = set(left_on_nodes(untouched))
    with_sites = {node for place, node in lab.nodes.items() if PLACES[place].site}
    assert shown >= with_sites, "before the removal, the comparison detects SOS on every node of a site"
    workload.stop(lab.kube)
    lab.kube.helm("uninstall", *RELEASE, "--wait", "--timeout", "10m", timeout=660)
    left = wait_for(
        "SOS objects gone", lambda: (rest := [o for o in _ours(lab) if "customresourcedefinition" not in o]) == [] or _fail(rest), 120
    )
    assert left
    assert {item["metadata"]["name"] for item in lab.kube.items("sossites")} == {"west", "east", "core1", "core2"}
    secrets = [s["metadata"]["name"] for s in lab.kube.items("-n", workload.RELEASE_NAMESPACE, "secrets")]
    assert not [name for name in secrets if name.startswith("sos")], secrets
    wait_for("nodes in their former state", lambda: (rest := left_on_nodes(untouched)) == {} or _fail(rest), 60)


def test_a_release_deleted_without_hooks_is_removed_by_the_documented_lines(
    lab: Lab, untouched: dict[str, node_state.State], values: Path, tmp_path: Path
) -> None:
    kube = lab.kube
    kube.helm("install", *RELEASE, str(ROOT / "charts" / "sos"), "--wait", "--timeout", "180s", "-f", str(values))
    assert "sossites" in kube.wait_ready(timeout=240)
    kube.helm("uninstall", *RELEASE, "--no-hooks", "--wait")
    with_sites = {node for place, node in lab.nodes.items() if PLACES[place].site}
    assert set(left_on_nodes(untouched)) >= with_sites, "without hooks, the nodes keep their bridges"

    removes_its_bridge_when_its_site_is_gone(lab, untouched, "core1")

    kube.ctl("delete", "sossite", "west", "--wait=false")
    said = " ".join(kube.plugin("status", check=False).split())
    assert "being deleted, but no operator runs" in said and lab.nodes["west"] in said, said
    began = time.monotonic()
    script = run(sys.executable, ROOT / "scripts" / "blocks.py", "--print", "removal-without-hooks")
    environment = f"KUBECONFIG={lab.settings.kubeconfig}"
    run("env", "--chdir", tmp_path, environment, "bash", "-euo", "pipefail", "-c", script, timeout=660)
    wait_for("SOS objects gone", lambda: (rest := [o for o in _ours(lab) if "customresourcedefinition" not in o]) == [] or _fail(rest), 60)
    wait_for("nodes in their former state", lambda: (rest := left_on_nodes(untouched)) == {} or _fail(rest), 60)
    took = time.monotonic() - began
    say(f"removed without hooks in {took:.0f} s")
    assert took < REMOVED_WITHIN_S
    kube.ctl("delete", "crd", "-l", OURS, "--timeout=60s")
    assert _ours(lab) == []


def removes_its_bridge_when_its_site_is_gone(lab: Lab, untouched: dict[str, node_state.State], place: str) -> None:
    """Without an operator, nothing confirms that a node is clean: after a forced deletion of its site, the node process cleans up."""
    node = lab.nodes[place]
    hold = "/run/sos/openvswitch/sos-node.hold"
    wait_for("the operator to count as gone", lambda: hold in run("docker", "exec", node, "ls", hold, check=False), ORPHANED_AFTER_S + 60)
    others = set(left_on_nodes(untouched)) - {node}
    lab.kube.ctl("patch", "sossite", place, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    lab.kube.ctl("delete", "sossite", place)
    began = time.monotonic()
    wait_for("the node without its site", lambda: (rest := left_on(node, untouched)) == [] or _fail(rest), 120)
    say(f"a node whose site was gone removed its bridge in {time.monotonic() - began:.0f} s")
    assert set(left_on_nodes(untouched)) == others, "the nodes of other sites keep their bridges"


def left_on_nodes(untouched: dict[str, node_state.State]) -> dict[str, list[str]]:
    """Differences from the state before SOS, by node; the folders named in docs/install.md are left out."""
    found = {node: left_on(node, untouched) for node in untouched}
    return {node: said for node, said in found.items() if said}


def left_on(node: str, untouched: dict[str, node_state.State]) -> list[str]:
    """The same of one node."""
    return node_state.differences(untouched[node], node_state.look(node), STAYS)


def _fail(rest: object) -> bool:
    raise LookupError(json.dumps(rest, indent=1))
