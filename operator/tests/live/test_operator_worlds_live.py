"""Generated worlds on a real API server with a running operator: it does not exit, and fault isolation has no exception to catch.

SOS_LIVE_WORLDS sets their number (`SOS_LIVE_WORLDS=300 .venv/bin/pytest operator -k worlds_live`), SOS_LIVE_FIRST the first seed.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from operator_fixtures import OWN
from operator_kube import ROOT, Kube
from operator_run import NAMESPACE, Operator, eventually, operator_running
from operator_table import PLURALS, create, path_of, send

sys.path.append(str(ROOT / "compile" / "tests"))  # appended, so that its conftest does not shadow operator/conftest.py

from limits import NAMESPACES, limits_world
from schema_limits import SchemaLimits
from sos_compile import World
from sos_compile.admission.load import crds
from sos_compile.admission.schema import admit

COUNT = int(os.environ.get("SOS_LIVE_WORLDS", "8"))
FIRST = int(os.environ.get("SOS_LIVE_FIRST", "1"))
CHILDREN = "daemonsets,deployments,services,configmaps,networkpolicies,poddisruptionbudgets"


@pytest.fixture(scope="module")
def living(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """An operator whose controller does not answer."""
    kube = installed
    kube.apply(*({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in NAMESPACES if name != NAMESPACE))
    # the API server is shared with other tests, so all objects are deleted afterwards
    with operator_running(kube, tmp_path_factory.mktemp("worlds"), SOS_CONTROLLER_API_OVERRIDE="default=http://127.0.0.1:1") as running:
        yield running
    empty(kube)


def empty(kube: Kube) -> None:
    kube.clear(",".join(OWN), "-A")
    kube.clear(CHILDREN, "-n", NAMESPACE, "-l", "app.kubernetes.io/managed-by=sos-operator")
    kube.clear("nodes")


def put_nodes(kube: Kube, world: World, seen: Counter[str]) -> None:
    """Create a world's nodes; refused addresses are left out, because a kubelet could not report them either."""
    for node in world.nodes:
        made = send(kube, "POST", "/api/v1/nodes", {"metadata": {"name": node.name, "labels": dict(node.labels)}}, dry=False)
        seen["nodes"] += made["kind"] == "Node"
        status = {"status": {"addresses": [{"type": "InternalIP", "address": node.address}]}}
        if node.address:
            send(kube, "PATCH", f"/api/v1/nodes/{node.name}/status", status, dry=False)


def put_objects(kube: Kube, world: World, seen: Counter[str]) -> Iterator[str]:
    """Create a world's objects; yield a finding for each object on which API server and compiler disagree."""
    for item in world.objects:
        assert isinstance(item, dict)
        if item["kind"] not in PLURALS:
            continue
        meta = {key: value for key, value in item["metadata"].items() if key in ("name", "namespace", "labels", "annotations")}
        obj = {**item, "metadata": meta}
        answer = create(kube, obj)
        taken, problems = answer["kind"] == item["kind"], admit(obj)[1]
        if answer.get("reason") == "AlreadyExists":
            continue
        seen["taken" if taken else "refused"] += 1
        if taken != (not problems):
            said = answer.get("message", "yes")[:500]
            yield f"{item['kind']} {meta['name'][:30]}: the API server says {said!r}, admission {problems[:2]}"


def spoil_statuses(kube: Kube, seed: int) -> None:
    """Write random statuses that the schemas allow."""
    draw = SchemaLimits(random.Random(seed))
    for kind in PLURALS.values():
        for obj in kube.items(kind, "-A"):
            schema = crds()[obj["kind"]]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
            path = path_of(obj, with_name=True) + "/status"
            send(kube, "PATCH", path, {"status": draw.value(schema)}, dry=False)


def judged(kube: Kube) -> bool:
    """True once each object has an Accepted condition of its current generation."""
    for kind in PLURALS.values():
        for obj in kube.items(kind, "-A"):
            rows = {row["type"]: row for row in obj.get("status", {}).get("conditions", [])}
            current = rows.get("Accepted", {}).get("observedGeneration") == obj["metadata"]["generation"]
            assert current, f"{obj['kind']} {obj['metadata']['name'][:40]}: {rows.get('Accepted')}"
    return True


def bugs(operator: Operator) -> list[str]:
    return [line for line in operator.http("/metrics")[1].splitlines() if line.startswith("sos_operator_bugs_total{")]


def test_generated_worlds_cause_no_exit_and_no_exception(living: Operator) -> None:
    kube, seen, began = living.kube, Counter[str](), time.monotonic()
    found: list[str] = []
    for seed in range(FIRST, FIRST + COUNT):
        world = limits_world(seed)
        empty(kube)
        put_nodes(kube, world, seen)
        found += [f"seed {seed}: {text}" for text in put_objects(kube, world, seen)]
        eventually(f"seed {seed}: every object is judged", lambda: judged(kube), 60)
        spoil_statuses(kube, seed)
        living.settle(1)
        assert living.process.poll() is None, f"seed {seed} ended the operator"
        found += [f"seed {seed}: {line}" for line in bugs(living)]
        assert len(found) < 10, "\n".join(found)
    traces = [line["message"] for line in living.lines() if "Traceback" in json_text(line)]
    figures = f"{COUNT} worlds, {dict(seen)}, {living.passes():.0f} passes in {time.monotonic() - began:.0f} s"
    sys.stdout.write(f"{figures}: {len(found)} findings, {len(traces)} tracebacks\n")
    assert found == [] and traces == []
    assert seen["taken"] > 2 * COUNT and seen["refused"] > 0, "the worlds contain too few accepted or refused objects"


def json_text(line: dict[str, Any]) -> str:
    return " ".join(str(value) for value in line.values())
