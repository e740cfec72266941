"""Agreement of the metrics with spec/metrics, the reference for checks of dashboards, alerts and docs."""

from __future__ import annotations

from operator_kube import ROOT
from prometheus_client import Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase
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
