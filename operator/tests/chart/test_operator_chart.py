"""The chart: rendered objects, their admission by the API server, and up-to-date copies of generated files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sos_compile
import yaml
from operator_kube import ROOT, Kube, tool
from operator_monitoring import served
from operator_run import NAMESPACE, helm, render
from sos_operator.core.model.kinds import CHILD_KINDS, JOB, NODE, OWN_KINDS, POD
from sos_operator.process.settings import SettingsError, parse_settings

CHART = ROOT / "charts" / "sos"
SCENARIOS = sorted((CHART / "ci").glob("*-values.yaml"))


def helm_alone(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tool("helm"), *args], capture_output=True, text=True, timeout=60, check=False)


def find(objects: list[dict[str, Any]], kind: str, component: str = "operator") -> dict[str, Any]:
    found = [o for o in objects if o["kind"] == kind and o["metadata"]["labels"].get("app.kubernetes.io/component") == component]
    assert len(found) == 1, (kind, [o["metadata"]["name"] for o in found])
    return found[0]


def environment_of(workload: dict[str, Any]) -> dict[str, str]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return {e["name"]: e.get("value", NAMESPACE) for e in container["env"]}


def test_generated_files_are_fresh() -> None:
    """Covers CRDs and tables of values, API, metrics and alerts; generate.py also refuses a value without a description."""
    command = [sys.executable, str(ROOT / "scripts" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_schema_has_exactly_the_chart_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(part: dict[str, Any], known: dict[str, Any], path: str) -> None:
        known = schema["definitions"][known["$ref"].rpartition("/")[2]] if "$ref" in known else known
        if "properties" not in known:
            return
        assert known["additionalProperties"] is False, path
        assert set(known["properties"]) - {"global"} == set(part), path
        for name, value in part.items():
            compare(value, known["properties"][name], f"{path}.{name}")

    compare(values, schema, "")


@pytest.mark.parametrize("values", SCENARIOS, ids=lambda p: p.stem)
def test_helm_lint_accepts_the_chart(values: Path) -> None:
    done = helm_alone("lint", "--strict", str(CHART), "-f", str(values), "-n", NAMESPACE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", SCENARIOS, ids=lambda p: p.stem)
def test_the_api_server_accepts_all_rendered_objects(installed: Kube, values: Path) -> None:
    objects = render("-f", str(values))
    text = yaml.safe_dump_all(objects)
    command = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
    with served(installed, "PrometheusRule"):
        done = installed.kubectl(*command, stdin=text, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    assert len(done.stdout.splitlines()) == len(objects)


@pytest.mark.parametrize("values", SCENARIOS, ids=lambda p: p.stem)
def test_the_operator_parses_the_environment_of_the_chart(values: Path) -> None:
    objects = render("-f", str(values))
    given = yaml.safe_load(values.read_text())
    settings = parse_settings(environment_of(find(objects, "Deployment")))
    assert settings.namespace == NAMESPACE
    assert settings.deployment == find(objects, "Deployment")["metadata"]["name"]
    jobs = [o for o in objects if o["kind"] == "Job" and o["metadata"]["name"].endswith("-uninstall")]
    assert bool(jobs) == given.get("uninstall", {}).get("enabled", True)
    for job in jobs:
        environment = environment_of(job)
        assert parse_settings(environment).images == settings.images
        assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"


@pytest.mark.parametrize("values", SCENARIOS, ids=lambda p: p.stem)
def test_default_objects_are_valid(tmp_path: Path, values: Path) -> None:
    data = find(render("-f", str(values)), "ConfigMap")["data"] or {}
    wanted = yaml.safe_load(values.read_text()).get("defaults", {})
    expected = {f"sos{part}.yaml" for part in ("controller", "agent") if wanted.get(part, {}).get("enabled", True)}
    assert set(data) == expected
    for name, text in data.items():
        (tmp_path / name).write_text(text)
        for loaded in sos_compile.load([tmp_path / name]):
            assert sos_compile.admit(loaded.obj)[1] == []
            assert loaded.obj["metadata"] == {"name": "default"}


def test_only_several_operators_get_lease_budget_and_spread() -> None:
    alone, several = render(), render("--set", "operator.replicas=3", "--set", "operator.leaseSeconds=20")
    assert {(o["kind"], o["metadata"]["name"]) for o in several} - {(o["kind"], o["metadata"]["name"]) for o in alone} == {
        ("PodDisruptionBudget", "sos-operator")
    }
    spec = find(several, "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (3, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}})
    settings = parse_settings(environment_of(find(several, "Deployment")))
    assert (settings.lease, settings.lease_seconds) == ("sos-operator", 20)
    for selector in (
        find(several, "PodDisruptionBudget")["spec"]["selector"],
        spec["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"],
    ):
        assert selector == spec["selector"]
    spec = find(alone, "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert parse_settings(environment_of(find(alone, "Deployment"))).lease == ""
    assert "topologySpreadConstraints" not in spec["template"]["spec"]


def test_image_references_follow_the_values() -> None:
    plain = parse_settings(environment_of(find(render(), "Deployment"))).images
    assert (plain.controller, plain.ovs) == ("sos-controller:0.1.0", "sos-ovs:0.1.0")
    mirrored = parse_settings(environment_of(find(render("-f", str(CHART / "ci" / "airgapped-values.yaml")), "Deployment"))).images
    assert mirrored.controller == "mirror.example.org:5000/sos/sos-controller:0.1.0"
    assert re.fullmatch(r"mirror\.example\.org:5000/sos/sos-agent@sha256:[0-9a-f]{64}", mirrored.agent)
    assert mirrored.ovs == "other.example.org/third/ovs:3.1"
    assert (mirrored.pull_policy, mirrored.pull_secrets) == ("Always", ("mirror",))
    local = ("--set", "images.registry=r.example.org", "--set", "images.node.registry=", "--set", "images.node.repository=localhost/n")
    assert parse_settings(environment_of(find(render(*local), "Deployment"))).images.node == "localhost/n:0.1.0"


def test_values_override_the_resources_of_nodes() -> None:
    """The compiler's defaults apply unless values override them; null removes a default."""
    plain = parse_settings(environment_of(find(render(), "Deployment"))).resources
    assert plain == sos_compile.DefaultResources()
    more = ("--set", "dataPlane.resources.ovs.limits.memory=1Gi", "--set", "dataPlane.resources.node.requests=null")
    asked = parse_settings(environment_of(find(render(*more), "Deployment"))).resources
    assert asked.ovs == {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
    assert asked.node == {}


def test_values_override_ports_of_nodes_and_the_operator_refuses_collisions() -> None:
    assert parse_settings(environment_of(find(render(), "Deployment"))).ports == sos_compile.Ports()
    moved = environment_of(find(render("--set", "dataPlane.ports.node=29464", "--set", "dataPlane.ports.tunnels=24789"), "Deployment"))
    assert parse_settings(moved).ports == sos_compile.Ports(node=29464, tunnels=24789)
    with pytest.raises(SettingsError, match=r"SOS_PORTS\.node: 10001: 10000 to 11023 is for streams"):
        parse_settings(environment_of(find(render("--set", "dataPlane.ports.node=10001"), "Deployment")))


@pytest.mark.parametrize(
    ("value", "resource", "setting"), [("pods", "pods", "reads_pods"), ("services", "endpointslices", "reads_services")]
)
def test_the_right_to_read_and_the_setting_go_together(value: str, resource: str, setting: str) -> None:
    def rights(objects: list[dict[str, Any]]) -> bool:
        (role,) = (o for o in objects if o["kind"] == "ClusterRole" and o["metadata"]["name"] == "sos-operator")
        return any(resource in rule["resources"] for rule in role["rules"])

    for given, expected in (("true", True), ("false", False)):
        rendered = render("--set", f"rbac.{value}={given}")
        assert getattr(parse_settings(environment_of(find(rendered, "Deployment"))), setting) is rights(rendered) is expected


def test_modules_are_loaded_on_request() -> None:
    assert parse_settings(environment_of(find(render(), "Deployment"))).load_modules is False
    wanted = environment_of(find(render("--set", "dataPlane.loadModules=true"), "Deployment"))
    assert parse_settings(wanted).load_modules is True
    with pytest.raises(SettingsError, match="SOS_LOAD_MODULES: 'yes' is neither true nor false"):
        parse_settings({**wanted, "SOS_LOAD_MODULES": "yes"})


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("images.agnet.tag=1", "agnet"),
        ("operator.logLevel=LOUD", "logLevel"),
        ("uninstall.timeoutSeconds=5", "timeoutSeconds"),
        ("images.agent.digest=latest", "digest"),
        ("replicas=3", "replicas"),
        ("operator.replicas=0", "replicas"),
        ("operator.replicas=4", "replicas"),
        ("operator.leaseSeconds=1", "leaseSeconds"),
        ("dataPlane.resources.ovs.request.cpu=1", "request"),
        ("dataPlane.loadModules=vxlan", "loadModules"),
        ("networkPolicy.openFlowFrom=x", "openFlowFrom"),
        ("networkPolicy.apiFrom[0].podselector.x=1", "podselector"),
        ("monitoring.podMonitors.interval=often", "interval"),
        ("test.client.address=10.0.0.1", "address"),
        ("test.client.site=west", "test.server.site"),
    ],
)
def test_wrong_values_are_refused(assignment: str, words: str) -> None:
    done = helm_alone("template", "sos", str(CHART), "--set", assignment)
    assert done.returncode != 0
    assert words in done.stderr


def test_an_old_cluster_is_refused() -> None:
    done = helm_alone("template", "sos", str(CHART), "--kube-version", "1.30.0")
    assert done.returncode != 0
    assert "1.31" in done.stderr


def test_crds_are_kept_unless_values_disable_it() -> None:
    def policies(*values: str) -> list[str | None]:
        crds = [o for o in render(*values) if o["kind"] == "CustomResourceDefinition"]
        return [(o["metadata"].get("annotations") or {}).get("helm.sh/resource-policy") for o in crds]

    assert policies() == ["keep"] * 6
    assert policies("--set", "crds.keep=false") == [None] * 6
    assert policies("--set", "crds.enabled=false") == []


def test_workloads_are_locked_down() -> None:
    for kind, component in (("Deployment", "operator"), ("Job", "uninstall")):
        pod = find(render(), kind, component)["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert container["securityContext"] == wanted
    deployment = find(render(), "Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (1, "Recreate")


def test_names_are_short_and_differ_between_releases() -> None:
    long = render(release="a-release-with-a-name-of-fifty-three-characters-abcdef"[:53])
    assert all(len(o["metadata"]["name"]) <= 63 for o in long)
    one, other = (find(render(release=name), "Deployment")["metadata"]["name"] for name in ("sos", "my"))
    assert (one, other) == ("sos-operator", "my-sos-operator")


def test_rights_of_the_operator_are_minimal() -> None:
    """Cluster-wide writes are limited to status, one finalizer, the two default objects and events."""
    objects = render()
    rules = find(objects, "ClusterRole")["rules"]
    own = {kind.plural for kind in OWN_KINDS}
    writes = {
        (group, resource, verb, tuple(rule.get("resourceNames", ())))
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb not in ("get", "list", "watch")
    }
    expected = {("sos.network", f"{plural}/status", "patch", ()) for plural in own} | {("sos.network", "sossites", "patch", ())}
    expected |= {
        ("sos.network", plural, verb, ("default",)) for plural in ("soscontrollers", "sosagents") for verb in ("create", "patch", "delete")
    }
    assert writes == expected | {("", "events", "create", ())}
    readable = {resource for rule in rules for resource in rule["resources"] if "list" in rule["verbs"]}
    assert readable == own | {"nodes", "namespaces", "pods", "endpointslices"}
    named = {resource for rule in rules for resource in rule["resources"] if rule["verbs"] == ["get"]}
    assert named == {"services"}
    role = find(objects, "Role")["rules"]
    assert {resource for rule in role for resource in rule["resources"]} == {kind.plural for kind in (*CHILD_KINDS, POD, JOB)}
    (jobs,) = [rule for rule in role if JOB.plural in rule["resources"]]
    assert (jobs["verbs"], jobs["resourceNames"]) == (["delete"], ["sos-test"]), "only the Job of helm test"
    assert NODE.plural not in json.dumps(role)
    assert "*" not in json.dumps([rules, role])


def test_notes_end_with_the_next_command(installed: Kube) -> None:
    notes = helm(installed, "get", "notes", "sos", "-n", NAMESPACE).strip()
    assert notes.splitlines()[-1].strip() == "kubectl apply -f examples/02-overlay/ && kubectl get sos -A"
    assert (ROOT / "examples" / "01-two-sites").is_dir()


def test_an_upgrade_updates_crds(installed: Kube) -> None:
    """The CRDs are templates, because helm never upgrades files in crds/."""
    installed.kubectl("label", "crd", "soslinks.sos.network", "app.kubernetes.io/name=edited", "--overwrite")
    helm(installed, "upgrade", "sos", str(CHART), "-n", NAMESPACE)
    assert installed.get("crd", "soslinks.sos.network")["metadata"]["labels"]["app.kubernetes.io/name"] == "sos"
