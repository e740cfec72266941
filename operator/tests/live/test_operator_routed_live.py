"""Sites without bridges on a real API server: statuses from agents' answers, deletion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from operator_fixtures import becomes, children, populated
from operator_kube import Kube
from operator_routed import OBJECTS, Agents, node_addresses, start_pods
from operator_run import NAMESPACE, eventually, operator_running


def test_sites_without_bridges_need_agents_only(installed: Kube, tmp_path: Path) -> None:
    with populated(installed) as kube, Agents(kube).serving() as agents, operator_running(kube, tmp_path):
        node_addresses(kube)
        kube.apply(*OBJECTS)
        eventually("the DaemonSets of the agents", lambda: len(children(kube, "daemonsets")) == 2)
        names = {daemon_set["metadata"]["name"] for daemon_set in children(kube, "daemonsets")}
        assert names == {"sos-agent-default-west", "sos-agent-default-east"}
        becomes(kube, "sossite/west", "AgentsRegistered", "False", "NotRegistered")
        start_pods(kube, agents)
        for what in ("sossite/west", "sossite/east", "sosagent/default", f"sosservice/{NAMESPACE}/web"):
            kind = what.split("/", 1)[0]
            becomes(kube, what, "Ready", "True", "Programmed" if kind == "sosservice" else "Ready")
        assert children(kube, "deployments") == []

        agents.silent.add("east")
        becomes(kube, "sossite/east", "AgentsRegistered", "False", "NotRegistered")
        becomes(kube, f"sosservice/{NAMESPACE}/web", "Programmed", "False", "Programming")
        agents.silent.clear()
        becomes(kube, f"sosservice/{NAMESPACE}/web", "Ready", "True", "Programmed")

        kube.kubectl("delete", "sossite", "west", "--timeout=30s")
        eventually("the site's DaemonSet is gone", lambda: len(children(kube, "daemonsets")) == 1)
        becomes(kube, f"sosservice/{NAMESPACE}/web", "ResolvedRefs", "False", "SiteNotFound")


def workload(name: str, address: str, app: str = "web", namespace: str = "default") -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace, "labels": {"app": app}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"nodeName": "edge1", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    }


def run(kube: Kube, pod: dict[str, Any]) -> None:
    """Create a pod as a scheduler and a kubelet would."""
    kube.apply({key: value for key, value in pod.items() if key != "status"})
    kube.patch_status("pod", pod["metadata"]["name"], pod["metadata"]["namespace"], pod["status"])


def clients(kube: Kube) -> list[str] | None:
    """Clients of the service at the agent of the western node; None without the service."""
    document = json.loads(kube.get("configmap", "sos-agent-default-west", "-n", NAMESPACE)["data"]["edge1.json"])
    return next((service["from"] for service in document["services"]), None)


def test_agents_get_the_selected_pods_as_they_come_and_go(installed: Kube, tmp_path: Path) -> None:
    service = {**OBJECTS[3], "metadata": {"name": "web", "namespace": "default"}}
    service["spec"] = {"from": {"site": "west", "pods": {"selector": {"matchLabels": {"app": "web"}}}}, "to": {"site": "east"}}
    allowed = [{**obj, "spec": {**obj["spec"], "services": {"namespaces": "All"}}} for obj in OBJECTS[:2]]
    with populated(installed) as kube, operator_running(kube, tmp_path, SOS_READ_PODS="true"):
        node_addresses(kube)
        run(kube, workload("early", "10.244.1.4"))
        kube.apply(*allowed, OBJECTS[2], service)
        try:
            eventually("a pod that was there before", lambda: clients(kube) == ["10.244.1.4/32"])
            run(kube, workload("late", "10.244.1.6"))
            run(kube, workload("other", "10.244.1.8", app="db"))
            eventually("a new pod", lambda: clients(kube) == ["10.244.1.4/32", "10.244.1.6/32"])
            kube.kubectl("label", "pod", "early", "app=db", "--overwrite")
            eventually("a pod with another label", lambda: clients(kube) == ["10.244.1.6/32"])
            assert kube.get("sosservice", "web", "-n", "default")["status"]["from"] == "west, 1 pod"
            kube.kubectl("delete", "pod", "late", "--force", "--grace-period=0")
            eventually("no selected pod", lambda: clients(kube) is None)
        finally:
            kube.kubectl("delete", "pod", "early", "late", "other", "--force", "--grace-period=0", "--ignore-not-found")


def test_without_the_right_to_read_pods_only_the_service_fails(installed: Kube, tmp_path: Path) -> None:
    service = {**OBJECTS[3], "spec": {"from": {"site": "west", "pods": {}}, "to": {"site": "east"}}}
    with populated(installed) as kube, operator_running(kube, tmp_path):
        kube.apply(*OBJECTS[:3], service)
        becomes(kube, f"sosservice/{NAMESPACE}/web", "Accepted", "False", "PodsUnknown")
        becomes(kube, "sossite/west", "Accepted", "True", "Accepted")
