"""Two clusters for the session; each fixture builds on the previous fixture."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from sos_e2e.environment import pair
from sos_e2e.environment.pair import Side
from sos_e2e.observation import workload
from sos_e2e.run import wait_for
from sos_e2e.settings import Settings
from two_clusters import EXAMPLE, NAMESPACE, Pair, install, is_accelerated, states


@pytest.fixture(scope="session")
def clusters(config: Settings, built: dict[str, str]) -> Iterator[Pair]:
    with pair.created(config, built) as sides:
        yield Pair(sides=sides, took={}, untouched={})


@pytest.fixture(scope="session")
def pods_of_both(clusters: Pair, built: dict[str, str]) -> Pair:
    """A pod with curl and a web server in each cluster."""
    for side in clusters.sides:
        side.kube.apply(_pod(side, built["e2e-host"]))
    for side in clusters.sides:
        side.kube.ctl("-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/host", "--timeout=120s", timeout=150)
        wait_for("the server's files", lambda kube=side.kube: workload.digest(kube, "host", workload.LONG), 120)
    clusters.untouched.update(states(clusters))
    return clusters


def _pod(side: Side, image: str) -> dict[str, object]:
    main = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", workload.SERVE]}
    # Hosts use cubic by default, but a new namespace of this kernel may start with another algorithm.
    cubic = {
        "name": "default-congestion-control",
        "image": image,
        "command": ["sh", "-c", "ip route change $(ip route show default) congctl cubic"],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
    }
    spec = {"nodeSelector": {"sos.network/site": side.name}, "terminationGracePeriodSeconds": 1, "containers": [main]}
    spec |= {"initContainers": [cubic]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "host", "namespace": NAMESPACE}, "spec": spec}


@pytest.fixture(scope="session")
def paired(pods_of_both: Pair, built: dict[str, str]) -> Pair:
    """SOS in both clusters, paired, with one service in each direction."""
    began = time.monotonic()
    for side in pods_of_both.sides:
        install(side, built)
    pods_of_both.took["helm install, twice"] = time.monotonic() - began
    began = time.monotonic()
    for side in pods_of_both.sides:
        side.kube.ctl("apply", "-f", str(EXAMPLE / f"site-{side.name}.yaml"))
    for side in pods_of_both.sides:
        side.kube.wait_condition(f"sossite/{side.name}", "Ready", timeout=120)
    pods_of_both.took["sites"] = time.monotonic() - began
    began = time.monotonic()
    a, b = pods_of_both.sides
    invitation = a.kube.plugin("peer", "invite", "b", "--as", "a", "--prefix", b.network)
    b.kube.ctl("apply", "-f", "-", stdin=invitation)
    for side in pods_of_both.sides:
        side.kube.ctl("apply", "-f", str(EXAMPLE / "sosservice.yaml"))
    for side, other in ((a, "b"), (b, "a")):
        side.kube.wait_condition(f"sospeer/{other}", "Ready", timeout=120)
        for name in ("a-to-b", "b-to-a"):
            side.kube.wait_condition(f"sosservice/{name}", "Ready", namespace=NAMESPACE, timeout=120)
    pods_of_both.took["peers and services"] = time.monotonic() - began
    began = time.monotonic()
    wait_for("an accelerated download", lambda: is_accelerated(a, b), 60)
    pods_of_both.took["first accelerated download"] = time.monotonic() - began
    return pods_of_both
