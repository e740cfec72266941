"""`helm test`: its pods, names of networks as the operator creates them, and commands that exist in the image."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_kube import ROOT, Kube, free_port, tool
from operator_run import NAMESPACE, eventually, helm, render
from sos_compile.manifests import naming

TESTED = ("-f", str(ROOT / "charts" / "sos" / "ci" / "tested-values.yaml"))
AGENTS = ROOT / "agent-image"
PROBE = AGENTS / "target" / "release" / "sos-probe"


def hooks(*values: str) -> list[dict[str, Any]]:
    return [o for o in render(*values) if (o["metadata"].get("annotations") or {}).get("helm.sh/hook") == "test"]


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(container)


def by_kind(*values: str) -> dict[str, dict[str, Any]]:
    return {hook["kind"]: hook for hook in hooks(*values)}


def test_without_values_helm_test_prints_missing_values_and_fails() -> None:
    (job,) = hooks()
    assert job["kind"] == "Job"
    assert "annotations" not in job["spec"]["template"]["metadata"], "the pod is attached to no bridge"
    done = subprocess.run(container_of(job)["command"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1, "a test that measured nothing is not green"
    assert "No bytes were moved" in done.stdout
    assert f"helm upgrade sos charts/sos -n {NAMESPACE} --reuse-values \\\n" in done.stdout
    assert done.stdout.endswith(f"kubectl logs job/{job['metadata']['name']} -n {NAMESPACE}\n")


def untold_words(kube: Kube) -> str:
    """Output of the release's Job."""
    hooks = helm(kube, "get", "hooks", "sos", "-n", NAMESPACE)
    (job,) = [o for o in yaml.safe_load_all(hooks) if o and o["kind"] == "Job" and o["metadata"]["name"] == "sos-test"]
    return str(container_of(job)["command"][-1])


def test_without_values_helm_test_names_the_existing_sites(installed: Kube) -> None:
    chart = str(ROOT / "charts" / "sos")
    helm(installed, "upgrade", "sos", chart, "-n", NAMESPACE)
    assert "There was no SosSite when revision " in untold_words(installed)
    about = {"apiVersion": "sos.network/v1alpha1", "kind": "SosSite"}
    spec = {"nodeSelector": {"matchLabels": {"a": "b"}}}
    installed.apply(*({**about, "metadata": {"name": name}, "spec": spec} for name in ("west", "east")))
    try:
        helm(installed, "upgrade", "sos", chart, "-n", NAMESPACE)
        said = untold_words(installed)
        assert re.search(r"existed when revision \d+ of the release was made: east, west\. Set test\.client", said), said
        assert "There was no SosSite" not in said
    finally:
        installed.kubectl("delete", "sossite", "west", "east")
        helm(installed, "upgrade", "sos", chart, "-n", NAMESPACE)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((), "transfers nothing and fails until the values under test name two sites"),
        (TESTED, "Check that bytes arrive, faster than by plain TCP: helm test sos"),
        ((*TESTED, "--set", "test.port=0"), "no comparison): helm test sos"),
    ],
)
def test_the_notes_describe_the_comparison_of_helm_test(installed: Kube, values: tuple[str, ...], words: str) -> None:
    """Helm prints the notes after the test, too."""
    said = helm(installed, "upgrade", "sos", str(ROOT / "charts" / "sos"), "-n", NAMESPACE, "--dry-run=server", *values)
    assert words in said


def test_pods_of_helm_test_attach_to_networks_of_the_operator() -> None:
    server, job = sorted(hooks(*TESTED), key=lambda o: int(o["metadata"]["annotations"]["helm.sh/hook-weight"]))
    assert (server["kind"], job["kind"]) == ("Deployment", "Job"), "helm waits for pods and jobs: a server must be neither"
    for workload, site, address in ((server, "east", "10.0.0.140/24"), (job, "west", "10.0.0.12/24")):
        (joined,) = json.loads(workload["spec"]["template"]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
        assert (joined["name"], joined["namespace"], joined["ips"]) == (naming.network("sos", site), NAMESPACE, [address])
        assert workload["spec"]["template"]["spec"]["nodeSelector"] == {"sos.network/site": site}


class Sessions(BaseHTTPRequestHandler):
    """A controller that reports a session for every client connected to the `accelerated` port."""

    accelerated = 0

    def do_GET(self) -> None:
        table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        rows = [row for row in table if int(row[2].split(":")[1], 16) == self.accelerated and row[3] == "01"]
        ends = [tuple(f"{socket.inet_ntoa(struct.pack('<I', int(a[:8], 16)))}:{int(a[9:], 16)}" for a in row[1:3]) for row in rows]
        body = json.dumps({"sessions": [{"client": one, "server": other, "state": "Active"} for one, other in ends], "total": len(ends)})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Suppress the request log."""


@contextmanager
def controller(accelerated: int) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Sessions,), {"accelerated": accelerated}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@contextmanager
def far_end(command: list[str]) -> Iterator[dict[str, int]]:
    """Run the server's command with an open standard input, as with `stdin: true`."""
    with subprocess.Popen([str(PROBE), *command[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        assert serving.stdin is not None
        yield json.loads(serving.stdout.readline())
        serving.stdin.close()
        assert serving.wait(timeout=10) == 0


def near_end(command: list[str], controller: str) -> tuple[int, str]:
    """Run the Job's command, with this machine in place of server and controller."""
    assert command[0] == "sos-probe"
    local = [
        re.sub(r"^--controller=.*", f"--controller={controller}", re.sub(r"^10\.0\.0\.140$", "127.0.0.1", word)) for word in command[1:]
    ]
    done = subprocess.run([str(PROBE), *local], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize("accelerated", [True, False])
def test_helm_test_commands_interoperate_and_fail_without_acceleration(accelerated: bool) -> None:
    plain, covered = free_port(), free_port()
    values = (f"test.plainPort={plain}", f"test.port={covered}", "test.seconds=1", "test.leastGain=0.1")
    found = by_kind(*TESTED, *(word for value in values for word in ("--set-json", value)))
    server, job = container_of(found["Deployment"]), container_of(found["Job"])
    assert server["stdin"] is True, "with a closed standard input, the probe ends immediately"
    assert f"--controller=http://{naming.controller('sos', 'default')}.{NAMESPACE}.svc:8080" in job["command"]
    assert server["readinessProbe"]["tcpSocket"]["port"] == plain
    with far_end(server["command"]) as ports, controller(covered if accelerated else plain) as url:
        assert ports == {"plain": plain, "through": covered}
        code, said = near_end(job["command"], url)
    assert (code, said.splitlines()[-1]) == ((0, "passed") if accelerated else (1, "FAILED")), said
    assert (f"port {covered} was not accelerated" in said) != accelerated
    assert (f"port {plain} is accelerated: name a port" in said) != accelerated
    assert f"plain   port {plain}" in said
    assert f"service port {covered}" in said


def test_helm_test_without_port_or_controller_reports_no_comparison() -> None:
    values = (f"test.plainPort={free_port()}", "test.port=0", "test.controller=", "test.seconds=1")
    found = by_kind(*TESTED, *(word for value in values for word in ("--set", value)))
    with far_end(container_of(found["Deployment"])["command"]) as ports:
        assert ports["through"] is None
        code, said = near_end(container_of(found["Job"])["command"], "")
    assert (code, said.splitlines()[-1]) == (0, "passed")
    assert "nothing was accelerated, and nothing compared" in said


def test_an_absent_server_fails_helm_test_within_its_wait() -> None:
    done = subprocess.run(
        [str(PROBE), "compare", "127.0.0.1", f"--plain-port={free_port()}", "--wait=1"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "does not answer within 1 s" in done.stdout
    assert done.stdout.splitlines()[-1] == "FAILED"


def seconds(file: str, name: str) -> int:
    """Value of a constant of sos-probe in seconds."""
    source = (AGENTS / "crates" / "sos-probe" / "src" / file).read_text()
    (found,) = re.findall(rf"^(?:pub )?const {name}: Duration = Duration::from_secs\((\d+)\);$", source, re.MULTILINE)
    return int(found)


def test_helm_test_reports_failures_before_its_deadline() -> None:
    connect, stall = seconds("transfer.rs", "CONNECT_WITHIN"), seconds("transfer.rs", "STALL")
    usage = subprocess.run([str(PROBE), "compare", "--help"], capture_output=True, text=True, check=True).stdout
    (wait,) = re.findall(r"Time to wait for the server, in seconds \[default: (\d+)\]", usage)
    waiting = int(wait) + connect + seconds("connect.rs", "SETTLE")
    for asked in (1, 60):
        each = connect + stall + asked + seconds("transfer/wire.rs", "LONGEST_END") + seconds("compare.rs", "HOLD")
        job = by_kind(*TESTED, "--set", f"test.seconds={asked}")["Job"]
        assert waiting + 2 * each < job["spec"]["activeDeadlineSeconds"]
        assert f"--seconds={asked}" in container_of(job)["command"]
    (most,) = re.findall(r"MOST_SECONDS: u16 = (\d+);", (AGENTS / "crates" / "sos-probe" / "src" / "transfer" / "wire.rs").read_text())
    schema = json.loads((ROOT / "charts" / "sos" / "values.schema.json").read_text())
    assert schema["properties"]["test"]["properties"]["seconds"]["maximum"] == int(most), "helm and the probe accept the same maximum"


def test_helm_test_has_no_rights_and_leaves_nothing() -> None:
    for workload in hooks(*TESTED):
        pod = workload["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert "serviceAccountName" not in pod
    (job,) = [o for o in hooks(*TESTED) if o["kind"] == "Job"]
    assert job["spec"]["ttlSecondsAfterFinished"] <= 600
    assert job["spec"]["backoffLimit"] == 0, "a retry would hide a failure"
    (server,) = [o for o in hooks(*TESTED) if o["kind"] == "Deployment"]
    assert {"hook-succeeded", "hook-failed"} <= set(server["metadata"]["annotations"]["helm.sh/hook-delete-policy"].split(","))


STAMP = "2026-01-01T00:00:00Z"
ENDS = {"Complete": ("SuccessCriteriaMet", "succeeded"), "Failed": ("FailureTarget", "failed")}


@pytest.mark.parametrize("end", sorted(ENDS))
def test_helm_waits_for_the_job_and_deletes_the_server(installed: Kube, end: str) -> None:
    """Runs helm on a real API server; the test acts as the kubelet and completes the Job."""
    chart = str(ROOT / "charts" / "sos")
    helm(installed, "upgrade", "sos", chart, "-n", NAMESPACE, *TESTED)
    command = [tool("helm"), "--kubeconfig", str(installed.admin), "test", "sos", "-n", NAMESPACE, "--timeout", "60s"]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
            eventually("the Job", lambda: installed.kubectl("get", "job", "sos-test", "-n", NAMESPACE, check=False).returncode == 0)
            assert installed.get("deployment", "sos-test-server", "-n", NAMESPACE)["spec"]["replicas"] == 1
            assert running.poll() is None, "helm did not wait"
            before, counter = ENDS[end]
            rows = [{"type": each, "status": "True", "lastTransitionTime": STAMP, "lastProbeTime": STAMP} for each in (before, end)]
            times = {"startTime": STAMP} | ({"completionTime": STAMP} if end == "Complete" else {})
            installed.patch_status("job", "sos-test", NAMESPACE, {counter: 1, "conditions": rows, **times})
            said, _ = running.communicate(timeout=60)
        assert (running.returncode == 0) == (end == "Complete"), said
        assert installed.kubectl("get", "deployment", "sos-test-server", "-n", NAMESPACE, check=False).returncode != 0
        assert installed.get("job", "sos-test", "-n", NAMESPACE), "the Job must remain, so that users can read its log"
    finally:
        installed.kubectl("delete", "job,deployment", "-l", "app.kubernetes.io/component in (test,test-server)", "-n", NAMESPACE)
        helm(installed, "upgrade", "sos", chart, "-n", NAMESPACE)
