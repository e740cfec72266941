"""Shared infrastructure: a switch outside the cluster that belongs to a site, and a second controller of the same switches."""

import json
from collections.abc import Iterator

import pytest
import yaml
from conftest import Lab, unbroken, upgrade
from sos_e2e.observation import external_switch, workload
from sos_e2e.observation.load import Load
from sos_e2e.run import run, say, wait_for
from sos_e2e.settings import ROOT
from third_site import join, leave
from transfer_checks import fast_and_plain, trace

SERVER = workload.HOSTS[1]
SLICES = ROOT / "examples" / "05-slices"


@pytest.fixture
def open_controller(lab: Lab, accelerated: tuple[Lab, str]) -> Iterator[str]:
    """Controller endpoint for switches outside the cluster: a NodePort."""
    upgrade(lab, "defaults.controller.spec.service.type=NodePort")
    service = ("-n", workload.RELEASE_NAMESPACE, "service/sos-openflow-default")
    port = wait_for("a port of the nodes", lambda: lab.kube.get(*service)["spec"]["ports"][0]["nodePort"], 60)
    yield f"{address_of(lab, 'core2')}:{port}"
    upgrade(lab, "defaults.controller.spec.service.type=ClusterIP")


def address_of(lab: Lab, place: str) -> str:
    addresses = lab.kube.get("node", lab.nodes[place])["status"]["addresses"]
    return str(next(each["address"] for each in addresses if each["type"] == "InternalIP"))


@pytest.fixture
def outer_host(lab: Lab, open_controller: str) -> Iterator[str]:
    """Container that acts as a host on an external switch, which is inserted between the third site's node and the core."""
    with external_switch.switch(lab.settings, lab.panel, lab.images, open_controller) as container:
        say(f"the third site joined with a switch outside the cluster in {join(lab, 'external-switch'):.0f} s")
        yield container
        leave(lab)


def test_hosts_behind_a_switch_outside_the_cluster_are_accelerated(lab: Lab, outer_host: str) -> None:
    site = lab.kube.get("sossite/south")["status"]
    assert (site["datapathsConnected"], site["agentsRegistered"]) == ("2/2", "1/1")
    pinged = run("docker", "exec", outer_host, "ping", "-c", "3", "-i", "0.5", "-W", "3", workload.SERVER)
    assert "bytes from" in pinged, "plain traffic passes the switch, although core2 is another path to its destination"

    def fetch(port: int, seconds: float) -> workload.Transfer:
        return external_switch.download(outer_host, workload.SERVER, port, seconds)

    assert trace(lab, external_switch.HOST.address, workload.SERVER) == "accelerated"
    # One path, with one more switch than between pods. If the first losses come late, plain TCP reaches a quarter of the accelerated rate,
    # so the test requires only a ratio of 3.
    fast_and_plain(lab, external_switch.HOST, SERVER, "from a host behind a switch outside the cluster", fetch, at_least=3)


@pytest.fixture(scope="module")
def research(lab: Lab, accelerated: tuple[Lab, str]) -> Iterator[str]:
    """A second controller for all sites, with a service of its own (example 05). Both are added during a download through a service of the
    first controller, which must continue."""
    kube, under_way = lab.kube, Load(lab.kube)
    sites = [obj for obj in yaml.safe_load_all((SLICES / "sites.yaml").read_text()) if obj]
    kube.apply_files(SLICES / "defaults.yaml")
    for site in sites:
        have(lab, site["metadata"]["name"], site["spec"]["controllers"])
    kube.apply_files(SLICES / "sosservices.yaml")
    kube.wait_condition("sosservice/archive", "Ready", namespace="default", timeout=120)
    kube.wait_ready(timeout=120)
    unbroken(under_way.finish(), accelerated[1], "a second controller")
    yield "research"
    kube.ctl("-n", "default", "delete", "sosservice", "archive")
    for site in sites:
        have(lab, site["metadata"]["name"], [{"name": "default"}])
    kube.ctl("delete", "soscontroller", "research", timeout=150)
    kube.wait_ready(timeout=120)


def have(lab: Lab, site: str, controllers: list[dict[str, str]]) -> None:
    lab.kube.ctl("patch", "sossite", site, "--type=merge", "-p", json.dumps({"spec": {"controllers": controllers}}))


def test_a_second_controller_serves_its_own_services(lab: Lab, research: str) -> None:
    assert trace(lab, workload.CLIENT, workload.SERVER, 6000, "--controller", research) == "accelerated"
    assert trace(lab, workload.CLIENT, workload.SERVER, 6000) == "plain", "the first controller does not have this service"
    for port, whose in ((6000, "second"), (80, "first")):
        fast_and_plain(lab, workload.HOSTS[0], SERVER, f"two controllers, a service of the {whose}", port=port, at_least=2)


def test_loss_of_the_second_controller_does_not_affect_the_first(lab: Lab, accelerated: tuple[Lab, str], research: str) -> None:
    under_way = Load(lab.kube)
    which = ("-n", workload.RELEASE_NAMESPACE, "-l", "app.kubernetes.io/component=controller,sos.network/controller=research")
    (pod,) = lab.kube.items("pods", *which)
    lab.kube.ctl("delete", "pod", *which, "--grace-period=0", "--force", "--wait=false")
    wait_for(
        "a new controller pod", lambda: [p for p in lab.kube.items("pods", *which) if p["metadata"]["uid"] != pod["metadata"]["uid"]], 60
    )
    unbroken(under_way.finish(), accelerated[1], "the second controller killed")
    lab.kube.wait_condition("soscontroller/research", "Ready", timeout=120)
    lab.kube.wait_condition("sosservice/archive", "Ready", namespace="default", timeout=60)
    assert trace(lab, workload.CLIENT, workload.SERVER, 6000, "--controller", research) == "accelerated"
