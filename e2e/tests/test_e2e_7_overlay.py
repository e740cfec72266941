"""The same nodes, connected by an overlay instead of cables: example 02, with its tunnels over emulated cables.

             far0, far1: 80 ms, 200 Mbit/s, 0.01 %
clemson  west ==================================== east  cambridge      cables that carry the tunnels
         west2                                     east2
             \\\\=== hub: 30 ms, the same ==== chicago ---//
"""

import contextlib
import itertools
from collections.abc import Iterator

import pytest
from conftest import Lab, sites_file
from sos_e2e.environment.cables import QUICK, SLOW, Cable, route
from sos_e2e.observation import workload
from sos_e2e.settings import ROOT
from transfer_checks import attach, both_carried, fast_and_plain, received, trace

EXAMPLE = ROOT / "examples" / "02-overlay"
SITES = {"west": "clemson", "west2": "clemson", "east": "cambridge", "east2": "cambridge", "core1": "chicago"}
CLIENT = workload.Host(name="client-clemson", place="west", site="clemson", address="10.1.0.11", bits=16)
SERVER = workload.Host(name="server-cambridge", place="east", site="cambridge", address="10.1.128.11", bits=16, serves=True)
# A service with both paths simultaneously, over a port that the example's own service does not cover.
BOTH = {
    "apiVersion": "sos.network/v1alpha1",
    "kind": "SosService",
    "metadata": {"name": "both-paths", "namespace": "science"},
    "spec": {
        "from": {"site": "clemson"},
        "to": {"site": "cambridge"},
        "ports": [{"port": 80}],
        "paths": {"mode": "Disjoint", "max": 2},
    },
}


def underlay() -> list[Cable]:
    """Cables for the tunnels, in place of the engine's network without delay and loss."""
    wests, easts = ("west", "west2"), ("east", "east2")
    far = [Cable(a=(a, f"far{j}"), b=(b, f"far{i}"), wan=SLOW) for (i, a), (j, b) in itertools.product(enumerate(wests), enumerate(easts))]
    near = [Cable(a=(a, "hub"), b=("core1", f"hub{number}"), wan=QUICK) for number, a in enumerate(wests)]
    return [*far, *near, *(Cable(a=(b, "hub"), b=("core1", f"hub{number}")) for number, b in enumerate(easts, start=2))]


@contextlib.contextmanager
def cabled(lab: Lab) -> Iterator[None]:
    cables = underlay()
    lab.panel.plug(*cables)
    for cable in cables:
        route(cable, lab.nodes)
    try:
        yield
    finally:
        lab.panel.unplug(*cables)


def relabel(lab: Lab, sites: dict[str, str]) -> None:
    for place, site in sites.items():
        lab.kube.ctl("label", "node", lab.nodes[place], f"sos.network/site={site}", "--overwrite")


def take_down(lab: Lab, *sites: str) -> None:
    """Delete pods, then services, then sites, as an operator does by hand."""
    workload.stop(lab.kube)
    lab.kube.ctl("delete", "sosservices", "-A", "--all")
    lab.kube.ctl("delete", "sossite", *sites, timeout=180)


@pytest.fixture(scope="module")
def overlay(lab: Lab, pods: tuple[Lab, str]) -> Iterator[None]:
    """Example 02 in place of example 01, which is restored afterwards."""
    kube = lab.kube
    take_down(lab, "west", "east", "core1", "core2")
    with cabled(lab):
        relabel(lab, SITES)
        kube.apply_files(*(EXAMPLE / f"{name}.yaml" for name in ("namespace", "defaults", "sites", "sosservice")))
        kube.wait_ready(timeout=240)
        workload.start(kube, lab.images["e2e-host"], CLIENT, SERVER)
        kube.apply(BOTH)
        kube.wait_condition("sosservice/both-paths", "Ready", namespace="science", timeout=60)
        yield
        take_down(lab, *set(SITES.values()))
    relabel(lab, {place: place.rstrip("2") if place != "core1" else place for place in SITES})
    kube.apply_files(sites_file(lab))
    kube.wait_ready(timeout=240)
    workload.start(kube, lab.images["e2e-host"], *workload.HOSTS)


def test_tunnels_join_all_nodes_of_all_sites(lab: Lab, overlay: None) -> None:
    tunnels = {place: [name for name in received(lab, place) if name.startswith("sosvx")] for place in SITES}
    assert {len(names) for names in tunnels.values()} == {len(SITES) - 1}, tunnels
    assert lab.kube.get("sossite/clemson")["status"]["mtu"] == 1450
    assert trace(lab, CLIENT.address, SERVER.address, 443) == "accelerated", "the example's own service accelerates 90 percent"


@pytest.fixture(params=["Host", "Multus"])
def way(lab: Lab, overlay: None, request: pytest.FixtureRequest) -> Iterator[str]:
    """Attachment of agents during the test; Host before and after."""
    for how in dict.fromkeys((request.param, "Host")):
        if how != "Host" or request.param != "Host":
            attach(lab, how, "clemson", "cambridge")
            lab.kube.wait_condition("sosservice/both-paths", "Ready", namespace="science", timeout=60)
        if how == request.param:
            yield how


def test_a_transfer_over_tunnels_is_fast_and_uses_both_paths(lab: Lab, overlay: None, way: str) -> None:
    before = received(lab, "west")
    workload.download(lab.kube, 80, seconds=120, ends=(CLIENT, SERVER))
    after = received(lab, "west")
    # A second path arrives through a different tunnel: from the client's neighbor node, from the server's neighbor node, or from chicago.
    both_carried(before, after, *sorted(name for name in after if name.startswith("sosvx")))
    fast_and_plain(lab, CLIENT, SERVER, f"overlay, both paths, agents attached by {way}")
