"""Two clusters with a link between them, and what the tests of SUITE=peers ask of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sos_e2e.environment.pair import Side
from sos_e2e.observation import node_state, workload
from sos_e2e.run import run, wait_for
from sos_e2e.settings import ROOT

EXAMPLE = ROOT / "examples" / "09-two-clusters"
CHART = ROOT / "charts" / "sos"
NAMESPACE = "default"
COVERED, PLAIN = 80, 8080
HUNG_S = 5.0
"""Maximum duration of a new connection during a fault: a dropped SYN is retransmitted after one second, and again two seconds later."""
METRICS_PORT = 9465
POLICY_S = 45.0
"""Time limit until a changed policy affects new connections: agents use the result of a check of the plain path for 30 s
(docs/adr/0059)."""
STAYS = ("/var/lib/sos", "/run/sos")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two clusters, and the seconds that each step took."""

    sides: tuple[Side, Side]
    took: dict[str, float]
    untouched: dict[str, node_state.State]
    """State of each worker and of each host's network namespace before SOS was installed."""


def states(clusters: Pair) -> dict[str, node_state.State]:
    found = {side.worker: node_state.look(side.worker) for side in clusters.sides}
    return found | {f"host of {side.name}": node_state.look_into_pod(side.worker, address(side)) for side in clusters.sides}


def left_behind(clusters: Pair) -> dict[str, list[str]]:
    """Differences from the state before SOS; the folders named in docs/install.md are left out."""
    now = states(clusters)
    found = {name: node_state.differences(before, now[name], STAYS) for name, before in clusters.untouched.items()}
    return {name: said for name, said in found.items() if said}


def accepted(side: Side) -> int:
    """Connections that the agent of a side has accepted since its start."""
    page = run("docker", "exec", side.worker, "curl", "-sS", "-m", "5", f"http://127.0.0.1:{METRICS_PORT}/metrics")
    found = re.search(r"^sos_agent_accepted_total (\d+)$", page, flags=re.MULTILINE)
    assert found is not None, page
    return int(found[1])


def is_accelerated(client: Side, server: Side, to: str = "") -> bool:
    """True if the client's agent has accepted a new connection to the covered port, False if the connection was plain. `to`: the server's
    address; default: that of its pod."""
    before = accepted(client)
    got = download(client, server, COVERED, 20, f"{workload.FILE}.sha256", to)
    assert got.exit_code == 0, got
    return accepted(client) > before


def release(side: Side, chart: Path, built: Mapping[str, str], *more: str) -> None:
    """Upgrade the release to a chart with these images, and wait until its pods are ready."""
    overrides = []
    for part in ("operator", "controller", "agent"):
        repository, tag = built[part].rsplit(":", 1)
        for key, value in (("registry", ""), ("repository", repository), ("tag", tag)):
            overrides += ["--set", f"images.{part}.{key}={value}"]
    where = ("--namespace", workload.RELEASE_NAMESPACE, "--wait", "--timeout", "180s")
    side.kube.helm("upgrade", "sos", str(chart), *where, *more, *overrides)


def ordinary_pod(name: str, node: Mapping[str, str], image: str) -> dict[str, Any]:
    """A pod of the cluster network with curl and a web server, on the node with these labels."""
    main = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", workload.SERVE]}
    # Hosts use cubic by default, but a new namespace of this kernel may start with another algorithm.
    cubic = {
        "name": "default-congestion-control",
        "image": image,
        "command": ["sh", "-c", "ip route change $(ip route show default) congctl cubic"],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
    }
    spec = {"nodeSelector": node, "terminationGracePeriodSeconds": 1, "initContainers": [cubic], "containers": [main]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def service(source: str, target: str) -> dict[str, Any]:
    spec = {"from": {"site": source}, "to": {"site": target}, "ports": [{"port": COVERED}]}
    meta = {"name": f"{source}-to-{target}", "namespace": NAMESPACE}
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosService", "metadata": meta, "spec": spec}


def address(side: Side) -> str:
    return str(side.kube.get("-n", NAMESPACE, "pod", "host")["status"]["podIP"])


def download(client: Side, server: Side, port: int, seconds: float, file: str = workload.LONG, to: str = "") -> workload.Transfer:
    script = workload.download_script(to or address(server), port, seconds, file)
    return workload.parse_download(client.kube.exec(NAMESPACE, "host", "sh", "-c", script, timeout=seconds + 60))


def recover(paired: Pair, name: str) -> None:
    """Wait until both clusters accelerate again."""
    ready(paired)
    wait_for(f"acceleration after {name}", lambda: is_accelerated(*paired.sides), 60)


def ready(paired: Pair) -> None:
    a, b = paired.sides
    for side, other in ((a, "b"), (b, "a")):
        side.kube.wait_condition(f"sospeer/{other}", "Ready", timeout=120)
        side.kube.wait_condition("sosservice/a-to-b", "Ready", namespace=NAMESPACE, timeout=120)
