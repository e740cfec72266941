"""kube-router's firewall: enforces NetworkPolicies in clusters whose network plugin does not.

The image is built here from kube-router's module (scripts/kube-tools.sh), as nodes may have no access to a registry.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sos_e2e.environment import base_images, images
from sos_e2e.environment.pair import Side
from sos_e2e.run import run, say
from sos_e2e.settings import ROOT, Settings

NAME, NAMESPACE = "kube-router", "kube-system"
IMAGE = "localhost/sos-e2e-kube-router:e2e"
DOCKERFILE = """\
ARG BASE
FROM $BASE
RUN apt-get update && apt-get install -y --no-install-recommends iptables ipset iproute2 kmod && rm -rf /var/lib/apt/lists/*
COPY kube-router /usr/local/bin/kube-router
ENTRYPOINT ["/usr/local/bin/kube-router"]
"""


def build(settings: Settings) -> str:
    """Build the image unless the engine has it; return its reference."""
    if base_images.size_of(IMAGE) is not None:
        return IMAGE
    say("building kube-router, which enforces NetworkPolicies (some minutes the first time)")
    tools = ROOT / "scripts" / "kube-tools.sh"
    run(str(tools), NAME, timeout=1800)
    folder = settings.out / "kube-router-image"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(run(str(tools), "--where", NAME).strip()), folder / NAME)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    base = base_images.available(base_images.declared(images.SOURCES["agent"][0].read_text()))["BASE"]
    images.build_one(IMAGE, folder / "Dockerfile", None, {"BASE": base}, folder)
    return IMAGE


def manifests(site: str, services: str) -> list[dict[str, Any]]:
    """All objects. `site`: label of the worker. `services`: the range of the cluster's Services."""
    read = ["get", "list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["namespaces", "pods", "services", "nodes", "endpoints"], "verbs": read},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": read},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
    ]
    arguments = ["--run-router=false", "--run-service-proxy=false", "--run-firewall=true", f"--service-cluster-ip-range={services}"]
    node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    container = {
        "name": NAME,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": arguments,
        "env": [node],
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": "lock", "mountPath": "/run/xtables.lock"}],
    }
    pod = {
        "hostNetwork": True,
        "serviceAccountName": NAME,
        "nodeSelector": {"sos.network/site": site},
        "terminationGracePeriodSeconds": 2,
        "containers": [container],
        "volumes": [{"name": "lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}}],
    }
    labels = {"app": NAME}
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
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
        },
    ]


@contextlib.contextmanager
def enforced(side: Side) -> Iterator[None]:
    """Enforce NetworkPolicies at the worker of a cluster; the worker's rules are removed on exit."""
    image = build(side.settings)
    run("kind", "load", "docker-image", "--name", side.settings.cluster, "--nodes", side.worker, image, timeout=300)
    side.kube.apply(*manifests(side.name, side.services))
    try:
        side.kube.ctl("-n", NAMESPACE, "rollout", "status", f"daemonset/{NAME}", "--timeout=120s", timeout=150)
        yield
    finally:
        for kind, name in (("daemonset", NAME), ("clusterrolebinding", NAME), ("clusterrole", NAME), ("serviceaccount", NAME)):
            side.kube.ctl("-n", NAMESPACE, "delete", kind, name, "--ignore-not-found")
        clean = ("ctr", "-n", "k8s.io", "run", "--rm", "--privileged", "--net-host", image, "kube-router-cleanup")
        # It removes the policies' rules first; then, on a kernel without ipvs, it ends with an exception.
        run("docker", "exec", side.worker, *clean, "/usr/local/bin/kube-router", "--cleanup-config", timeout=120, check=False)
