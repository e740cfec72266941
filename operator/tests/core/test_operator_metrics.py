"""Agreement of the metrics with spec/metrics, the reference for checks of dashboards, alerts and docs."""

from __future__ import annotations

from typing import Any

from operator_kube import ROOT
from operator_listing import parsed
from prometheus_client import Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase
from sos_operator.core.desired.expected_pods import expected_pods
from sos_operator.process.metrics import Metrics


def table(metrics: Metrics) -> str:
    """Name, type, labels and meaning of every metric, sorted."""
    rows = []
    for metric in vars(metrics).values():
        if not isinstance(metric, MetricWrapperBase):
            continue
        name = metric._name + ("_total" if isinstance(metric, Counter) else "")
        kind = "histogram" if isinstance(metric, Histogram) else metric._type
        rows.append(f"{name}\t{kind}\t{','.join(metric._labelnames)}\t{metric._documentation}\n")
    return "".join(sorted(rows))


def test_the_table_in_spec_equals_the_metrics_of_the_operator() -> None:
    metrics = Metrics()
    metrics.reconciles.labels(result="ok").inc()
    assert table(metrics) == (ROOT / "spec" / "metrics" / "operator.tsv").read_text()
    families = {family.name for family in metrics.registry.collect()}
    named = {line.split("\t")[0].removesuffix("_total") for line in table(metrics).splitlines()}
    assert families == named, "every registered metric is an attribute of Metrics"


def workload(kind: str, component: str, site: str = "", *, desired: int = 1, owner: str = "sos-operator", **meta: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/managed-by": owner, "app.kubernetes.io/component": component}
    meta |= {"name": f"{kind}-{component}-{site}", "namespace": "n", "labels": labels | ({"sos.network/site": site} if site else {})}
    count = {"spec": {"replicas": desired}} if kind == "Deployment" else {"status": {"desiredNumberScheduled": desired}}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, **count}


def test_expected_pods_are_those_that_kubernetes_should_run() -> None:
    children = parsed(
        workload("Deployment", "controller"),
        workload("DaemonSet", "node", "west", desired=3),
        workload("DaemonSet", "agent", "west", desired=2),
        workload("DaemonSet", "agent", "west", desired=1),
        workload("DaemonSet", "agent", "drained", desired=0),
        workload("DaemonSet", "agent", "deleted", deletionTimestamp="2026-01-01T00:00:00Z"),
        workload("DaemonSet", "agent", "foreign", owner="another"),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "labels": {"app.kubernetes.io/managed-by": "sos-operator"}}},
    )
    assert expected_pods(children) == {("controller", ""): 1, ("node", "west"): 3, ("agent", "west"): 3}
    assert expected_pods(()) == {}


def test_pods_that_are_no_longer_expected_leave_the_metrics() -> None:
    metrics = Metrics()
    metrics.expect({("agent", "west"): 2, ("controller", ""): 1})
    metrics.expect({("agent", "west"): 1})
    samples = [sample for family in metrics.registry.collect() for sample in family.samples if "expected_pods" in sample.name]
    assert [(sample.labels, sample.value) for sample in samples] == [({"component": "agent", "site": "west"}, 1.0)]
