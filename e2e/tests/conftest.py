"""One cluster for the session; each fixture builds on the previous fixture, in the order of an operator's work."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sos_e2e.environment import base_images, cables, cluster, cni, images
from sos_e2e.kube import Kube
from sos_e2e.observation import node_state, workload
from sos_e2e.observation.dump import dump
from sos_e2e.observation.load import TIMED_OUT, Outcome, brief
from sos_e2e.run import run, say
from sos_e2e.settings import ROOT, Settings, settings

sys.path.insert(0, str(Path(__file__).parent / "support"))  # helpers of several suites

from paired_clusters import clusters, paired, pods_of_both  # noqa: F401 - fixtures of the tests in `peers`
from published import published  # noqa: F401 - fixture of the tests in `peers` and `release`

EXAMPLE = ROOT / "examples" / "01-two-sites"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep-cluster", action="store_true", help="keep cluster and cables for inspection")
    parser.addoption("--small", action="store_true", help="one node per site, as in `make e2e SUITE=short` and `make quick-start-bridge`")
    parser.addoption("--cluster", default=None, help="name of the cluster, sos-e2e-...")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A running cluster with cables, CNI plugins and images, before SOS is installed."""

    settings: Settings
    kube: Kube
    nodes: dict[str, str]  # place -> node; the place of a site's first node has the site's name
    panel: cables.Panel
    images: dict[str, str]
    took: dict[str, float] = field(default_factory=dict)  # duration of each step in seconds


@pytest.fixture(scope="session")
def config(request: pytest.FixtureRequest) -> Settings:
    option = request.config.getoption
    return settings(keep=option("--keep-cluster"), small=option("--small"), cluster=option("--cluster"))


@pytest.fixture(scope="session")
def tools() -> None:
    """kind, kubectl and helm, taken from PATH or built from source into the cache."""
    subprocess.run([ROOT / "scripts" / "kube-tools.sh"], check=True, timeout=3600)
    cache = os.environ.get("SOS_CACHE", str(Path("~/.cache/sos").expanduser()))
    os.environ["PATH"] += f":{cache}/bin"
    for tool in ("kind", "kubectl", "helm", "docker"):
        run("which", tool)


@pytest.fixture(scope="session")
def built(config: Settings, tools: None) -> Iterator[dict[str, str]]:
    with base_images.named({base for on in images.bases().values() for base in on.values()}):
        yield images.build(config)


@pytest.fixture(scope="session")
def lab(config: Settings, built: dict[str, str]) -> Iterator[Lab]:
    (config.out / "transfers.jsonl").unlink(missing_ok=True)
    with contextlib.ExitStack() as undo:
        undo.enter_context(cluster.enough_watches(config))
        if not config.keep:
            undo.callback(cluster.delete, config)
        nodes = cluster.create(config)
        panel = undo.enter_context(cables.plugged(config, nodes, cables.figure8(nodes)))
        kube = Kube(config)
        images.load(config, built, nodes)
        kube.apply(*cni.manifests(config))
        for name in ("multus", "ovs-cni"):
            kube.ctl("-n", "kube-system", "rollout", "status", f"daemonset/{name}", "--timeout=120s", timeout=150)
        yield Lab(settings=config, kube=kube, nodes=nodes, panel=panel, images=built)


@pytest.fixture(scope="session")
def untouched(lab: Lab) -> dict[str, node_state.State]:
    """State of every node before SOS is installed."""
    return {node: node_state.look(node) for node in cluster.names(lab.settings)}


@pytest.fixture(scope="session")
def installed(lab: Lab, untouched: dict[str, node_state.State]) -> Lab:
    """`helm install sos` with the images built here."""
    say("helm install sos")
    began = time.monotonic()
    overrides = []
    for part in ("operator", "controller", "agent", "node", "ovs"):
        repository, tag = lab.images[part].rsplit(":", 1)
        overrides += [
            "--set",
            f"images.{part}.registry=",
            "--set",
            f"images.{part}.repository={repository}",
            "--set",
            f"images.{part}.tag={tag}",
        ]
    lab.kube.helm("install", "sos", str(ROOT / "charts" / "sos"), "--namespace", workload.RELEASE_NAMESPACE, "--create-namespace",
                  "--wait", "--timeout", "180s", *overrides)  # fmt: skip
    lab.took["helm install"] = time.monotonic() - began
    return lab


def upgrade(lab: Lab, *values: str) -> None:
    """`helm upgrade` with changed values, each as `a.b=c`."""
    chart = ("upgrade", "sos", str(ROOT / "charts" / "sos"), "--namespace", workload.RELEASE_NAMESPACE, "--reuse-values")
    lab.kube.helm(*chart, "--wait", "--timeout", "180s", *(argument for value in values for argument in ("--set", value)))


def unbroken(outcome: Outcome, digest: str, meanwhile: str) -> None:
    """Assert that the download is complete and no new connection failed or hung; print the outcome."""
    said = outcome.summary()
    say(f"{meanwhile}: {brief(said)}")
    assert (outcome.status, outcome.sha256) == (0, digest), said
    assert not [probe for probe in outcome.probes if probe.status], said
    assert not [probe for probe in outcome.probes if probe.status == TIMED_OUT or probe.total_s >= 8], said


@pytest.fixture(scope="session")
def sites(installed: Lab) -> Lab:
    """The example's sites, ready, without its service; each site has two nodes, or one in the small cluster."""
    say("kubectl apply: sites")
    began = time.monotonic()
    installed.kube.apply_files(EXAMPLE / "defaults.yaml", sites_file(installed))
    assert {"soscontrollers", "sossites", "sosagents"} <= installed.kube.wait_ready(timeout=240)
    installed.took["sites"] = time.monotonic() - began
    return installed


def sites_file(lab: Lab) -> Path:
    return EXAMPLE / ("sites.yaml" if lab.settings.small else "more-nodes/sites.yaml")


@pytest.fixture(scope="session")
def pods(sites: Lab) -> Iterator[tuple[Lab, str]]:
    """A client and a server pod on each node with a site's bridge, and the digest of the first server's file."""
    hosts = [host for host in workload.HOSTS if host.place in sites.nodes]
    workload.start(sites.kube, sites.images["e2e-host"], *hosts)
    yield sites, workload.digest(sites.kube)
    if not sites.settings.keep:
        workload.stop(sites.kube)


@pytest.fixture(scope="module")
def accelerated(pods: tuple[Lab, str]) -> tuple[Lab, str]:
    """The example's sites and service."""
    kube = pods[0].kube
    kube.apply_files(EXAMPLE / "sosservice.yaml")
    kube.wait_condition("sosservice/bulk", "Ready", namespace="default", timeout=60)
    assert {"soscontrollers", "sossites", "sosagents", "sosservices"} <= kube.wait_ready(timeout=120)
    return pods


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed and (lab := getattr(item, "funcargs", {}).get("lab")):
        dump(lab.kube, lab.settings, lab.nodes, item.name)
    return report
