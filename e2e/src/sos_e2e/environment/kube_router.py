"""kube-router as a DaemonSet: its image, and the objects that each of its two uses needs (`network_plugin`, `network_policy`).

The image is built here from kube-router's module (scripts/kube-tools.sh), as nodes may have no access to a registry.
"""

import re
import shutil
from pathlib import Path
from typing import Any

from sos_e2e.environment import base_images, images
from sos_e2e.run import run, say
from sos_e2e.settings import ROOT, Settings

NAME, NAMESPACE = "kube-router", "kube-system"
IMAGE = "localhost/sos-e2e-kube-router:e2e"
TOOLS = ROOT / "scripts" / "kube-tools.sh"
DOCKERFILE = """\
ARG BASE
FROM $BASE
RUN apt-get update && apt-get install -y --no-install-recommends iptables ipset iproute2 kmod && rm -rf /var/lib/apt/lists/*
COPY kube-router /usr/local/bin/kube-router
ENTRYPOINT ["/usr/local/bin/kube-router"]
"""


def tool(name: str) -> Path:
    """Build a program unless it is there; return its path."""
    run(TOOLS, name, timeout=1800)
    return Path(run(TOOLS, "--where", name).strip())


def version() -> str:
    """Version of kube-router that is built."""
    found = re.search(r"^readonly KUBE_ROUTER_VERSION=(\S+)", TOOLS.read_text(), re.MULTILINE)
    assert found
    return found[1]


def build(settings: Settings) -> str:
    """Build the image unless the engine has it; return its reference."""
    if base_images.size_of(IMAGE) is not None:
        return IMAGE
    say("building kube-router (some minutes the first time)")
    folder = settings.out / "kube-router-image"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(tool(NAME), folder / NAME)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    base = base_images.available(base_images.declared(images.SOURCES["agent"][0].read_text()))["BASE"]
    images.build_one(IMAGE, folder / "Dockerfile", None, {"BASE": base}, folder)
    return IMAGE


def load(settings: Settings, *nodes: str) -> None:
    """Copy the image into nodes."""
    run("kind", "load", "docker-image", "--name", settings.cluster, "--nodes", ",".join(nodes), build(settings), timeout=300)


def container(arguments: list[str], **more: Any) -> dict[str, Any]:
    """Return the container of a pod of kube-router. `more`: fields in addition; `volumeMounts` are added to its own."""
    node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    return {
        "name": NAME,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": arguments,
        "env": [node, *more.get("env", [])],
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": "lock", "mountPath": "/run/xtables.lock"}, *more.get("volumeMounts", [])],
    }


def objects(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all objects of the DaemonSet. `pod`: fields of its pods in addition; `volumes` are added to its own."""
    labels = {"app": NAME}
    lock = {"name": "lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}}
    common = {"hostNetwork": True, "serviceAccountName": NAME, "terminationGracePeriodSeconds": 2}
    spec = common | pod | {"volumes": [lock, *pod.get("volumes", [])]}
    return [
        *_rights(),
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
        },
    ]


def _rights() -> list[dict[str, Any]]:
    read = ["get", "list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["namespaces", "pods", "services", "nodes", "endpoints"], "verbs": read},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": read},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
    ]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": NAMESPACE}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": rules},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        },
    ]
