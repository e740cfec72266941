"""`helm test`: what it would start, that it names real networks, and that what it runs exists."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from operator_kube import ROOT, Kube, tool
from operator_run import NAMESPACE, eventually, helm, render
from sos_compile import naming
from sos_operator import probe

TESTED = ("-f", str(ROOT / "charts" / "sos" / "ci" / "tested-values.yaml"))


def hooks(*values: str) -> list[dict[str, Any]]:
    return [o for o in render(*values) if (o["metadata"].get("annotations") or {}).get("helm.sh/hook") == "test"]


def command_of(workload: dict[str, Any]) -> list[str]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    command: list[str] = container["command"]
    assert command[:3] == ["python", "-m", "sos_operator.probe"]
    return command[3:]


def test_untold_it_says_what_is_missing_and_passes() -> None:
    (job,) = hooks()
    assert job["kind"] == "Job"
    assert "annotations" not in job["spec"]["template"]["metadata"], "no bridge is joined"
    done = subprocess.run(
        [sys.executable, "-m", "sos_operator.probe", *command_of(job)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0
    assert "No bytes were moved" in done.stdout
    assert f"helm upgrade sos charts/sos -n {NAMESPACE} --reuse-values" in done.stdout
    assert f"kubectl logs job/{job['metadata']['name']} -n {NAMESPACE}" in done.stdout


def test_told_it_joins_the_networks_that_the_operator_makes() -> None:
    server, job = sorted(hooks(*TESTED), key=lambda o: int(o["metadata"]["annotations"]["helm.sh/hook-weight"]))
    assert (server["kind"], job["kind"]) == ("Deployment", "Job"), "helm waits for pods and jobs: a server must be neither"
    for workload, site, address in ((server, "east", "10.0.0.140/24"), (job, "west", "10.0.0.12/24")):
        (joined,) = json.loads(workload["spec"]["template"]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
        assert (joined["name"], joined["namespace"], joined["ips"]) == (naming.network("sos", site), NAMESPACE, [address])
        assert workload["spec"]["template"]["spec"]["nodeSelector"] == {"sos.network/site": site}


def test_both_ends_understand_their_commands() -> None:
    server, job = (next(o for o in hooks(*TESTED) if o["kind"] == kind) for kind in ("Deployment", "Job"))
    serving, comparing = (probe.build_parser().parse_args(command_of(each)) for each in (server, job))
    assert serving.ports == [18001, 443]
    assert (comparing.server, comparing.plain_port, comparing.port) == ("10.0.0.140", 18001, 443)
    assert comparing.controller == f"http://{naming.controller('sos', 'default')}.{NAMESPACE}.svc:8080"
    assert {comparing.plain_port, comparing.port} == set(serving.ports)
    most = comparing.wait + 2 * (comparing.seconds + probe.STALL_S)
    assert most < job["spec"]["activeDeadlineSeconds"], "it must say itself why it failed"


def test_it_has_no_rights_and_leaves_nothing() -> None:
    for workload in hooks(*TESTED):
        pod = workload["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert "serviceAccountName" not in pod
    (job,) = [o for o in hooks(*TESTED) if o["kind"] == "Job"]
    assert job["spec"]["ttlSecondsAfterFinished"] <= 600
    assert job["spec"]["backoffLimit"] == 0, "a second try would hide a failure"
    (server,) = [o for o in hooks(*TESTED) if o["kind"] == "Deployment"]
    assert {"hook-succeeded", "hook-failed"} <= set(server["metadata"]["annotations"]["helm.sh/hook-delete-policy"].split(","))


STAMP = "2026-01-01T00:00:00Z"
ENDS = {"Complete": ("SuccessCriteriaMet", "succeeded"), "Failed": ("FailureTarget", "failed")}


@pytest.mark.parametrize("end", sorted(ENDS))
def test_helm_starts_both_ends_waits_for_the_near_one_and_takes_the_far_one_away(installed: Kube, end: str) -> None:
    """Helm itself on a real API server; the test plays the kubelet that the Job would need."""
    chart = str(ROOT / "charts" / "sos")
    helm(installed, "upgrade", "sos", chart, "-n", NAMESPACE, *TESTED)
    command = [tool("helm"), "--kubeconfig", str(installed.admin), "test", "sos", "-n", NAMESPACE, "--timeout", "60s"]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
            eventually("the Job", lambda: installed.kubectl("get", "job", "sos-test", "-n", NAMESPACE, check=False).returncode == 0)
            assert installed.get("deployment", "sos-test-server", "-n", NAMESPACE)["spec"]["replicas"] == 1
            assert running.poll() is None, "it did not wait"
            before, counter = ENDS[end]
            rows = [{"type": each, "status": "True", "lastTransitionTime": STAMP, "lastProbeTime": STAMP} for each in (before, end)]
            times = {"startTime": STAMP} | ({"completionTime": STAMP} if end == "Complete" else {})
            installed.patch_status("job", "sos-test", NAMESPACE, {counter: 1, "conditions": rows, **times})
            said, _ = running.communicate(timeout=60)
        assert (running.returncode == 0) == (end == "Complete"), said
        assert installed.kubectl("get", "deployment", "sos-test-server", "-n", NAMESPACE, check=False).returncode != 0
        assert installed.get("job", "sos-test", "-n", NAMESPACE), "its log must be there to read"
    finally:
        installed.kubectl("delete", "job,deployment", "-l", "app.kubernetes.io/component in (test,test-server)", "-n", NAMESPACE)
        helm(installed, "upgrade", "sos", chart, "-n", NAMESPACE)
