"""The chart's alerts on series, evaluated by promtool: cases of tables/alerts.yaml, and the effect of a missing series."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_kube import ROOT, tool
from operator_monitoring import TARGET_LABELS, metrics, taken_apart
from operator_run import render

Json = dict[str, Any]
TABLE: dict[str, list[Json]] = yaml.safe_load((ROOT / "operator" / "tests" / "tables" / "alerts.yaml").read_text())
SERIES = re.compile(r"(\w+)\{(.*)\}")
LABEL = re.compile(r'(\w+)="')


@pytest.fixture(scope="module")
def rules() -> dict[str, Json]:
    """The alerts as the chart renders them, by name."""
    (found,) = [o for o in render("--set", "monitoring.rules.enabled=true") if o["kind"] == "PrometheusRule"]
    return {rule["alert"]: rule for group in found["spec"]["groups"] for rule in group["rules"]}


def evaluated(rule: Json, cases: Sequence[Json], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run promtool on cases of one alert. Of the annotations, cases state only the summary."""
    own = {**rule, "annotations": {"summary": rule["annotations"]["summary"]}}
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "alerts", "rules": [own]}]}))
    tests = [
        {
            "name": case["case"],
            "interval": "1m",
            "input_series": [{"series": series, "values": str(values)} for series, values in case["series"].items()],
            "alert_rule_test": [
                {"eval_time": case["at"], "alertname": rule["alert"], "exp_alerts": [fired(rule, f) for f in case["fires"]]}
            ],
        }
        for case in cases
    ]
    (folder / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}))
    command = [tool("promtool"), "test", "rules", str(folder / "tests.yaml")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def fired(rule: Json, expected: Json) -> Json:
    return {"exp_labels": expected["labels"] | rule["labels"], "exp_annotations": {"summary": expected["summary"]}}


def without(case: Json, metric: str) -> Json:
    """A case without the series of a metric."""
    return {**case, "series": {series: values for series, values in case["series"].items() if not series.startswith(f"{metric}{{")}}


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(rules: dict[str, Json]) -> None:
    assert list(TABLE) == list(rules)
    assert [name for name, cases in TABLE.items() if {bool(case["fires"]) for case in cases} != {True, False}] == []


@pytest.mark.parametrize("name", TABLE)
def test_an_alert_fires_only_when_it_should(name: str, rules: dict[str, Json], tmp_path: Path) -> None:
    done = evaluated(rules[name], TABLE[name], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", TABLE)
def test_a_missing_series_fails_a_case_of_its_alert(name: str, rules: dict[str, Json], tmp_path: Path) -> None:
    """A rule that no longer matches a series, because the series or the rule was renamed, cannot pass the cases."""
    for metric in taken_apart(rules[name]["expr"]).chosen:
        changed = [(case, without(case, metric)) for case in TABLE[name]]
        less = [after for before, after in changed if before != after]
        done = evaluated(rules[name], less, tmp_path)
        assert less and done.returncode != 0, f"no case of {name} needs {metric}"
        assert f"alertname: {name}" in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("name", TABLE)
def test_cases_have_the_series_that_programs_export(name: str) -> None:
    """Programs are compared with spec/metrics by their own tests, and the cases here, so a renamed metric fails one of the two."""
    for series in (series for case in TABLE[name] for series in case["series"]):
        metric, inside = SERIES.fullmatch(series).groups()  # type: ignore[union-attr]
        labels = set(LABEL.findall(inside))
        assert metric in metrics(), f"no program has {metric}"
        assert labels - TARGET_LABELS <= metrics()[metric].labels <= labels, series
