"""Dashboard and alerts: every metric and label in them exists, and the API server accepts the rendered objects."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from operator_kube import ROOT, Kube
from operator_monitoring import TARGET_LABELS, complaints, metrics, served, taken_apart
from operator_run import render

CHART = ROOT / "charts" / "sos"
WATCHED = ("-f", str(CHART / "ci" / "watched-values.yaml"))
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
ALERTS = [rule for group in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
LABEL = re.compile(r"\{\{ *\$labels\.(\w+) *\}\}")


def test_the_query_check_detects_wrong_queries() -> None:
    assert complaints("sum by (") != []
    assert complaints("sos_agent_sesions") == ["no program has sos_agent_sesions"]
    assert complaints('sos_agent_sessions{role="x"}') == ["sos_agent_sessions has no label role"]
    assert complaints("sum by (service) (sos_agent_sessions)") == ["nothing here has a label service"]
    assert complaints("rate(sos_agent_sessions[5m])") == ["sos_agent_sessions is a gauge: no rate"]
    assert complaints("sos_agent_sessions_begun_total") == ["sos_agent_sessions_begun_total only grows: use rate or increase"]
    assert complaints("1 + 1") == ["no metric in it"]
    assert complaints("histogram_quantile(0.9, sum by (le) (rate(sos_operator_reconcile_duration_seconds_bucket[5m])))") == []


@pytest.mark.parametrize("target", [t for p in PANELS for t in p["targets"]], ids=lambda t: t["expr"])
def test_panels_query_existing_metrics_and_labels(target: dict[str, str]) -> None:
    assert complaints(target["expr"]) == []
    query = taken_apart(target["expr"])
    known = TARGET_LABELS | set().union(*(metrics()[name].labels for name in query.chosen))
    shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert shown <= (query.grouped or known), "a label of the legend is not in the result"


@pytest.mark.parametrize("rule", ALERTS, ids=lambda r: r["alert"])
def test_alerts_query_existing_metrics_and_labels(rule: dict[str, Any]) -> None:
    assert complaints(rule["expr"]) == []
    query = taken_apart(rule["expr"])
    known = TARGET_LABELS | set().union(*(metrics()[name].labels for name in query.chosen))
    assert set(LABEL.findall(json.dumps(rule["annotations"]))) <= (query.grouped or known)
    assert set(rule["annotations"]) == {"summary", "description"}
    assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_names_of_alerts_and_panels_are_unique() -> None:
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS) > 10
    assert len({panel["title"] for panel in PANELS}) == len(PANELS) > 15
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    programs = {name.split("_")[1] for panel in PANELS for t in panel["targets"] for name in taken_apart(t["expr"]).chosen}
    assert programs == {"operator", "controller", "agent", "node"}


def test_panels_do_not_overlap() -> None:
    fields = [
        (p["gridPos"]["x"] + dx, p["gridPos"]["y"] + dy)
        for p in DASHBOARD["panels"]
        for dx in range(p["gridPos"]["w"])
        for dy in range(p["gridPos"]["h"])
    ]
    assert len(set(fields)) == len(fields)
    assert max(x for x, _ in fields) == 23


def test_dashboard_and_alerts_are_rendered_only_on_request() -> None:
    assert not [o for o in render() if o["kind"] == "PrometheusRule" or o["metadata"]["name"].endswith("-dashboard")]


def test_dashboard_and_alerts_are_rendered_unchanged(installed: Kube) -> None:
    objects = render(*WATCHED)
    (rules,) = [o for o in objects if o["kind"] == "PrometheusRule"]
    assert [rule for group in rules["spec"]["groups"] for rule in group["rules"]] == ALERTS
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    (dashboard,) = [o for o in objects if o["metadata"]["name"] == "sos-dashboard"]
    assert json.loads(dashboard["data"]["sos.json"]) == DASHBOARD
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    with served(installed, "PrometheusRule"):
        command = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
        done = installed.kubectl(*command, stdin=yaml.safe_dump_all([rules, dashboard]), check=False)
    assert (done.returncode, done.stderr) == (0, "")
