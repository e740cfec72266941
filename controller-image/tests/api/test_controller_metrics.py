"""Check metric names against spec/metrics. Dashboards, alerts and the users' page are checked against the same table."""

from __future__ import annotations

from pathlib import Path

from controller_world import World
from prometheus_client.parser import text_string_to_metric_families
from sos_controller.api.metrics import _Collector, registry, render
from sos_controller.app import Controller

TABLE = Path(__file__).resolve().parents[3] / "spec" / "metrics" / "controller.tsv"


def test_exported_metrics_match_the_table_in_spec() -> None:
    world = World()
    world.converge()
    controller = Controller(world.engine)
    rows = []
    for family in _Collector(controller).collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        rows.append(f"{name}\t{family.type}\t{','.join(family._labelnames)}\t{family.documentation}\n")
    assert "".join(sorted(rows)) == TABLE.read_text()
    labels = {row.split("\t")[0].removesuffix("_total"): row.split("\t")[2] for row in rows}
    for shown in text_string_to_metric_families(render(registry(controller)).decode()):
        for sample in shown.samples:
            assert set(sample.labels) - {"le"} == set(labels[shown.name].split(",")) - {""}, shown.name
