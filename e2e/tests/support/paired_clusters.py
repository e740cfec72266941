"""Two clusters for the session; each fixture builds on the previous fixture."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from published import RELEASE, Published
from sos_e2e import pages
from sos_e2e.environment import pair
from sos_e2e.observation import workload
from sos_e2e.run import wait_for
from sos_e2e.settings import Settings
from two_clusters import NAMESPACE, Pair, is_accelerated, ordinary_pod, states

LINES_S = 600


@pytest.fixture(scope="session")
def clusters(config: Settings, built: dict[str, str], published: Published) -> Iterator[Pair]:
    with pair.created(config, published.registry, built["e2e-host"]) as sides:
        yield Pair(sides=sides, took={}, untouched={})


@pytest.fixture(scope="session")
def pods_of_both(clusters: Pair, built: dict[str, str]) -> Pair:
    """A pod with curl and a web server in each cluster."""
    for side in clusters.sides:
        side.kube.apply(ordinary_pod("host", {"sos.network/site": side.name}, built["e2e-host"]))
    for side in clusters.sides:
        side.kube.ctl("-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/host", "--timeout=120s", timeout=150)
        wait_for("the server's files", lambda kube=side.kube: workload.digest(kube, "host", workload.LONG), 120)
    clusters.untouched.update(states(clusters))
    return clusters


@pytest.fixture(scope="session")
def paired(pods_of_both: Pair, published: Published) -> Pair:
    """SOS in both clusters, paired, with one service in each direction, by the lines of docs/quick-start.md."""
    a, b = pods_of_both.sides
    both = f"{a.settings.kubeconfig}:{b.settings.kubeconfig}"
    began = time.monotonic()
    published.reader(both, RELEASE).run(pages.block("quick-start-install"), timeout=LINES_S)
    pods_of_both.took["lines of docs/quick-start.md from helm install on"] = time.monotonic() - began
    began = time.monotonic()
    for side, other in ((a, "b"), (b, "a")):
        side.kube.wait_condition(f"sospeer/{other}", "Ready", timeout=120)
        for name in ("a-to-b", "b-to-a"):
            side.kube.wait_condition(f"sosservice/{name}", "Ready", namespace=NAMESPACE, timeout=120)
    pods_of_both.took["peers and services ready"] = time.monotonic() - began
    began = time.monotonic()
    wait_for("an accelerated download", lambda: is_accelerated(a, b), 60)
    pods_of_both.took["first accelerated download"] = time.monotonic() - began
    return pods_of_both
