"""Generated worlds on a real API server with a running operator: it does not exit, and fault isolation has no exception to catch.

Several worlds stand side by side, each with names and prefixes of its own. SOS_LIVE_WORLDS sets the number of worlds
(`SOS_LIVE_WORLDS=300 .venv/bin/pytest operator -k worlds_live`), SOS_LIVE_FIRST the first seed, SOS_LIVE_AT_ONCE the worlds side by side.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from operator_bulk import Bulk, Request, bulk
from operator_fixtures import OWN
from operator_kube import ROOT, Kube
from operator_run import NAMESPACE, Operator, eventually, operator_running
from operator_table import PLURALS, path_of

sys.path.append(str(ROOT / "compile" / "tests"))  # appended, so that its conftest does not shadow operator/conftest.py

from limits import NAMESPACES, limits_world
from schema_limits import SchemaLimits
from sos_compile.admission.load import crds
from sos_compile.admission.schema import admit
from sos_compile.model.world import Node

COUNT = int(os.environ.get("SOS_LIVE_WORLDS", "20"))
FIRST = int(os.environ.get("SOS_LIVE_FIRST", "1"))
AT_ONCE = int(os.environ.get("SOS_LIVE_AT_ONCE", "20"))
"""Worlds side by side: at most 90, because each has a first octet of its own."""
CHILDREN = "daemonsets,deployments,services,configmaps,networkpolicies,poddisruptionbudgets"
LISTS = tuple(f"/apis/sos.network/v1alpha1/{plural}" for plural in PLURALS.values())
NODES = "/api/v1/nodes"
JUDGED_S = 180.0
"""Limit for a pass over all worlds side by side, which takes seconds on an idle machine."""


@pytest.fixture(scope="module")
def living(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """An operator whose controller does not answer."""
    kube = installed
    kube.apply(*({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in NAMESPACES if name != NAMESPACE))
    # the API server is shared with other tests, so all objects are deleted afterwards
    with operator_running(kube, tmp_path_factory.mktemp("worlds"), SOS_CONTROLLER_API_OVERRIDE="default=http://127.0.0.1:1") as running:
        yield running
    kube.clear(",".join(OWN), "-A")
    kube.clear(CHILDREN, "-n", NAMESPACE, "-l", "app.kubernetes.io/managed-by=sos-operator")
    kube.clear("nodes")


class Apart:
    """Names and addresses of one of several worlds side by side. Names keep their length; worlds share the shortest names."""

    def __init__(self, seed: int, place: int) -> None:
        self.seed, self._place, self._mark = seed, place, f"{place:02}"
        world = limits_world(seed)
        given = [item for item in world.objects if isinstance(item, dict) and item["kind"] in PLURALS]
        names = {str(item["metadata"]["name"]) for item in given} | {node.name for node in world.nodes}
        self._names = {name: name[0] + self._mark + name[3:] for name in names if len(name) > 3 and name != "default"}
        self.objects: list[dict[str, Any]] = [self._made(item) for item in given]
        self.nodes = [self._node(node) for node in world.nodes]

    def _made(self, item: dict[str, Any]) -> dict[str, Any]:
        meta = {key: value for key, value in item["metadata"].items() if key in ("name", "namespace", "labels", "annotations")}
        return {**item, "metadata": {**meta, "name": self._names.get(meta["name"], meta["name"])}, "spec": self._moved(item.get("spec"))}

    def _node(self, node: Node) -> tuple[str, dict[str, Any], str]:
        return self._moved(node.name), self._moved(dict(node.labels)), self._moved(node.address)

    def _moved(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._moved(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._moved(each) for each in value]
        if not isinstance(value, str):
            return value
        renamed = self._names.get(value) or next((new[:63] for old, new in self._names.items() if old[:63] == value), value)
        return re.sub(r"^192\.0\.2\.", f"192.0.{self._place}.", re.sub(r"^10\.", f"{10 + self._place}.", renamed))


def empty(requests: Bulk) -> None:
    """Delete the objects and nodes of the last worlds without their finalizers; the operator deletes their children."""
    found = requests.items(*LISTS)
    nodes = [f"{NODES}/{node['metadata']['name']}" for node in requests.items(NODES)]
    freed = [path_of(each, with_name=True) for each in found if each["metadata"].get("finalizers")]
    requests.send(Request("PATCH", path, {"metadata": {"finalizers": None}}) for path in freed)
    requests.send(Request("DELETE", path) for path in [*nodes, *(path_of(each, with_name=True) for each in found)])


def put_nodes(requests: Bulk, worlds: list[Apart], seen: Counter[str]) -> None:
    """Create the worlds' nodes; refused addresses are left out, because a kubelet could not report them either."""
    nodes = {name: (labels, address) for world in worlds for name, labels, address in world.nodes}
    made = requests.send(Request("POST", NODES, {"metadata": {"name": name, "labels": labels}}) for name, (labels, _) in nodes.items())
    seen["nodes"] += sum(answer["kind"] == "Node" for answer in made)
    requests.send(
        Request("PATCH", f"{NODES}/{name}/status", {"status": {"addresses": [{"type": "InternalIP", "address": address}]}})
        for name, (_, address) in nodes.items()
        if address
    )


def put_objects(requests: Bulk, worlds: list[Apart], seen: Counter[str]) -> Iterator[str]:
    """Create the worlds' objects; yield a finding for each object on which API server and compiler disagree."""
    given = [(world.seed, obj) for world in worlds for obj in world.objects]
    answers = requests.send(Request("POST", path_of(obj), obj) for _, obj in given)
    for (seed, obj), answer in zip(given, answers, strict=True):
        taken, problems = answer["kind"] == obj["kind"], admit(obj)[1]
        if answer.get("reason") == "AlreadyExists":
            continue
        seen["taken" if taken else "refused"] += 1
        if taken != (not problems):
            said = answer.get("message", "yes")[:500]
            yield f"seed {seed}: {obj['kind']} {obj['metadata']['name'][:30]}: the API server says {said!r}, admission {problems[:2]}"


def spoil_statuses(requests: Bulk, seed: int) -> None:
    """Write random statuses that the schemas allow."""
    draw = SchemaLimits(random.Random(seed))
    schemas = {kind: crds()[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"] for kind in PLURALS}
    found = requests.items(*LISTS)
    patches = [(path_of(each, with_name=True), draw.value(schemas[each["kind"]])) for each in found]
    requests.send(Request("PATCH", f"{path}/status", {"status": status}) for path, status in patches)


def accepted(requests: Bulk) -> Counter[str]:
    """Statuses of the Accepted conditions; each object must have one of its current generation."""
    found = Counter[str]()
    for each in requests.items(*LISTS):
        rows = {row["type"]: row for row in each.get("status", {}).get("conditions", [])}
        row = rows.get("Accepted", {})
        assert row.get("observedGeneration") == each["metadata"]["generation"], f"{each['kind']} {each['metadata']['name'][:40]}: {row}"
        found[f"accepted {row['status']}"] += 1
    return found


def bugs(operator: Operator) -> list[str]:
    return [line for line in operator.http("/metrics")[1].splitlines() if line.startswith("sos_operator_bugs_total{")]


def put_in_force(living: Operator, requests: Bulk, seeds: Iterable[int], seen: Counter[str]) -> list[str]:
    """Replace the last worlds by these; return the findings."""
    worlds = [Apart(seed, place) for place, seed in enumerate(seeds)]
    named = f"seeds {worlds[0].seed} to {worlds[-1].seed}"
    empty(requests)
    put_nodes(requests, worlds, seen)
    found = list(put_objects(requests, worlds, seen))
    seen.update(eventually(f"{named}: every object is judged", lambda: accepted(requests), JUDGED_S))
    spoil_statuses(requests, worlds[0].seed)
    seen_passes = living.passes()
    living.kube.annotate("namespace", "default", {"test/wake": str(time.monotonic())})
    eventually(f"{named}: a pass that sees the statuses", lambda: living.passes() > seen_passes, JUDGED_S)
    assert living.process.poll() is None, f"{named} ended the operator"
    return found + [f"{named}: {line}" for line in bugs(living)]


def test_generated_worlds_cause_no_exit_and_no_exception(living: Operator) -> None:
    seen, began = Counter[str](), time.monotonic()
    found: list[str] = []
    with bulk(living.kube) as requests:
        for first in range(FIRST, FIRST + COUNT, AT_ONCE):
            found += put_in_force(living, requests, range(first, min(first + AT_ONCE, FIRST + COUNT)), seen)
            assert len(found) < 10, "\n".join(found)
    traces = [line["message"] for line in living.lines() if "Traceback" in json_text(line)]
    figures = f"{COUNT} worlds, {dict(seen)}, {living.passes():.0f} passes in {time.monotonic() - began:.0f} s"
    sys.stdout.write(f"{figures}: {len(found)} findings, {len(traces)} tracebacks\n")
    assert found == [] and traces == []
    assert seen["taken"] > 2 * COUNT and seen["refused"] > 0, "the worlds contain too few accepted or refused objects"
    assert seen["accepted True"] > COUNT, "most objects are in conflict with each other"


def json_text(line: dict[str, Any]) -> str:
    return " ".join(str(value) for value in line.values())
