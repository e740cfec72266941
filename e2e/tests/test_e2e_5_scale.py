"""Many pods and services, a service that moves to another namespace, a site that joins and leaves, and key rotation.

A download runs and new connections are opened during all changes.
"""

import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import EXAMPLE, Lab, unbroken, upgrade
from sos_e2e.observation import workload
from sos_e2e.observation.load import Load
from sos_e2e.run import run, say, wait_for
from third_site import SOUTH, join, leave
from transfer_checks import agents, fast_and_plain, right, trace

SERVICES = 200
FIRST_PORT = 20_000
ALL_READY_S = 60.0
"""Time limit on two cores that also run the cluster; the actual time is printed."""
LABEL = "sos-e2e-many"
OTHER_NAMESPACE = "sos-e2e-other"
OVERLAP_S = 20  # keyOverlapSeconds, instead of 180: the operator annotates pods, so that the kubelet updates their Secrets within seconds


def service(name: str, namespace: str, port: int) -> dict[str, Any]:
    spec = {"from": {"site": "west"}, "to": {"site": "east"}, "ports": [{"port": port}]}
    metadata = {"name": name, "namespace": namespace, "labels": {LABEL: "yes"}}
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosService", "metadata": metadata, "spec": spec}


def ready(lab: Lab) -> int:
    """Number of the test's services with the condition Ready."""
    found = lab.kube.items("sosservices", "-n", "default", "-l", LABEL)
    conditions = [c for obj in found for c in obj.get("status", {}).get("conditions", []) if c["type"] == "Ready"]
    return sum(condition["status"] == "True" for condition in conditions)


CLIENTS = tuple(host for host in workload.HOSTS if not host.serves)
SERVERS = tuple(host for host in workload.HOSTS if host.serves)


def test_pods_at_every_node_reach_each_other(lab: Lab, accelerated: tuple[Lab, str]) -> None:
    """Concurrent downloads of each client from each server, on four nodes at two sites; and a download within a site, without agents."""
    pairs = list(itertools.product(CLIENTS, SERVERS))

    def fetch(pair: tuple[workload.Host, workload.Host]) -> workload.Transfer:
        return workload.download(lab.kube, 80, seconds=120, ends=pair)

    with ThreadPoolExecutor(len(CLIENTS)) as pool:  # one download at a time per client, because each client has one output file
        found = [dict(zip(one, pool.map(fetch, one), strict=True)) for one in (pairs[::3], pairs[1:3])]
    for (client, server), got in itertools.chain.from_iterable(each.items() for each in found):
        assert trace(lab, client.address, server.address) == "accelerated"
        right(lab, got, client, server)
    one, other = SERVERS
    near = workload.download(lab.kube, 8080, seconds=10, ends=(one, other))
    assert near.bytes > 0, "hosts at two nodes of one site reach each other"


def test_two_hundred_services_are_created_and_deleted_together(lab: Lab, accelerated: tuple[Lab, str]) -> None:
    under_way = Load(lab.kube)
    began = time.monotonic()
    lab.kube.apply(*(service(f"many-{number}", "default", FIRST_PORT + number) for number in range(SERVICES)))
    applied = time.monotonic()
    wait_for("all services in force", lambda: ready(lab) == SERVICES, ALL_READY_S)
    say(f"{SERVICES} services: applied in {applied - began:.1f} s, all in force {time.monotonic() - applied:.1f} s later")
    lab.kube.ctl("-n", "default", "delete", "sosservices", "-l", LABEL, "--wait=false", timeout=120)
    unbroken(under_way.finish(), accelerated[1], f"{SERVICES} services")
    lab.kube.wait_condition("sosservice/bulk", "Ready", namespace="default", timeout=60)


@pytest.fixture
def other_namespace(lab: Lab) -> Iterator[str]:
    lab.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OTHER_NAMESPACE}})
    try:
        yield OTHER_NAMESPACE
    finally:
        lab.kube.ctl("delete", "namespace", OTHER_NAMESPACE, timeout=120)


def test_a_service_moves_to_another_namespace(lab: Lab, accelerated: tuple[Lab, str], other_namespace: str) -> None:
    """Create the new service first: its condition names the older service, and it takes over after the deletion of the older service."""
    example = EXAMPLE / "sosservice.yaml"
    spec = lab.kube.get("-n", "default", "sosservice/bulk")["spec"]
    moved = {**service("bulk", other_namespace, 80), "spec": spec}
    under_way = Load(lab.kube)
    lab.kube.apply(moved)
    lab.kube.ctl("-n", "default", "delete", "-f", str(example))
    lab.kube.wait_condition("sosservice/bulk", "Ready", namespace=other_namespace, timeout=60)
    assert trace(lab, workload.CLIENT, workload.SERVER) == "accelerated"
    lab.kube.apply_files(example)
    lab.kube.ctl("-n", other_namespace, "delete", "sosservice", "bulk")
    lab.kube.wait_condition("sosservice/bulk", "Ready", namespace="default", timeout=60)
    unbroken(under_way.finish(), accelerated[1], "a service moves")


@pytest.fixture
def short_overlap(lab: Lab) -> Iterator[None]:
    for seconds in (OVERLAP_S, 180):
        upgrade(lab, f"operator.keyOverlapSeconds={seconds}")
        if seconds == OVERLAP_S:
            yield


def test_key_rotation_interrupts_no_connection(lab: Lab, accelerated: tuple[Lab, str], short_overlap: None) -> None:
    secret = ("-n", workload.RELEASE_NAMESPACE, "secret/sos-master")

    def rotation() -> str:
        state = lab.kube.get(*secret)["metadata"].get("annotations", {}).get("sos.network/key-rotation", "{}")
        said = json.loads(state)
        return str(said.get("phase", "")) if said.get("request") == request else ""

    request = f"e2e-{time.time():.0f}"
    before = set(lab.kube.get(*secret)["data"])
    lab.kube.ctl("annotate", *secret, f"sos.network/rotate-keys={request}", "--overwrite")
    deadline = time.monotonic() + 6 * OVERLAP_S
    while rotation() != "Done":
        assert time.monotonic() < deadline, f"the rotation is {rotation() or 'not begun'}"
        unbroken(Load(lab.kube).finish(), accelerated[1], f"new keys, {rotation() or 'not begun'}")
    after = set(lab.kube.get(*secret)["data"])
    assert after and not after & before, "a new key has replaced the old key"
    unbroken(Load(lab.kube).finish(), accelerated[1], "after new keys")
    lab.kube.wait_condition("sosservice/bulk", "Ready", namespace="default", timeout=60)


@pytest.fixture
def third_site(lab: Lab, accelerated: tuple[Lab, str]) -> Iterator[float]:
    """Site that joins for the test; yields the seconds until it was ready. Its joining and leaving do not affect traffic of other sites."""
    under_way = Load(lab.kube)
    took = join(lab)
    unbroken(under_way.finish(), accelerated[1], "a third site joins")
    workload.start(lab.kube, lab.images["e2e-host"], SOUTH)
    yield took
    workload.stop(lab.kube, SOUTH.name)
    leaving = Load(lab.kube)
    lab.kube.ctl("label", "node", lab.nodes["south"], "sos.network/site-")
    wait_for("a node without SOS devices after it has left its site", lambda: is_as_before(lab, "south"), 120)
    assert "deletionTimestamp" not in lab.kube.get("sossite/south")["metadata"], "the site of the removed node still exists"
    leave(lab)
    unbroken(leaving.finish(), accelerated[1], "a third site leaves")


def is_as_before(lab: Lab, place: str) -> bool:
    """True if a node has its uplinks; raise LookupError if it still has SOS devices."""
    names = {link["ifname"] for link in json.loads(run("docker", "exec", lab.nodes[place], "ip", "-j", "link"))}
    if ours := {name for name in names if name.startswith(("sos", "br-sos", "ovs"))}:
        raise LookupError(f"{', '.join(sorted(ours))} at {place}")
    return {"wan0", "wan1"} <= names


def test_a_third_site_joins_and_its_hosts_are_accelerated(lab: Lab, third_site: float) -> None:
    say(f"a site with one node was ready {third_site:.0f} s after it was declared")
    assert lab.kube.get("sossite/south")["status"]["agentsRegistered"] == "1/1"
    fast_and_plain(lab, SOUTH, SERVERS[0], "from a site that joined later")
    assert len(json.loads(lab.kube.plugin("topology", "-o", "json"))["agents"]) == agents(lab) + 1


def test_a_removed_site_leaves_nothing_behind(lab: Lab, accelerated: tuple[Lab, str]) -> None:
    wait_for("a node without SOS devices", lambda: is_as_before(lab, "south"), 60)
    found = json.loads(lab.kube.plugin("topology", "-o", "json"))
    assert len(found["agents"]) == agents(lab)
    assert not [site for site in lab.kube.items("sossites") if site["metadata"]["name"] == "south"]
