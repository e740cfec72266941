"""`kubectl sos uninstall`: the operator's own removal in a Job built from its Deployment, followed by `--purge`."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from kubectl_removal import ended, jobs_run, running
from operator_fixtures import OWN, populated
from operator_kube import ROOT, Kube
from operator_plugin import INTERRUPTED, said, sos, sos_process, unreliable
from operator_run import NAMESPACE, eventually, helm, render
from sos_kubectl.lifecycle import removal

OURS = "app.kubernetes.io/managed-by=sos-operator"
PART_OF = "app.kubernetes.io/part-of=sos"


def rendered(kind: str, name: str) -> dict[str, Any]:
    (found,) = [obj for obj in render() if obj["kind"] == kind and obj["metadata"]["name"] == name]
    return found


def test_the_job_is_the_charts_hook() -> None:
    """Both run the same command of the operator, in the same container with the same rights."""
    made = removal.job(rendered("Deployment", "sos-operator"), 240, "abc123")
    hook = rendered("Job", "sos-uninstall")
    assert made["metadata"]["namespace"] == NAMESPACE and made["metadata"]["name"] == "sos-operator-uninstall-abc123"
    mine, theirs = (job["spec"]["template"]["spec"] for job in (made, hook))
    assert made["spec"]["activeDeadlineSeconds"] == hook["spec"]["activeDeadlineSeconds"]
    assert {key: mine[key] for key in theirs if key != "containers"} == {key: theirs[key] for key in theirs if key != "containers"}
    (one,), (other,) = mine["containers"], theirs["containers"]
    own = {"SOS_DEFAULTS_DIR", "SOS_HTTP_PORT"}  # variables of the operator's loop, which a removal does not read
    assert [env for env in one["env"] if env["name"] not in own] == other["env"]
    assert {key: one[key] for key in other if key != "env"} == {key: other[key] for key in other if key != "env"}


def test_another_deployment_is_refused() -> None:
    with pytest.raises(removal.RemovalError, match="no container 'operator'"):
        removal.job(
            {"metadata": {"name": "web", "namespace": "x"}, "spec": {"template": {"spec": {"containers": [{"name": "web"}]}}}}, 1, "a"
        )


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ([], ""),
        ([{"type": "SuccessCriteriaMet", "status": "True"}], ""),
        ([{"type": "Complete", "status": "True"}], "Complete"),
        ([{"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}], "Failed: DeadlineExceeded too long"),
    ],
)
def test_the_end_of_a_job_follows_from_its_conditions(conditions: list[dict[str, Any]], said: str) -> None:
    assert removal.ended({"status": {"conditions": conditions}}) == said


FOREIGN = "things.example.test"


def foreign() -> dict[str, Any]:
    """CRD of another owner, with the chart's label."""
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    return {
        **{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"},
        "metadata": {"name": FOREIGN, "labels": {"app.kubernetes.io/part-of": "sos"}},
        "spec": {
            **{"group": "example.test", "scope": "Cluster", "versions": [version]},
            "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
        },
    }


def restore(kube: Kube) -> None:
    """Restore the release for later tests."""
    kube.kubectl("delete", "crd", FOREIGN)
    helm(kube, "upgrade", "sos", str(ROOT / "charts" / "sos"), "-n", NAMESPACE)  # by helm, because a release adopts no CRD of another owner
    kube.kubectl("wait", "--for=condition=Established", "crd", "-l", PART_OF, "--timeout=30s")
    kube.kubectl("scale", "deployment", "sos-operator", "-n", NAMESPACE, "--replicas=1")


def test_the_kinds_that_are_purged_are_the_charts() -> None:
    assert sorted(removal.CRDS) == sorted(obj["metadata"]["name"] for obj in render() if obj["kind"] == "CustomResourceDefinition")


def test_the_question_lists_permanently_deleted_objects() -> None:
    objects = [{"kind": "SosService", "metadata": {"namespace": "shop", "name": "bulk"}}]
    assert "shop/bulk" in removal.what_goes([], objects, purge=True)[-1]
    assert "all 1 SOS objects of this cluster permanently" in " ".join(removal.question("a", objects, purge=True).split())
    assert "permanently" not in removal.question("a", objects, purge=False)


def test_objects_and_crds_that_another_operator_needs_stay(installed: Kube) -> None:
    with populated(installed) as kube:
        other = rendered("Deployment", "sos-operator")
        kube.apply({**other, "metadata": {**other["metadata"], "namespace": "default"}})
        try:
            done = sos(kube, "uninstall", "--yes", "--purge", "-n", NAMESPACE)
        finally:
            kube.kubectl("delete", "deployment", "sos-operator", "-n", "default")
        assert done.returncode == 2 and "operators in default" in done.stderr
        assert len(kube.items("crds", "-l", PART_OF)) == len(removal.CRDS) and not kube.items("jobs", "-n", NAMESPACE)


def test_objects_that_could_not_be_purged_are_reported(installed: Kube, tmp_path: Path) -> None:
    with populated(installed) as kube, jobs_run(kube, code=0):
        refusing = unreliable(tmp_path, "delete sosagents", times=99)
        done = sos(kube, "uninstall", "--yes", "--purge", "-o", "json", kubectl=refusing)
        told = json.loads(done.stdout)
        assert (done.returncode, told["removed"]) == (1, True) and "sosagents.sos.network: Unable to connect" in told["why"]
        assert len(kube.items("crds", "-l", PART_OF)) == len(removal.CRDS), "the CRDs stay after a failed deletion"


def test_uninstall_needs_a_confirmation_and_reports_failures(installed: Kube) -> None:
    with populated(installed) as kube:
        done = sos(kube, "uninstall")
        assert done.returncode == 2 and "--yes" in done.stderr and not kube.items("jobs", "-n", NAMESPACE)
        with jobs_run(kube, code=1):
            done = sos(kube, "uninstall", "--yes", "--purge")
        assert done.returncode == 1 and "not removed: Failed: Test so" in done.stdout
        assert kube.items("crds", "-l", PART_OF), "no purge follows a failed removal"
        eventually("no Job is left", lambda: not kube.items("jobs", "-n", NAMESPACE))
        assert sos(kube, "uninstall", "--yes", "-n", "default").returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize(("command", "times", "told"), [("get job", 3, "asking again: "), ("delete job", 99, "still exists: ")])
def test_a_brief_api_server_outage_does_not_end_a_removal(installed: Kube, tmp_path: Path, command: str, times: int, told: str) -> None:
    with populated(installed) as kube, jobs_run(kube, code=0):
        done = sos(kube, "uninstall", "--yes", kubectl=unreliable(tmp_path, command, times=times))
        assert done.returncode == 0 and done.stdout.startswith("removed; "), done.stderr
        assert done.stderr.count(f"{told}Unable to connect") == 1, "reported once, not at every attempt"
        kube.kubectl("delete", "jobs", "--all", "-n", NAMESPACE)


def test_an_interrupted_removal_prints_the_next_step_and_leaves_no_job(installed: Kube) -> None:
    with populated(installed) as kube:
        with sos_process(kube, "uninstall", "--yes") as process:
            eventually("the Job", lambda: kube.items("jobs", "-n", NAMESPACE))
            for _ in range(3):  # users press Ctrl-C again
                process.send_signal(signal.SIGINT)
            assert process.wait(timeout=120) == INTERRUPTED
            assert "scale deployment sos-operator --replicas=1" in said(process)
        eventually("no Job is left", lambda: not kube.items("jobs", "-n", NAMESPACE))


@pytest.mark.slow
def test_users_objects_stay_and_purge_takes_them_and_the_crds(installed: Kube, tmp_path: Path) -> None:
    with populated(installed) as kube:
        kube.apply(foreign())
        with running(kube, tmp_path), jobs_run(kube):
            done = sos(kube, "uninstall", "--yes", "--timeout", "60")
            assert done.returncode == 0, done.stderr
            assert "objects and CRDs stay" in done.stdout and f"helm uninstall sos -n {NAMESPACE}" in done.stdout
            assert "6 DaemonSet" in done.stderr
            assert kube.items("daemonsets,deployments,services,configmaps,secrets", "-n", NAMESPACE, "-l", OURS) == []
            assert len(kube.items("sossites")) == 4
            done = sos(kube, "uninstall", "--yes", "--purge", "--timeout", "60")
            assert done.returncode == 0, done.stderr
            assert "SosSite west" in done.stderr
            try:
                assert [crd["metadata"]["name"] for crd in kube.items("crds")] == [FOREIGN]
                hook = rendered("Job", "sos-uninstall")["spec"]["template"]["spec"]["containers"][0]["args"]
                assert ended(kube, hook) == 0, "the printed next step works: helm uninstall first runs this command"
                done = sos(kube, "uninstall", "--yes", "--purge", "--timeout", "60")
                assert done.returncode == 0, f"a second purge finds nothing to do: {done.stderr}"
            finally:
                restore(kube)
        eventually("no Job is left", lambda: not kube.items("jobs", "-n", NAMESPACE))
        eventually("the kinds are served again, empty", lambda: all(kube.items(kind, "-A") == [] for kind in OWN))
