"""What is left when the release is gone: users' objects and the CRDs, and nothing on the nodes."""

import json

from conftest import Lab
from sos_e2e import workload
from sos_e2e.run import run, wait_for

OURS = "app.kubernetes.io/part-of=sos"


def _ours(lab: Lab) -> list[str]:
    kinds = lab.kube.ctl("api-resources", "--verbs=list", "-o", "name").split()
    listable = [kind for kind in kinds if not kind.startswith(("events", "componentstatuses", "bindings"))]
    found = lab.kube.ctl("get", ",".join(listable), "-A", "-l", OURS, "-o", "name", "--ignore-not-found", timeout=180)
    return sorted(line for line in found.split() if line)


def test_uninstall_leaves_crds_and_users_objects_only(lab: Lab, pods: tuple[Lab, str]) -> None:
    workload.stop(lab.kube)
    lab.kube.helm("uninstall", "sos", "--namespace", workload.RELEASE_NAMESPACE, "--wait", "--timeout", "240s", timeout=300)
    left = wait_for(
        "our objects gone", lambda: (rest := [o for o in _ours(lab) if "customresourcedefinition" not in o]) == [] or _fail(rest), 120
    )
    assert left
    assert {item["metadata"]["name"] for item in lab.kube.items("sossites")} == {"west", "east", "core1", "core2"}
    secrets = [s["metadata"]["name"] for s in lab.kube.items("-n", workload.RELEASE_NAMESPACE, "secrets")]
    assert not [name for name in secrets if name.startswith("sos")], secrets
    for site, node in lab.nodes.items():
        links = json.loads(run("docker", "exec", node, "ip", "-j", "link"))
        names = [link["ifname"] for link in links if link["ifname"].startswith(("sos", "br-sos", "ovs"))]
        assert names == [], f"{site}: {names}"


def _fail(rest: list[str]) -> bool:
    raise LookupError(", ".join(rest))
