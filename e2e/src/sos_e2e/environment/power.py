"""Stop and start all programs of a cluster, as a power failure does; its nodes keep their disks and cables."""

from __future__ import annotations

import subprocess

from sos_e2e.run import run, say, wait_for
from sos_e2e.settings import Settings

STOP_S = 60.0
START_S = 240.0


def stop(settings: Settings) -> None:
    """Stop the kubelet and kill all pods of each node, the API server's node last."""
    for node in _nodes(settings):
        run("docker", "exec", node, "systemctl", "stop", "kubelet", timeout=STOP_S)
        # The runtime kills the containers of a removed pod without a grace period.
        run("docker", "exec", node, "crictl", "rmp", "--force", "--all", timeout=STOP_S)


def start(settings: Settings) -> None:
    """Start the kubelets, and wait until the API server and all nodes are ready."""
    for node in reversed(_nodes(settings)):
        run("docker", "exec", node, "systemctl", "start", "kubelet", timeout=STOP_S)
    wait_for(f"the API server of cluster {settings.cluster}", lambda: _serves(settings), START_S)
    wait = ("kubectl", "--kubeconfig", settings.kubeconfig, "wait", "--for=condition=Ready", "nodes", "--all", f"--timeout={START_S:.0f}s")
    run(*map(str, wait), timeout=START_S + 30)
    say(f"cluster {settings.cluster} has started again")


def _nodes(settings: Settings) -> list[str]:
    """Return the cluster's nodes, workers first."""
    found = run("kind", "get", "nodes", "--name", settings.cluster).split()
    return sorted(found, key=lambda name: "control-plane" in name)


def _serves(settings: Settings) -> bool:
    call = ["kubectl", "--kubeconfig", str(settings.kubeconfig), "get", "--raw", "/readyz", "--request-timeout=2s"]
    return subprocess.run(call, capture_output=True, timeout=10, check=False).returncode == 0
