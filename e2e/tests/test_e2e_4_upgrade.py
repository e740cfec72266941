"""`helm upgrade` to other images and values and `helm rollback`, while a download runs and new connections are opened."""

import json

import pytest
from conftest import Lab, unbroken, upgrade
from sos_e2e import workload
from sos_e2e.images import load
from sos_e2e.kube import Kube
from sos_e2e.load import Load
from sos_e2e.run import run, say, wait_for

NEXT = "e2e-next"
PARTS = ("operator", "controller", "agent")
LEVEL = "debug"


def containers(kube: Kube, component: str) -> dict[str, str]:
    """Started at, by pod/container, of all running pods of a component."""
    found = {}
    for pod in kube.items("pods", "-n", workload.RELEASE_NAMESPACE, "-l", f"app.kubernetes.io/component={component}"):
        for status in pod["status"].get("containerStatuses", []):
            found[f"{pod['metadata']['name']}/{status['name']}"] = status["state"].get("running", {}).get("startedAt", "")
    return found


def images(kube: Kube, component: str) -> set[str]:
    pods = kube.items("pods", "-n", workload.RELEASE_NAMESPACE, "-l", f"app.kubernetes.io/component={component}")
    alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return {container["image"].rsplit(":", 1)[1] for pod in alive for container in pod["spec"]["containers"]}


def rolled(lab: Lab, tag: str) -> None:
    """All pods of the parts that changed run the images of `tag`, and all is ready."""
    kube = lab.kube
    wait_for(f"pods of {tag}", lambda: all(images(kube, part) == {tag} for part in PARTS), 240)
    kube.wait_condition("soscontroller/default", "Ready", timeout=120)
    for site in ("west", "east", "core1", "core2"):
        kube.wait_condition(f"sossite/{site}", "Ready", timeout=120)
    kube.wait_condition("sosservice/bulk", "Ready", namespace="default", timeout=60)


@pytest.fixture(scope="module")
def next_images(lab: Lab) -> None:
    """The same images under another tag: what changes is that pods have to be replaced."""
    renamed = {}
    for part in PARTS:
        old = lab.images[part]
        renamed[part] = f"{old.rsplit(':', 1)[0]}:{NEXT}"
        run("docker", "tag", old, renamed[part])
    load(lab.settings, renamed, lab.nodes)


@pytest.mark.parametrize("way", ["upgrade", "rollback"])
def test_a_download_outlives_new_pods_of_everything_but_the_switches(
    way: str, lab: Lab, next_images: None, accelerated: tuple[Lab, str]
) -> None:
    kube, release = lab.kube, ("sos", "--namespace", workload.RELEASE_NAMESPACE)
    switches = containers(kube, "node")
    under_way = Load(kube)
    if way == "upgrade":
        upgrade(lab, f"dataPlane.logLevel={LEVEL}", *(f"images.{part}.tag={NEXT}" for part in PARTS))
    else:
        revisions = json.loads(kube.helm("history", *release, "-o", "json"))
        kube.helm("rollback", release[0], str(revisions[-2]["revision"]), *release[1:], "--wait", "--timeout", "180s")
    rolled(lab, NEXT if way == "upgrade" else lab.settings.tag)
    said = unbroken(under_way.finish(), accelerated[1])
    say(f"{way}: {json.dumps({k: v for k, v in said.items() if k != 'failures'})}")
    assert containers(kube, "node") == switches, "Open vSwitch was restarted although nothing of it changed"
    trace = json.loads(kube.plugin("trace", workload.CLIENT, workload.SERVER, "80", "-o", "json", check=False))
    assert trace["outcome"] == "accelerated"
