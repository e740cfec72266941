"""Two tenants of the same sites on a real API server: the later tenant cannot affect the earlier, and both statuses report overlaps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from operator_fixtures import becomes, children, condition
from operator_kube import Kube
from operator_run import Operator, eventually

TOLD_S = 10.0
"""Time limit until both statuses report that one service shadows the other."""
PORTS = [{"port": 22}, {"port": 80}, {"port": 443}, {"port": 5000, "endPort": 5999}]
"""Ports of default/bulk in examples/01-two-sites."""
GREEDY: dict[str, dict[str, Any]] = {
    "observe-first": {"mode": "Observe", "priority": 65535, "ports": PORTS},
    "all-ports": {"priority": 65535, "ports": [{"port": 1, "endPort": 65535}]},
    "narrower": {"priority": 65535, "ports": [{"port": 80}], "to": {"site": "east", "prefixes": ["10.0.0.139/32"]}},
    "early-and-few": {"accept": "Early", "percent": 1, "ports": PORTS},
}


def greedy(spec: dict[str, Any]) -> dict[str, Any]:
    whole = {"from": {"site": "west"}, "to": {"site": "east"}, **spec}
    meta = {"name": "greedy", "namespace": "tenant-b"}
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosService", "metadata": meta, "spec": whole}


def entries(kube: Kube) -> dict[str, list[dict[str, Any]]]:
    """Services of each document with services, in the document's order."""
    found = {}
    for each in children(kube, "configmaps"):
        for name, text in each["data"].items():
            document = json.loads(text) if name.endswith(".json") else {}
            if document.get("services"):
                found[f"{each['metadata']['name']}/{name}"] = document["services"]
    return found


def victim(kube: Kube) -> dict[str, list[dict[str, Any]]]:
    """The earlier tenant's service in each document."""
    return {name: [service for service in services if service["id"] == "default/bulk"] for name, services in entries(kube).items()}


@pytest.fixture
def shared(example: Operator) -> Operator:
    kube = example.kube
    kube.clear("sosservices", "-n", "tenant-b")
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant-b"}})
    eventually(
        "only the earlier tenant's service", lambda: {s["id"] for found in entries(kube).values() for s in found} == {"default/bulk"}
    )
    becomes(kube, "sosservice/default/bulk", "Accepted", "True", "Accepted")
    return example


@pytest.mark.parametrize("spec", GREEDY.values(), ids=GREEDY)
def test_a_later_tenant_ranks_lower_and_both_statuses_report_the_overlap(shared: Operator, spec: dict[str, Any]) -> None:
    kube = shared.kube
    before = victim(kube)
    kube.apply(greedy(spec))
    reason = "PartlyShadowed" if spec["ports"] != PORTS and len(spec["ports"]) == 1 and "endPort" in spec["ports"][0] else "WhollyShadowed"
    becomes(kube, "sosservice/tenant-b/greedy", "Shadowed", "True", reason, TOLD_S)
    becomes(kube, "sosservice/default/bulk", "ShadowsOthers", "True", "ShadowsOthers", TOLD_S)
    becomes(kube, "sossite/west", "ServicesOverlap", "True", "ServicesOverlap", TOLD_S)
    assert victim(kube) == before, "the earlier tenant's entries are unchanged"
    for name, services in entries(kube).items():
        ids = [service["id"] for service in services]
        assert ids.index("default/bulk") < (ids.index("tenant-b/greedy") if "tenant-b/greedy" in ids else len(ids)), name


@pytest.mark.parametrize("transport", [{"streams": 64}, {"encryption": "TLS"}, {"protocol": "QUIC"}, {"congestionControl": "Reno"}])
def test_a_later_tenant_does_not_set_the_streams_of_a_pair(shared: Operator, transport: dict[str, Any]) -> None:
    kube = shared.kube
    before = victim(kube)
    kube.apply(greedy({"ports": [{"port": 9000}], "transport": transport}))
    eventually("the later tenant's condition", lambda: condition(kube, "sosservice", "greedy", "ResolvedRefs", "tenant-b"), TOLD_S)
    row = condition(kube, "sosservice", "greedy", "ResolvedRefs", "tenant-b")
    assert (row["status"], row["reason"]) == ("False", "NotPermitted"), row
    assert next(iter(transport)) in row["message"]
    assert victim(kube) == before
    assert not any(service["id"] == "tenant-b/greedy" for services in entries(kube).values() for service in services)
