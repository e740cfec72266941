"""An operator that is killed during changes, or loses the API server, ends in the same state as an undisturbed operator."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from operator_agent import network
from operator_controller import Controller
from operator_fixtures import OWN, becomes, children, populated
from operator_kube import ROOT, Kube, free_port
from operator_run import NAMESPACE, controller_keys, environment, eventually, operator_running
from operator_table import build, create, path_of, send

KINDS = ("configmaps", "daemonsets", "deployments", "services", "secrets")
NOWHERE = "http://127.0.0.1:1"
NODES = {"edge1": "west", "edge2": "east", "edge3": "north"}
WORLD = [
    build("default", {"kind": "SosController", "spec": {}}),
    build("default", {"kind": "SosAgent", "spec": {}}),
    *(
        # Fixed site ids, because assigned ids depend on the order in which sites are observed.
        build(
            site,
            {
                "kind": "SosSite",
                "spec": {"nodeSelector": {"matchLabels": {"sos.network/site": site}}, "siteID": i, "prefixes": [f"10.{i}.0.0/16"]},
            },
        )
        for i, site in enumerate(NODES.values(), 1)
    ),
    build("bulk", {"kind": "SosService", "spec": {"from": {"site": "west"}, "to": {"site": "east"}}}),
]


def patch(kube: Kube, kind: str, name: str, spec: dict[str, Any]) -> None:
    assert send(kube, "PATCH", path_of(build(name, {"kind": kind, "spec": {}}), with_name=True), {"spec": spec}, dry=False)["kind"] == kind


def remake(kube: Kube, kind: str, name: str) -> None:
    (obj,) = [o for o in WORLD if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    send(kube, "DELETE", path_of(obj, with_name=True), {}, dry=False)
    # A site with a finalizer stays until an operator removes the finalizer; if no operator runs, the site still exists here.
    create(kube, obj)


CHANGES: list[Callable[[Kube, int], Any]] = [
    lambda kube, n: patch(kube, "SosService", "bulk", {"priority": 200 + n}),
    lambda kube, n: kube.kubectl("delete", "daemonset", "sos-node-west", "-n", NAMESPACE, "--ignore-not-found", "--wait=false"),
    lambda kube, n: patch(kube, "SosAgent", "default", {"drainSeconds": n}),
    lambda kube, n: patch(kube, "SosSite", "east", {"network": {"mtu": 1300 + n}}),
    lambda kube, n: create(
        kube,
        build(f"extra{n}", {"kind": "SosService", "spec": {"from": {"site": "east"}, "to": {"site": "north"}, "ports": [{"port": 1 + n}]}}),
    ),
    lambda kube, n: kube.kubectl(
        "delete", "configmap", "sos-operator-state", "sos-controller-default", "-n", NAMESPACE, "--ignore-not-found"
    ),
    lambda kube, n: remake(kube, "SosAgent", "default"),
    lambda kube, n: patch(kube, "SosSite", "west", {"prefixes": ["10.1.0.0/16", "10.101.0.0/16"] if n % 2 else ["10.1.0.0/16"]}),
    lambda kube, n: remake(kube, "SosSite", "north"),
    lambda kube, n: remake(kube, "SosController", "default"),
]


def conclude(kube: Kube) -> None:
    """Bring the objects to the same final state, independent of the applied changes."""
    for name in [o["metadata"]["name"] for o in kube.items("sosservices", "-n", NAMESPACE) if o["metadata"]["name"] != "bulk"]:
        kube.kubectl("delete", "sosservice", name, "-n", NAMESPACE)
    eventually("no site is leaving", lambda: not [s for s in kube.items("sossites") if s["metadata"].get("deletionTimestamp")])
    for obj in WORLD:
        create(kube, obj)  # refused if the object exists
    patch(kube, "SosService", "bulk", {"priority": 999})
    patch(kube, "SosAgent", "default", {"drainSeconds": 5})
    patch(kube, "SosSite", "east", {"network": {"mtu": 1400}})
    patch(kube, "SosSite", "west", {"prefixes": ["10.1.0.0/16"]})


def state(kube: Kube) -> dict[str, Any]:
    """Everything that the operator created and reports, without parts that differ by run: uids, versions, times, keys, generations."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        for obj in children(kube, kind):
            content = {k: v for k, v in obj.items() if k in ("spec", "data")}
            if kind == "secrets":
                content = {"data": sorted(obj["data"])}
            elif kind == "services":
                content = {"ports": [{**port, "nodePort": 0} for port in obj["spec"]["ports"]], "selector": obj["spec"]["selector"]}
            owners = [(o["kind"], o["name"]) for o in obj["metadata"].get("ownerReferences", [])]
            found[f"{kind}/{obj['metadata']['name']}"] = (owners, without_address(json.dumps(content, sort_keys=True), kube))
    found.pop("configmaps/sos-operator-state", None)
    for obj in (o for kind in OWN for o in kube.items(kind, "-A")):
        meta, status = obj["metadata"], obj["status"]
        rows = [(c["type"], c["status"], c["reason"]) for c in status["conditions"]]
        fields = {k: v for k, v in status.items() if k not in ("conditions", "observedGeneration", "endpoints")}
        assert status.get("observedGeneration") == meta["generation"], f"{meta['name']} is not reported on yet"
        found[f"{obj['kind']}/{meta['name']}"] = (rows, fields, meta.get("finalizers"))
    return found


def without_address(text: str, kube: Kube) -> str:
    """Remove the address of the controller's Service, generations and hashes from documents, because these differ between runs."""
    address = kube.get("service", "sos-controller-default", "-n", NAMESPACE)["spec"]["clusterIP"]
    text = text.replace(address, "ADDRESS")
    for key in ("generation", "hash"):
        parts = text.split(f'\\"{key}\\":')
        text = f'\\"{key}\\":'.join([parts[0], *(part[part.index(",") :] for part in parts[1:])])
    return text


@contextmanager
def world(installed: Kube) -> Iterator[Kube]:
    with populated(installed) as kube:
        kube.kubectl("delete", "nodes", "--all")
        for name, site in NODES.items():
            kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"sos.network/site": site}}})
        for obj in WORLD:
            create(kube, obj)
        yield kube


def undisturbed(installed: Kube, folder: Path) -> dict[str, Any]:
    with world(installed) as kube, operator_running(kube, folder, SOS_CONTROLLER_API_OVERRIDE=f"default={NOWHERE}") as operator:
        conclude(kube)
        operator.settle(3)
        return dict(eventually("a state", lambda: state(kube)))


def killed(installed: Kube, folder: Path, times: int, seed: int) -> None:
    """Apply changes while operators are started and killed; then let one operator finish."""
    chance = random.Random(seed)
    with world(installed) as kube:
        extra = {"SOS_CONTROLLER_API_OVERRIDE": f"default={NOWHERE}"}
        for number in range(times):
            with (folder / "killed.log").open("ab") as log:
                command = [sys.executable, "-m", "sos_operator", "run"]
                process = subprocess.Popen(command, env=environment(kube, free_port(), extra), stdout=log, stderr=log, cwd=folder)
            try:
                time.sleep(chance.uniform(0.8, 2.0))  # the operator is starting, or in its first passes
                for change in chance.sample(CHANGES, 3):
                    change(kube, number)
                    time.sleep(chance.uniform(0, 0.3))
                assert process.poll() is None, "the operator ended by itself: " + (folder / "killed.log").read_text()[-3000:]
            finally:
                process.kill()
                process.wait()
        with operator_running(kube, folder, **extra) as operator:
            conclude(kube)
            operator.settle(3)
            (folder / "calm").mkdir()

            def same() -> bool:
                now = state(kube)
                assert now == EXPECTED[0], [key for key in {*now, *EXPECTED[0]} if now.get(key) != EXPECTED[0].get(key)]
                return True

            eventually("the state of an undisturbed operator", same, 60)


EXPECTED: list[dict[str, Any]] = []


@pytest.fixture(scope="module", autouse=True)
def _expected(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> None:
    EXPECTED[:] = [undisturbed(installed, tmp_path_factory.mktemp("undisturbed"))]
    assert len(EXPECTED[0]) > 20


def test_an_operator_killed_during_changes_ends_in_the_same_state(installed: Kube, tmp_path: Path) -> None:
    killed(installed, tmp_path, 6, seed=1)


@pytest.mark.long
def test_an_operator_killed_fifty_times_ends_in_the_same_state(installed: Kube, tmp_path: Path) -> None:
    killed(installed, tmp_path, 50, seed=2)


LOOK_S = 1.0  # interval between checks during the outage


def standing_in(controller: Controller) -> dict[str, Any]:
    """Parts of a controller's status: configuration, switches, agents, links and services."""
    said = controller.get("/v1/status")
    return {key: said[key] for key in ("config", "datapaths", "agents", "links", "services")}


def outage(kube: Kube, folder: Path, seconds: float) -> None:
    """Stop and restart the API server: running parts are undisturbed, and the operator resumes its work immediately."""
    controller = Controller(kube, folder)
    with populated(kube), operator_running(kube, folder, SOS_CONTROLLER_API_OVERRIDE=f"default={controller.url}") as operator:
        kube.kubectl("apply", "-f", str(ROOT / "examples" / "01-two-sites"))
        eventually("the keys of both sites, and the id of the sending key", lambda: len(controller_keys(kube)) == 3)
        controller.start()
        try:
            becomes(kube, "soscontroller/default", "Ready", "True", "Available")
            with network(kube, controller.openflow) as switches:
                becomes(kube, "sosservice/default/bulk", "Programmed", "True", "Programmed")
                before, standing = controller.get("/v1/config"), standing_in(controller)
                with kube.away():
                    until = time.monotonic() + seconds
                    while time.monotonic() < until:
                        assert standing_in(controller) == standing
                        assert all(switch.is_alive() for switch in switches.values()), "the switches keep their connections"
                        assert operator.process.poll() is None
                        assert operator.http("/healthz")[0] == 200, "healthy, because a restart would not help against the outage"
                        time.sleep(LOOK_S)
                assert controller.get("/v1/config") == before
                assert standing_in(controller) == standing
                becomes(kube, "sosservice/default/bulk", "Programmed", "True", "Programmed", 15)
            kube.kubectl("patch", "sosservice", "bulk", "-n", "default", "--type=merge", "-p", '{"spec":{"priority":321}}')
            eventually("a change is in force again", lambda: controller.get("/v1/config")["services"][0]["priority"] == 321, 15)
            becomes(kube, "soscontroller/default", "Ready", "True", "Available")
        finally:
            controller.kill()


@pytest.mark.slow
def test_a_short_api_server_outage_disturbs_nothing(installed: Kube, tmp_path: Path) -> None:
    outage(installed, tmp_path, 8)


@pytest.mark.long
def test_an_api_server_outage_of_a_minute_disturbs_nothing(installed: Kube, tmp_path: Path) -> None:
    outage(installed, tmp_path, 60)
