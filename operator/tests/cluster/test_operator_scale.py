"""A larger world with a real API server and a real controller: the machine-independent part of bench/operator/scale.py."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_controller import Controller
from operator_fixtures import children, populated, versions
from operator_kube import Kube
from operator_run import NAMESPACE, Operator, controller_keys, eventually, operator_running
from operator_scale import Size, populate, writes
from operator_table import build, path_of, send

SIZE = Size(sites=8, services=60)
RESYNC_S = 2


@pytest.fixture(scope="module")
def stage(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Operator, Controller]]:
    folder = tmp_path_factory.mktemp("scale")
    controller = Controller(installed, folder)
    options = {"SOS_CONTROLLER_API_OVERRIDE": f"default={controller.url}", "SOS_RESYNC_SECONDS": str(RESYNC_S)}
    with populated(installed) as kube, operator_running(kube, folder, **options) as operator:
        kube.kubectl("delete", "nodes", "--all")
        populate(kube, SIZE)
        eventually("every site's key", lambda: len(controller_keys(kube)) == SIZE.sites + 1)
        controller.start()
        try:
            eventually("every service", lambda: len(controller.get("/v1/status")["services"]) == SIZE.services)
            yield operator, controller
        finally:
            controller.kill()


def quiet(operator: Operator) -> int:
    """Wait until the operator stops writing; return the number of writes so far."""

    def still() -> int:
        before = len(writes(operator.kube))
        operator.settle(2)
        assert len(writes(operator.kube)) == before
        return before

    return eventually("nothing left to write", still, 60)


def test_a_full_resync_writes_nothing(stage: tuple[Operator, Controller]) -> None:
    operator, _ = stage
    before, objects = quiet(operator), versions(operator.kube)
    assert len(objects) > 4 * SIZE.sites + SIZE.services
    time.sleep(3 * RESYNC_S)  # at least two full resyncs
    operator.settle(2)
    assert writes(operator.kube)[before:] == []
    assert versions(operator.kube) == objects


def test_a_changed_service_rewrites_only_affected_documents(stage: tuple[Operator, Controller]) -> None:
    """Only three ConfigMaps with documents and one status are rewritten; all other documents keep their generation."""
    operator, controller = stage
    kube, before = operator.kube, quiet(operator)
    path = path_of(build("service0000", {"kind": "SosService", "spec": {}}), with_name=True)
    send(kube, "PATCH", path, {"spec": {"ports": [{"port": 7}]}}, dry=False)
    eventually("the change", lambda: [s for s in controller.get("/v1/config")["services"] if s["ports"] == [{"first": 7, "last": 7}]])
    quiet(operator)
    written = [line.split("?")[0].rpartition("/namespaces/")[2] for line in writes(kube)[before:]]
    names = [line.partition("/configmaps/")[2] for line in written if "/configmaps/" in line]
    assert sorted(set(names)) == ["sos-agent-pool00-site00", "sos-agent-pool01-site01", "sos-controller-default", "sos-operator-state"]
    services = [line for line in written if "/sosservices/" in line]
    assert set(services) <= {f"{NAMESPACE}/sosservices/service0000/status"}, services
    documents = [json.loads(text) for c in children(kube, "configmaps") for n, text in c["data"].items() if n.endswith(".json")]
    newest = max(document["generation"] for document in documents)
    assert len([d for d in documents if d["generation"] == newest]) == 3


def test_a_restart_changes_nothing(stage: tuple[Operator, Controller], tmp_path: Path) -> None:
    """A second operator does not know the applies of the first operator; it repeats them without an effect."""
    operator, controller = stage
    quiet(operator)
    before = versions(operator.kube)
    with operator_running(operator.kube, tmp_path, SOS_CONTROLLER_API_OVERRIDE=f"default={controller.url}") as another:
        another.settle(3)
        assert versions(operator.kube) == before
