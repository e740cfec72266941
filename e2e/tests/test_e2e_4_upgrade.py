"""`helm upgrade` to other images and values, `helm rollback`, and sites with agents of the previous version.

During each change, a download runs and new connections are opened.
"""

import json
from collections.abc import Iterator

import pytest
from conftest import Lab, unbroken, upgrade
from sos_e2e.environment import previous_version
from sos_e2e.environment.images import load
from sos_e2e.kube import Kube
from sos_e2e.observation import workload
from sos_e2e.observation.load import Load
from sos_e2e.run import run, say, wait_for
from transfer_checks import ready_again, trace

NEXT = "e2e-next"
PARTS = ("operator", "controller", "agent")
LEVEL = "debug"


def containers(kube: Kube, component: str) -> dict[str, str]:
    """Start time of each container in the running pods of a component, by pod/container."""
    found = {}
    for pod in kube.items("pods", "-n", workload.RELEASE_NAMESPACE, "-l", f"app.kubernetes.io/component={component}"):
        for status in pod["status"].get("containerStatuses", []):
            found[f"{pod['metadata']['name']}/{status['name']}"] = status["state"].get("running", {}).get("startedAt", "")
    return found


def tags(kube: Kube, component: str) -> set[str]:
    pods = kube.items("pods", "-n", workload.RELEASE_NAMESPACE, "-l", f"app.kubernetes.io/component={component}")
    alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return {container["image"].rsplit(":", 1)[1] for pod in alive for container in pod["spec"]["containers"]}


def rolled(lab: Lab, tag: str) -> None:
    """Wait until all pods of PARTS run images with this tag, and all objects are ready."""
    kube = lab.kube
    wait_for(f"pods of {tag}", lambda: all(tags(kube, part) == {tag} for part in PARTS), 240)
    ready_again(lab)


@pytest.fixture(scope="module")
def next_images(lab: Lab) -> None:
    """The same images under another tag, so that the upgrade replaces pods without any other change."""
    for node in lab.nodes.values():
        ctr = ("docker", "exec", node, "ctr", "--namespace", "k8s.io", "images")
        there = run(*ctr, "ls", "-q").split()
        for old in (lab.images[part] for part in PARTS if lab.images[part] in there):
            run(*ctr, "tag", "--force", old, f"{old.rsplit(':', 1)[0]}:{NEXT}")


@pytest.mark.parametrize("way", ["upgrade", "rollback"])
def test_a_download_survives_new_pods_of_all_parts_but_switches(
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
    unbroken(under_way.finish(), accelerated[1], way)
    assert containers(kube, "node") == switches, "Open vSwitch was restarted although none of its settings changed"
    assert trace(lab, workload.CLIENT, workload.SERVER) == "accelerated"


OLDER = "sos-e2e-older"
"""A SosAgent, and the label of SosSites that are served by it instead of the pool `default`."""
FIRST_RULE = "defaults.agent.spec.siteSelector.matchExpressions[0]"


@pytest.fixture(scope="module")
def older_pool(lab: Lab, accelerated: tuple[Lab, str]) -> Iterator[str]:
    """Agent pool of the previous version, initially without sites."""
    image = previous_version.build_agents(lab.settings, lab.images)
    load(lab.settings, {"agent": image}, lab.nodes, cni=False)
    spec = {"siteSelector": {"matchLabels": {OLDER: "yes"}}, "image": image}
    lab.kube.apply({"apiVersion": "sos.network/v1alpha1", "kind": "SosAgent", "metadata": {"name": OLDER}, "spec": spec})
    upgrade(lab, f"{FIRST_RULE}.key={OLDER}", f"{FIRST_RULE}.operator=DoesNotExist")
    yield image
    lab.kube.ctl("label", "sossite", "west", "east", f"{OLDER}-")
    lab.kube.ctl("delete", "sosagent", OLDER)
    upgrade(lab, "defaults.agent.spec.siteSelector=null")
    agents_are(lab, {"west": lab.images["agent"], "east": lab.images["agent"]})


def agents_are(lab: Lab, expected: dict[str, str]) -> None:
    """Wait until the agents of each site run the expected image, and all objects are ready."""

    def there() -> bool:
        pods = lab.kube.items("pods", "-n", workload.RELEASE_NAMESPACE, "-l", "app.kubernetes.io/component=agent")
        found: dict[str, set[str]] = {}
        for pod in pods:
            found.setdefault(pod["metadata"]["labels"]["sos.network/site"], set()).add(pod["spec"]["containers"][0]["image"])
        if found != {site: {image} for site, image in expected.items()}:
            raise LookupError(str(found))
        return True

    wait_for("agents of both versions", there, 180)
    for site in expected:
        lab.kube.wait_condition(f"sossite/{site}", "Ready", timeout=120)
    lab.kube.wait_condition("sosservice/bulk", "Ready", namespace="default", timeout=60)


@pytest.mark.parametrize("older", ["east", "west"])
def test_agents_of_this_and_the_previous_version_interoperate(older: str, lab: Lab, older_pool: str, accelerated: tuple[Lab, str]) -> None:
    """Upgrade one site after the other: first the server's site has the previous version, then the client's site."""
    newer = {"east": "west", "west": "east"}[older]
    under_way = Load(lab.kube)
    lab.kube.ctl("label", "sossite", newer, f"{OLDER}-")
    lab.kube.ctl("label", "sossite", older, f"{OLDER}=yes")
    agents_are(lab, {older: older_pool, newer: lab.images["agent"]})
    unbroken(under_way.finish(), accelerated[1], f"agents at {older} replaced by those of the version before")
    assert trace(lab, workload.CLIENT, workload.SERVER) == "accelerated"
    plain, fast = (workload.download(lab.kube, port, seconds=seconds, file=workload.LONG) for port, seconds in ((8080, 30), (80, 120)))
    say(f"agents at {older} of the version before: plain {plain.mbps:.1f} Mbit/s, with the service {fast.mbps:.1f} Mbit/s")
    assert (fast.exit_code, fast.sha256) == (0, workload.digest(lab.kube, file=workload.LONG))
    assert fast.mbps > 1.5 * plain.mbps
    unbroken(Load(lab.kube).finish(), accelerated[1], f"{older} behind")
