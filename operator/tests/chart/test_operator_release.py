"""Objects that the operator creates once per release, and optional kinds of the cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_fixtures import children, populated
from operator_kube import ROOT, Kube
from operator_monitoring import served
from operator_run import IMAGES, NAMESPACE, eventually, operator_running, render
from sos_compile.artifacts import FIGURE8, example_world
from sos_compile.compiler import compile_world
from sos_operator.core.desired.release import METRICS_PORTS, release_manifests
from sos_operator.core.model.kinds import kind_of
from sos_operator.process.settings import SettingsError, parse_settings

REQUIRED = {"SOS_NAMESPACE": NAMESPACE, **IMAGES}
MONITORS = json.dumps({"interval": "15s", "labels": {"release": "prometheus"}})


def manifests(**env: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(m["kind"], m["metadata"]["name"]): m for m in release_manifests(parse_settings(REQUIRED | env))}


def templates() -> list[dict[str, Any]]:
    """Pod templates of a whole release: the chart's and an example's."""
    compiled = compile_world(example_world("01-two-sites", FIGURE8)).manifests
    workloads = [m for m in (*compiled, *render()) if m["kind"] in ("DaemonSet", "Deployment")]
    return [m["spec"]["template"] for m in workloads]


def test_the_budget_of_controllers_allows_one_eviction() -> None:
    assert list(manifests()) == [("PodDisruptionBudget", "sos-controllers")]
    spec = manifests()["PodDisruptionBudget", "sos-controllers"]["spec"]
    assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    chosen = [t for t in templates() if spec["selector"]["matchLabels"].items() <= t["metadata"]["labels"].items()]
    assert [c["name"] for t in chosen for c in t["spec"]["containers"]] == ["controller"]


def test_every_pod_is_scraped_only_at_its_metrics_port() -> None:
    made = manifests(SOS_POD_MONITORS=MONITORS)
    monitors = {name.removeprefix("sos-"): m for (kind, name), m in made.items() if kind == "PodMonitor"}
    assert set(monitors) == set(METRICS_PORTS) == {"operator", "controller", "agent", "node"}
    scraped = []
    for component, monitor in monitors.items():
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "15s")
        (keep,) = [rule for rule in endpoint["relabelings"] if rule["action"] == "keep"]
        for template in templates():
            if not monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items():
                continue
            ports = [p["name"] for c in template["spec"]["containers"] for p in c.get("ports", [])]
            # Prometheus anchors the regular expressions of relabeling rules at both ends.
            kept = [name for name in ports if re.fullmatch(keep["regex"], name)]
            assert len(kept) == 1, (component, ports)
            scraped.append(component)
    assert sorted(set(scraped)) == sorted(METRICS_PORTS)
    assert len(scraped) == len(templates()), "a pod without a PodMonitor"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SOS_NETWORK_POLICIES", "{", "not JSON"),
        ("SOS_NETWORK_POLICIES", "[]", "not a JSON object"),
        ("SOS_NETWORK_POLICIES", '{"opneflow": []}', "'opneflow' is none of openflow, api"),
        ("SOS_NETWORK_POLICIES", '{"api": {}}', "SOS_NETWORK_POLICIES.api: {} is not a JSON array"),
        ("SOS_POD_MONITORS", '{"labels": 3}', "SOS_POD_MONITORS.labels: 3 is not a JSON dict"),
    ],
)
def test_wrong_settings_name_the_variable(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=name) as caught:
        parse_settings(REQUIRED | {name: value})
    assert words in str(caught.value)


@given(st.booleans(), st.booleans())
def test_releases_contain_only_kinds_the_operator_handles(policies: bool, monitors: bool) -> None:
    env = ({"SOS_NETWORK_POLICIES": "{}"} if policies else {}) | ({"SOS_POD_MONITORS": "{}"} if monitors else {})
    made = release_manifests(parse_settings(REQUIRED | env))
    assert {kind_of(m).kind for m in made} == {"PodDisruptionBudget"} | ({"PodMonitor"} if monitors else set())


def names_of(kube: Kube, kind: str) -> set[str]:
    return {o["metadata"]["name"] for o in children(kube, kind)}


def assert_no_object_can_be_taken_for_the_releases(kube: Kube) -> None:
    """Argo CD, tracking by label, prunes objects without an owner that carry the label of the application and are in no template."""
    kinds = ("secrets", "configmaps", "poddisruptionbudgets", "podmonitors", "networkpolicies", "services", "deployments")
    ours = [o["metadata"] for kind in kinds for o in children(kube, kind)]
    alone = {meta["name"] for meta in ours if not meta.get("ownerReferences")}
    assert alone >= {"sos-master", "sos-operator-state", "sos-controllers", "sos-node"}
    assert not [m["name"] for m in ours if not m.get("ownerReferences") and "app.kubernetes.io/instance" in m["labels"]]


def test_policies_and_pod_monitors_follow_settings_and_kinds(installed: Kube, tmp_path: Path) -> None:
    """Runs with the chart's rights: no failure without the kind PodMonitor, creation with the kind, removal when monitoring is off."""
    wanted = {"sos-operator", "sos-controller", "sos-agent", "sos-node"}
    policies = json.dumps({"openflow": [], "api": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]})
    with populated(installed) as kube:
        controller = ROOT / "examples" / "01-two-sites" / "defaults.yaml"
        kube.kubectl("apply", "-f", str(controller))
        (tmp_path / "on").mkdir()
        extra = {"SOS_POD_MONITORS": MONITORS, "SOS_NETWORK_POLICIES": policies, "SOS_RESYNC_SECONDS": "1"}
        with operator_running(kube, tmp_path / "on", **extra) as running:
            eventually("the budget", lambda: names_of(kube, "poddisruptionbudgets") == {"sos-controllers"})
            eventually("the policy", lambda: names_of(kube, "networkpolicies") == {"sos-controller-default"})
            stored = kube.get("networkpolicy", "sos-controller-default", "-n", NAMESPACE)["spec"]
            assert stored["policyTypes"] == ["Ingress", "Egress"]
            assert "egress" not in stored
            assert {"ipBlock": {"cidr": "192.0.2.0/24"}} in stored["ingress"][1]["from"]
            running.settle()
            assert 'sos_operator_reconcile_total{result="failed"}' not in running.http("/metrics")[1]
            with served(kube, "PodMonitor"):
                eventually("the PodMonitors", lambda: names_of(kube, "podmonitors") == wanted)
                running.settle()
                assert_no_object_can_be_taken_for_the_releases(kube)
                kube.kubectl("delete", "podmonitor", "sos-node", "-n", NAMESPACE)
                eventually("the deleted PodMonitor", lambda: names_of(kube, "podmonitors") == wanted)
                running.process.terminate()
                running.process.wait(timeout=20)
                (tmp_path / "off").mkdir()
                with operator_running(kube, tmp_path / "off", SOS_RESYNC_SECONDS="1", SOS_NETWORK_POLICIES=""):
                    eventually("no PodMonitors", lambda: names_of(kube, "podmonitors") == set())
                    eventually("no policies", lambda: names_of(kube, "networkpolicies") == set())
