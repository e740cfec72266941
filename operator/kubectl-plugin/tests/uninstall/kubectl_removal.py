"""Removals in tests: sites and pods without an operator, and the Job of a removal, whose command runs in a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from operator_kube import ROOT, Kube, garbage_collector
from operator_nodes import Nodes, kubelets, start_pods
from operator_repeat import repeated
from operator_run import NAMESPACE, environment, eventually, operator_running

OURS = "app.kubernetes.io/managed-by=sos-operator"


def jobs_run(kube: Kube, code: int | None = None) -> AbstractContextManager[None]:
    """Play the Job controller: run the container's command in a process, with the rights of its pod, or use the given exit code, and set
    the Job's status."""

    def run() -> None:
        for job in kube.items("jobs", "-n", NAMESPACE):
            if not (job.get("status") or {}).get("conditions"):
                pod = job["spec"]["template"]["spec"]
                arguments, account = pod["containers"][0]["args"], pod["serviceAccountName"]
                settle(kube, job["metadata"]["name"], good=(ended(kube, arguments, account) if code is None else code) == 0)

    return repeated(run, every_s=0.2, end_s=130)


def ended(kube: Kube, arguments: list[str], account: str = "sos-operator") -> int:
    """Exit code of the operator's program with these arguments and rights."""
    command = [sys.executable, "-m", "sos_operator", *arguments]
    return subprocess.run(command, env=environment(kube, 0, {}, account), check=False, timeout=120).returncode


def settle(kube: Kube, name: str, *, good: bool) -> None:
    """Set the status of a Job that has ended."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    first, last = ("SuccessCriteriaMet", "Complete") if good else ("FailureTarget", "Failed")
    row = {"status": "True", "lastTransitionTime": now, "lastProbeTime": now, "reason": "Test", "message": "so"}
    status = {"startTime": now, "uncountedTerminatedPods": {}, **({"completionTime": now, "succeeded": 1} if good else {"failed": 1})}
    kube.patch_status("job", name, NAMESPACE, {**status, "conditions": [{**row, "type": first}, {**row, "type": last}]})


@contextmanager
def running(kube: Kube, tmp_path: Path) -> Iterator[Nodes]:
    """Sites, a service and pods that the operator created. The operator has stopped when the block begins, as if its Deployment were
    gone."""
    with Nodes(kube).serving() as nodes:
        with operator_running(kube, tmp_path):
            kube.kubectl("apply", "-f", str(ROOT / "examples" / "01-two-sites"))
            eventually("the DaemonSets", lambda: len(kube.items("daemonsets", "-n", NAMESPACE, "-l", OURS)) == 6)
            eventually("the finalizers", lambda: all(s["metadata"].get("finalizers") for s in kube.items("sossites")))
            start_pods(kube, nodes)
        with garbage_collector(kube), kubelets(kube):
            yield nodes
