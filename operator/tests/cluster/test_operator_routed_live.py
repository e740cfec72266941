"""Sites without bridges on a real API server: statuses from agents' answers, deletion."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from operator_fixtures import FIGURE8, becomes, children, populated, without_host_ports
from operator_kube import Kube
from operator_run import NAMESPACE, eventually, operator_running

PREFIXES = {"west": "10.244.1.0/24", "east": "10.244.2.0/24"}
NODES = {"west": "edge1", "east": "edge2"}


def site(name: str) -> dict[str, Any]:
    spec = {"nodeSelector": {"matchLabels": {"sos.network/site": name}}, "prefixes": [PREFIXES[name]], "wan": {"type": "Routed"}}
    return {
        "apiVersion": "sos.network/v1alpha1",
        "kind": "SosSite",
        "metadata": {"name": name},
        "spec": {**spec, "intake": {"type": "Pods"}},
    }


OBJECTS = (
    *(site(name) for name in PREFIXES),
    {"apiVersion": "sos.network/v1alpha1", "kind": "SosAgent", "metadata": {"name": "default"}, "spec": {}},
    {
        "apiVersion": "sos.network/v1alpha1",
        "kind": "SosService",
        "metadata": {"name": "web", "namespace": NAMESPACE},
        "spec": {"from": {"site": "west"}, "to": {"site": "east"}},
    },
)


class Agents:
    """HTTP servers of agents: each answers as an agent that has its present document in force and reaches its peers."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.silent: set[str] = set()
        self.ports: dict[str, int] = {}

    def status(self, site: str) -> dict[str, Any]:
        document = json.loads(self.kube.get("configmap", f"sos-agent-default-{site}", "-n", NAMESPACE)["data"][f"{NODES[site]}.json"])
        services = [{"id": row["id"], "role": row["role"], "ready": True} for row in document["services"]]
        return {"hash": document["hash"], "willing": True, "services": services}

    @contextmanager
    def serving(self) -> Iterator[Agents]:
        servers = []
        for name in PREFIXES:
            server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(name))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.ports[name] = int(server.server_address[1])
            servers.append(server)
        try:
            yield self
        finally:
            for server in servers:
                server.shutdown()
                server.server_close()

    def _handler(self, site: str) -> type[BaseHTTPRequestHandler]:
        agents = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = json.dumps(agents.status(site)).encode()
                self.send_response(503 if site in agents.silent else 200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                return

        return Handler


def start_pods(kube: Kube, agents: Agents) -> None:
    """Running agent pods whose address leads to the servers above."""
    for daemon_set in children(kube, "daemonsets"):
        meta, template = daemon_set["metadata"], daemon_set["spec"]["template"]
        of_site = meta["labels"]["sos.network/site"]
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": meta["name"], "uid": meta["uid"], "controller": True}
        pod_meta = {
            "name": f"{meta['name']}-pod",
            "namespace": NAMESPACE,
            "labels": template["metadata"]["labels"],
            "ownerReferences": [owner],
        }
        containers = [
            {**without_host_ports(c), "ports": [{"containerPort": agents.ports[of_site]}]} for c in template["spec"]["containers"]
        ]
        spec = {**template["spec"], "nodeName": NODES[of_site], "containers": containers, "hostNetwork": False}
        kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": pod_meta, "spec": spec})
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": None, "lastProbeTime": None}
        running = {"phase": "Running", "conditions": [ready], "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        kube.patch_status("pod", f"{meta['name']}-pod", NAMESPACE, running)
        counts = dict.fromkeys(("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled"), 1)
        kube.patch_status(
            "daemonset", meta["name"], NAMESPACE, {**counts, "numberMisscheduled": 0, "observedGeneration": meta["generation"]}
        )


def test_sites_without_bridges_need_agents_only(installed: Kube, tmp_path: Path) -> None:
    with populated(installed) as kube, Agents(kube).serving() as agents, operator_running(kube, tmp_path):
        for number, node in enumerate(FIGURE8, start=2):
            address = {"addresses": [{"type": "InternalIP", "address": f"172.18.0.{number}"}]}
            kube.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps({"status": address}))
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
        for number, node in enumerate(FIGURE8, start=2):
            address = {"addresses": [{"type": "InternalIP", "address": f"172.18.0.{number}"}]}
            kube.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps({"status": address}))
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
