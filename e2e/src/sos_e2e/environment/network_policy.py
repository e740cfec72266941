"""kube-router's firewall: enforces NetworkPolicies in clusters whose network plugin does not."""

import contextlib
from collections.abc import Iterator
from typing import Any

from sos_e2e.environment import kube_router
from sos_e2e.environment.kube_router import IMAGE, NAME, NAMESPACE
from sos_e2e.environment.pair import Side
from sos_e2e.run import run, say


def manifests(site: str, services: str) -> list[dict[str, Any]]:
    """All objects. `site`: label of the worker. `services`: the range of the cluster's Services."""
    arguments = ["--run-router=false", "--run-service-proxy=false", "--run-firewall=true", f"--service-cluster-ip-range={services}"]
    pod = {"nodeSelector": {"sos.network/site": site}, "containers": [kube_router.container(arguments)]}
    return kube_router.objects(pod)


@contextlib.contextmanager
def enforced(side: Side) -> Iterator[None]:
    """Enforce NetworkPolicies at the worker of a cluster; the worker's rules are removed on exit."""
    if side.settings.network_plugin:
        say(f"cluster {side.name}: {side.settings.network_plugin} enforces NetworkPolicies itself")
        yield
        return
    kube_router.load(side.settings, side.worker)
    side.kube.apply(*manifests(side.name, side.services))
    try:
        side.kube.ctl("-n", NAMESPACE, "rollout", "status", f"daemonset/{NAME}", "--timeout=120s", timeout=150)
        yield
    finally:
        for kind, name in (("daemonset", NAME), ("clusterrolebinding", NAME), ("clusterrole", NAME), ("serviceaccount", NAME)):
            side.kube.ctl("-n", NAMESPACE, "delete", kind, name, "--ignore-not-found")
        clean = ("ctr", "-n", "k8s.io", "run", "--rm", "--privileged", "--net-host", IMAGE, "kube-router-cleanup")
        # It removes the policies' rules first; then, on a kernel without ipvs, it ends with an exception.
        run("docker", "exec", side.worker, *clean, "/usr/local/bin/kube-router", "--cleanup-config", timeout=120, check=False)
