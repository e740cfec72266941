"""Values that organisations and platforms set: names, labels, security contexts, umbrella charts, values of earlier versions."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sos_compile
import yaml
from operator_kube import ROOT, Kube, tool
from operator_run import render
from sos_compile.artifacts import FIGURE8, example_world
from sos_operator.core.model.world import compile_settings
from sos_operator.process.settings import SettingsError, parse_settings

CHART = ROOT / "charts" / "sos"
EARLIER = 10
ACCOUNTS = (sos_compile.ServiceAccounts("sos-controller", "sos-agent", "sos-node"), sos_compile.ServiceAccounts())
IMAGES = {f"SOS_IMAGE_{part}": f"sos-{part.lower()}:1" for part in ("CONTROLLER", "AGENT", "NODE", "OVS")}


def template(chart: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [tool("helm"), "template", "sos", str(chart), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def git(*args: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, timeout=60, check=True).stdout


def operator_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [o for o in objects if o["kind"] == "Deployment" and o["metadata"]["name"].endswith("-operator")]
    return found


def settings_of(objects: list[dict[str, Any]]) -> Any:
    (container,) = operator_of(objects)["spec"]["template"]["spec"]["containers"]
    return parse_settings({e["name"]: e.get("value", "sos-system") for e in container["env"]})


def pods_of(settings: Any) -> dict[str, dict[str, Any]]:
    """Pod specs of an example's workloads by component, compiled with the operator's settings."""
    world = example_world("01-two-sites", FIGURE8)
    compiled = sos_compile.compile_world(
        sos_compile.World(objects=world.objects, nodes=world.nodes, settings=compile_settings(settings, 1))
    )
    workloads = [m for m in compiled.manifests if m["kind"] in ("Deployment", "DaemonSet")]
    return {m["metadata"]["labels"]["app.kubernetes.io/component"]: m["spec"]["template"]["spec"] for m in workloads}


@pytest.mark.parametrize(
    ("values", "prefix"),
    [
        ({}, "sos"),
        ({"nameOverride": "acceleration"}, "sos-acceleration"),
        ({"fullnameOverride": "wan"}, "wan"),
        ({"fullnameOverride": "w" * 60}, "w" * 50),
    ],
)
def test_names_begin_with_the_override(values: dict[str, str], prefix: str) -> None:
    objects = render(*(word for name, value in values.items() for word in ("--set", f"{name}={value}")))
    named = [o["metadata"]["name"] for o in objects if o["kind"] != "CustomResourceDefinition"]
    assert all(name.startswith(f"{prefix}-") for name in named)
    assert all(len(name) <= 63 for name in named)
    assert settings_of(objects).deployment == f"{prefix}-operator"


def test_common_labels_are_on_all_objects_and_no_selector() -> None:
    objects = [o for o in render("--set", "commonLabels.team=network") if o["kind"] != "CustomResourceDefinition"]
    assert {o["metadata"]["labels"].get("team") for o in objects} == {"network"}
    deployment = operator_of(objects)["spec"]
    assert deployment["template"]["metadata"]["labels"]["team"] == "network"
    assert "team" not in deployment["selector"]["matchLabels"]
    refused = template(CHART, "--set", r"commonLabels.app\.kubernetes\.io/instance=x")
    assert refused.returncode and "app.kubernetes.io/instance" in refused.stderr


def test_labels_of_values_are_merged_without_duplicates() -> None:
    values = ("--set", "commonLabels.team=a", "--set", "operator.podLabels.team=b", "--set", "monitoring.rules.enabled=true")
    done = template(CHART, *values, "--set", "monitoring.rules.labels.team=c", "--set", "monitoring.dashboard.enabled=true")
    manifests, _, rest = done.stdout.partition("  removal.yaml: |\n")
    recorded, _, others = rest.partition("\n---\n# Source: ")  # a manifest inside a ConfigMap
    for text in "\n---\n".join((manifests, textwrap.dedent(recorded), others)).split("\n---\n"):
        if "kind: CustomResourceDefinition" not in text:
            assert len(re.findall(r"^ {4}team:", text, re.MULTILINE)) <= 1 and len(re.findall(r"^ {8}team:", text, re.MULTILINE)) <= 1
    objects = [o for o in yaml.safe_load_all(done.stdout) if o]
    assert operator_of(objects)["spec"]["template"]["metadata"]["labels"]["team"] == "b"
    assert [o["metadata"]["labels"]["team"] for o in objects if o["kind"] == "PrometheusRule"] == ["c"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (dict.fromkeys(("runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "seccompProfile")), {}),
        ({"supplementalGroups": None, "fsGroup": None, "runAsUser": 7}, None),
    ],
)
def test_nulls_remove_fields_of_the_security_context(values: dict[str, Any], expected: dict[str, Any] | None) -> None:
    objects = render("--set-json", f"podSecurityContext={json.dumps(values)}")
    found = operator_of(objects)["spec"]["template"]["spec"]["securityContext"]
    assert settings_of(objects).pod_security == (found or {})
    assert not {"supplementalGroups", "fsGroup"} & set(found or ())
    assert expected is None or (found or {}) == expected


def test_every_pod_of_the_operator_has_an_existing_service_account_without_token() -> None:
    objects = render("--set", "serviceAccounts.annotations.owner=network")
    accounts = {o["metadata"]["name"]: o for o in objects if o["kind"] == "ServiceAccount"}
    assert all(account["metadata"]["annotations"] == {"owner": "network"} for account in accounts.values())
    pods = pods_of(settings_of(objects))
    assert set(pods) == {"controller", "agent", "node"}
    for component, pod in pods.items():
        account = accounts[pod["serviceAccountName"]]
        assert account["metadata"]["labels"]["app.kubernetes.io/component"] == component
        assert (account["automountServiceAccountToken"], pod["automountServiceAccountToken"]) == (False, False)
    bound = {subject["name"] for o in objects for subject in o.get("subjects", ())}
    assert bound == {operator_of(objects)["spec"]["template"]["spec"]["serviceAccountName"]}


def test_an_operator_without_accounts_removes_them_from_workloads(kube: Kube) -> None:
    """After `helm rollback`, the accounts are gone, and the previous operator's server-side apply must not leave their names behind."""
    with_accounts, without = (replace(parse_settings({"SOS_NAMESPACE": "default", **IMAGES}), service_accounts=a) for a in ACCOUNTS)
    for settings, expected in ((with_accounts, "sos-controller"), (without, None)):
        world = replace(example_world("01-two-sites", FIGURE8), settings=compile_settings(settings, 1))
        (deployment,) = [m for m in sos_compile.compile_world(world).manifests if m["kind"] == "Deployment"]
        deployment["metadata"].pop("ownerReferences", None)
        kube.kubectl("apply", "--server-side", "--field-manager=sos-operator", "-f", "-", stdin=json.dumps(deployment))
        pod = kube.get("deployment", deployment["metadata"]["name"], "-n", "default")["spec"]["template"]["spec"]
        assert (pod.get("serviceAccountName"), pod.get("serviceAccount")) == (expected, expected)
    kube.kubectl("delete", "deployment", deployment["metadata"]["name"], "-n", "default")


def test_pods_need_no_user_of_their_own_on_openshift() -> None:
    objects = render("-f", str(CHART / "ci" / "openshift-values.yaml"))
    pods = [o["spec"]["template"]["spec"] for o in objects if o["kind"] in ("Deployment", "Job")]
    pods.append(pods_of(settings_of(objects))["controller"])
    for pod in pods:
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(pod["securityContext"])
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert "runAsUser" not in container["securityContext"]


def test_default_pods_have_the_user_of_the_images() -> None:
    objects = render()
    expected = {
        "runAsNonRoot": True,
        **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 65532),
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert operator_of(objects)["spec"]["template"]["spec"]["securityContext"] == expected
    assert pods_of(settings_of(objects))["controller"]["securityContext"] == expected
    assert pods_of(parse_settings({"SOS_NAMESPACE": "sos-system", **IMAGES}))["controller"]["securityContext"] == expected


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SOS_POD_SECURITY", '{"privileged": true}', "'privileged' is none of"),
        ("SOS_POD_SECURITY", '{"runAsUser": "0"}', "SOS_POD_SECURITY.runAsUser"),
        ("SOS_SERVICE_ACCOUNTS", '{"ovs": "x"}', "'ovs' is none of"),
    ],
)
def test_a_wrong_setting_names_the_field(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=name) as caught:
        parse_settings({"SOS_NAMESPACE": "sos-system", **IMAGES, name: value})
    assert words in str(caught.value)


def test_extra_environment_reaches_operator_and_uninstall_job() -> None:
    extra = {"name": "HTTPS_PROXY", "value": "http://proxy.example.org:3128"}
    objects = render("--set-json", f"operator.extraEnv={json.dumps([extra])}")
    workloads = [o for o in objects if o["kind"] == "Deployment" or o["metadata"]["name"].endswith("-uninstall")]
    assert len(workloads) == 2
    for workload in workloads:
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        assert extra in container["env"]


@pytest.mark.parametrize(("enabled", "rendered"), [("true", True), ("false", False)])
def test_an_umbrella_chart_can_switch_the_chart_on_and_off(enabled: str, rendered: bool, tmp_path: Path) -> None:
    umbrella = {
        "apiVersion": "v2",
        "name": "umbrella",
        "version": "1.0.0",
        "dependencies": [{"name": "sos", "version": ">=0.0.0-0", "condition": "sos.enabled"}],
    }
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(umbrella))
    shutil.copytree(CHART, tmp_path / "charts" / "sos")
    done = template(tmp_path, "--set", f"sos.enabled={enabled}", "--set", "global.team=network", "--set", "global.annotations.a=b")
    assert done.returncode == 0, done.stderr
    kinds = {o["kind"] for o in yaml.safe_load_all(done.stdout) if o}
    assert ("Deployment" in kinds) == rendered


def test_values_of_earlier_versions_render_or_are_refused_by_name(tmp_path: Path) -> None:
    """`helm upgrade --reuse-values` renders the new chart with the old chart's defaults instead of its own."""
    shallow = git("rev-parse", "--is-shallow-repository").strip() == "true"
    commits = git("log", f"--max-count={EARLIER + 1}", "--format=%H", "--", "charts/sos/values.yaml").split()[1:]
    assert shallow or len(commits) == EARLIER
    rendered = 0
    for commit in commits:
        earlier = git("show", f"{commit}:charts/sos/values.yaml")
        chart = tmp_path / commit
        shutil.copytree(CHART, chart)
        (chart / "values.yaml").write_text(earlier)
        done = template(chart)
        if done.returncode:
            assert "values don't meet the specifications of the schema" in done.stderr, f"{commit}: {done.stderr}"
            assert "additional properties" in done.stderr, f"{commit}: {done.stderr}"
            continue
        rendered += 1
        objects = [o for o in yaml.safe_load_all(done.stdout) if o]
        assert settings_of(objects).deployment == "sos-operator", commit
    assert rendered or not commits, "no earlier version's values render"
