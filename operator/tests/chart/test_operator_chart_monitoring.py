"""Dashboard and alerts: every metric and label in them exists, and the API server accepts the rendered objects."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_kube import ROOT, Kube
from operator_monitoring import TARGET_LABELS, complaints, metrics, served, taken_apart
from operator_run import NAMESPACE, render

CHART = ROOT / "charts" / "sos"
WATCHED = ("-f", str(CHART / "ci" / "watched-values.yaml"))
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
RUNBOOKS = (ROOT / "docs" / "alerts.md").read_text()
ALERTS = [rule for group in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"] if each["type"] == "query"}
VARIABLE = re.compile(r"label_values\((.*), (\w+)\)")
NAMES = re.compile(r'\{__name__=~"([\w|]+)"\}')
SELECTOR = re.compile(r"\b((?:sos|up)\w*)(?:\{([^}]*)\})?")
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


@pytest.mark.parametrize("target", [t for p in PANELS for t in p["targets"]], ids=lambda t: t["expr"])
def test_panels_follow_the_variables_that_apply_to_their_metrics(target: dict[str, str]) -> None:
    bare = re.sub(r"\b(by|on|group_left) ?\([^)]*\)", "", target["expr"])
    selectors = SELECTOR.findall(bare)
    assert selectors
    for name, matchers in selectors:
        program = name.split("_")[1]
        expected = {'service=~"$service"'} if "service" in metrics()[name].labels else set()
        expected |= {'pod=~"$controller"'} if program == "controller" else set()
        expected |= {'site=~"$site"'} if program in ("agent", "node") else set()
        assert set(filter(None, matchers.split(","))) == expected


def test_variables_list_values_of_existing_metrics_and_labels() -> None:
    assert set(VARIABLES) == {"site", "service", "controller"}
    for variable in VARIABLES.values():
        selector, label = VARIABLE.fullmatch(variable["query"]).groups()  # type: ignore[union-attr]
        listed = NAMES.fullmatch(selector)
        names = listed[1].split("|") if listed else list(taken_apart(selector).chosen)
        assert names and all(label in metrics()[name].labels | TARGET_LABELS for name in names), variable["query"]
        assert variable["multi"] and variable["includeAll"] and variable["allValue"] == ".*", "all also matches series without the label"


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


def as_rendered(rule: dict[str, Any], page: str) -> dict[str, Any]:
    own: dict[str, Any] = json.loads(json.dumps(rule).replace("RELEASE_NAMESPACE", NAMESPACE))
    return {**own, "annotations": {**own["annotations"], "runbook_url": f"{page}#{rule['alert'].lower()}"}}


def test_runbooks_of_another_page_are_linked_by_a_value() -> None:
    (rules,) = [o for o in render(*WATCHED, "--set", "monitoring.rules.runbookUrl=https://wiki.test/sos") if o["kind"] == "PrometheusRule"]
    urls = [rule["annotations"]["runbook_url"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    assert urls == [f"https://wiki.test/sos#{rule['alert'].lower()}" for rule in ALERTS]


def test_runbooks_of_a_released_chart_are_those_of_its_version(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "sos")
    with (tmp_path / "sos" / "Chart.yaml").open("a") as chart:
        chart.write("home: https://host.test/owner/sos\n")
    (rules,) = [o for o in render(*WATCHED, chart=tmp_path / "sos") if o["kind"] == "PrometheusRule"]
    rule = rules["spec"]["groups"][0]["rules"][0]
    assert rule["annotations"]["runbook_url"] == f"https://host.test/owner/sos/blob/v0.1.0/docs/alerts.md#{rule['alert'].lower()}"


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    parts = re.split(r"^### (\w+)$", re.sub(r"^## .*$", "", RUNBOOKS, flags=re.MULTILINE), flags=re.MULTILINE)
    assert parts[1::2] == [rule["alert"] for rule in ALERTS], "sections and alerts differ, or their order does"
    for name, section in zip(parts[1::2], parts[2::2], strict=True):
        lines = section.strip().splitlines()
        assert lines[0].endswith("."), f"{name}: no meaning"
        assert [line.split(":")[0] for line in lines[-3:]] == ["- Impact", "- Look", "- Remedy"], name


def test_dashboard_and_alerts_are_rendered_only_on_request() -> None:
    assert not [o for o in render() if o["kind"] == "PrometheusRule" or o["metadata"]["name"].endswith("-dashboard")]


def test_dashboard_and_alerts_are_rendered_unchanged(installed: Kube) -> None:
    objects = render(*WATCHED)
    (rules,) = [o for o in objects if o["kind"] == "PrometheusRule"]
    assert [rule for group in rules["spec"]["groups"] for rule in group["rules"]] == [
        as_rendered(rule, "docs/alerts.md") for rule in ALERTS
    ]
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    (dashboard,) = [o for o in objects if o["metadata"]["name"] == "sos-dashboard"]
    assert json.loads(dashboard["data"]["sos.json"]) == DASHBOARD
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    with served(installed, "PrometheusRule"):
        command = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
        done = installed.kubectl(*command, stdin=yaml.safe_dump_all([rules, dashboard]), check=False)
    assert (done.returncode, done.stderr) == (0, "")
