"""Removal of the whole release: nodes are cleaned first, no SOS object is left behind, users' objects stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from operator_fixtures import FIGURE8, OWN, children, populated
from operator_kube import ROOT, Kube, garbage_collector
from operator_nodes import Nodes, kubelets, start_pods
from operator_run import NAMESPACE, environment, eventually, helm, operator_running, render

OURS = "app.kubernetes.io/managed-by=sos-operator"
RECORD = "app.kubernetes.io/component=removal"


def test_uninstall_leaves_only_users_objects(installed: Kube, tmp_path: Path) -> None:
    defaults = tmp_path / "defaults"
    defaults.mkdir()
    shipped = next(o for o in render() if o["kind"] == "ConfigMap")["data"]
    for name, text in shipped.items():
        (defaults / name).write_text(text)
    with populated(installed) as kube, Nodes(kube).serving() as nodes:
        foreign = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs", "namespace": NAMESPACE}}
        helm(kube, "upgrade", "sos", str(ROOT / "charts" / "sos"), "-n", NAMESPACE)  # an earlier test may have removed the record
        assert len(kube.items("configmaps", "-n", NAMESPACE, "-l", RECORD)) == 1
        kube.apply(foreign, *left_by_helm_test())
        with operator_running(kube, tmp_path, SOS_DEFAULTS_DIR=str(defaults)):
            eventually("default objects", lambda: kube.items("sosagents") and kube.items("soscontrollers"))
            sites = [ROOT / "examples" / "01-two-sites" / name for name in ("sites.yaml", "sosservice.yaml")]
            kube.kubectl("apply", *(arg for path in sites for arg in ("-f", str(path))))
            eventually("the DaemonSets", lambda: len(children(kube, "daemonsets")) == 6)
            eventually("the finalizers", lambda: all(s["metadata"].get("finalizers") for s in kube.items("sossites")))
            start_pods(kube, nodes)
        with garbage_collector(kube), kubelets(kube):
            command = [sys.executable, "-m", "sos_operator", "uninstall", "--timeout", "60"]
            done = subprocess.run(command, env=environment(kube, 0, {}), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "not gone in time" not in done.stderr, done.stderr
        assert children(kube, "pods") == []
        assert "every node has taken its bridge down" in done.stderr, done.stderr
        assert kube.get("deployment", "sos-operator", "-n", NAMESPACE)["spec"]["replicas"] == 0
        left = kube.items(
            "daemonsets,deployments,services,configmaps,secrets,networkpolicies,poddisruptionbudgets", "-n", NAMESPACE, "-l", OURS
        )
        assert left == []
        assert kube.items("jobs", "-n", NAMESPACE) == []
        assert [o["metadata"]["name"] for o in kube.items("deployments", "-n", NAMESPACE)] == ["sos-operator"]
        assert kube.get("secret", "theirs", "-n", NAMESPACE)
        assert kube.items("configmaps", "-n", NAMESPACE, "-l", RECORD) == [], "helm keeps the record, so the removal deletes it"
        assert nodes.agents == {"sos-operator"}, "node processes recognise polls of the operator"
        assert kube.items("sosagents") == kube.items("soscontrollers") == []
        assert {s["metadata"]["name"] for s in kube.items("sossites")} == set(FIGURE8.values())
        for obj in [o for kind in OWN for o in kube.items(kind, "-A")]:
            assert not obj["metadata"].get("finalizers")
            (row,) = obj["status"]["conditions"]
            assert (row["type"], row["status"], row["reason"]) == ("Ready", "Unknown", "NotInstalled")
        assert kube.get("sossite", "west")["status"]["siteID"], "the site id is kept for the next installation"
        kube.kubectl("scale", "deployment", "sos-operator", "-n", NAMESPACE, "--replicas=1")
        kube.kubectl("delete", "secret", "theirs", "-n", NAMESPACE)
        helm(kube, "upgrade", "sos", str(ROOT / "charts" / "sos"), "-n", NAMESPACE)
        assert len(kube.items("configmaps", "-n", NAMESPACE, "-l", RECORD)) == 1, "an upgrade restores the record"


def left_by_helm_test() -> list[dict[str, Any]]:
    """Objects that an interrupted `helm test` leaves, as rendered by the chart."""
    ends = {f"test.{end}.{key}={value}" for end in ("client", "server") for key, value in (("site", "west"), ("address", "10.0.0.9/24"))}
    wanted = render(*(word for value in sorted(ends) for word in ("--set", value)))
    found = [o for o in wanted if (o["metadata"].get("annotations") or {}).get("helm.sh/hook") == "test"]
    assert {o["kind"] for o in found} == {"Deployment", "Job"}
    return found


def test_default_objects_follow_the_chart(installed: Kube, tmp_path: Path) -> None:
    """Default objects are created with the chart's rights, kept as in the file, and removed when the file is gone."""
    defaults = tmp_path / "defaults"
    defaults.mkdir()
    agent = "apiVersion: sos.network/v1alpha1\nkind: SosAgent\nmetadata: {name: default}\nspec: {drainSeconds: 7}\n"
    (defaults / "sosagent.yaml").write_text(agent)
    with populated(installed) as kube:
        wrong = tmp_path / "typo"
        for name, folder in (("with", defaults), ("wrong", wrong), ("without", tmp_path / "none")):
            (tmp_path / name).mkdir()
            folder.mkdir(exist_ok=True)
            if folder is wrong:
                (wrong / "sosagent.yaml").write_text(agent.replace("drainSeconds", "drainSecond"))
            with operator_running(kube, tmp_path / name, SOS_DEFAULTS_DIR=str(folder)) as operator:
                if name == "wrong":
                    operator.settle(2)
                    assert [a["spec"]["drainSeconds"] for a in kube.items("sosagents")] == [7], (
                        "an invalid file leaves the object unchanged"
                    )
                    assert any("drainSecond" in line.get("message", "") for line in operator.lines()), operator.lines()
                    continue
                if name == "without":
                    eventually("the default object gone", lambda: kube.items("sosagents") == [])
                    continue
                eventually("the default object", lambda: [a["spec"]["drainSeconds"] for a in kube.items("sosagents")] == [7])
                kube.kubectl("patch", "sosagent", "default", "--type=merge", "-p", '{"spec":{"drainSeconds":9}}')
                eventually("the default object as in the file", lambda: [a["spec"]["drainSeconds"] for a in kube.items("sosagents")] == [7])
