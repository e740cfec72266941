"""Two sites without bridges on an API server: their objects, and agents that answer GET /status and GET /metrics."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from operator_fixtures import FIGURE8, children, without_host_ports
from operator_http import http_servers
from operator_kube import Kube
from operator_run import NAMESPACE

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


def node_addresses(kube: Kube) -> None:
    """Give the example's nodes addresses, which agents without bridges need."""
    for number, node in enumerate(FIGURE8, start=2):
        address = {"addresses": [{"type": "InternalIP", "address": f"172.18.0.{number}"}]}
        kube.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps({"status": address}))


def own_address() -> str:
    """An address of this machine that is no loopback address: the API server's proxy refuses pods with loopback addresses."""
    said = subprocess.run(["ip", "-j", "-4", "address", "show", "scope", "global"], capture_output=True, text=True, check=True).stdout
    return str(json.loads(said)[0]["addr_info"][0]["local"])


class Agents:
    """HTTP servers of agents: each answers as an agent that has its present document in force and reaches its peers."""

    def __init__(self, kube: Kube, address: str = "127.0.0.1") -> None:
        self.kube = kube
        self.address = address
        self.silent: set[str] = set()
        self.ports: dict[str, int] = {}
        self.changes: dict[str, dict[str, Any]] = {}
        """Fields of a status that differ, by site."""
        self.metrics = ""

    def document(self, site: str) -> dict[str, Any]:
        config_map = self.kube.get("configmap", f"sos-agent-default-{site}", "-n", NAMESPACE)
        return dict(json.loads(config_map["data"][f"{NODES[site]}.json"]))

    def status(self, site: str) -> dict[str, Any]:
        document = self.document(site)
        services = [{"id": row["id"], "role": row["role"], "ready": True} for row in document["services"]]
        paths = [{"label": 0, "streams": 5, "configured": 5}]
        peers = [
            {"site": peer["site"], "id": agent["id"], "node": agent["node"], "alive": True, "willing": True, "paths": paths}
            for peer in document["peers"]
            for agent in peer["agents"]
        ]
        state = {"willing": True, "draining": False, "sessions": 0, "interceptedPods": 0}
        same = {"generation": document["generation"], "hash": document["hash"], **state}
        return {**same, "peers": peers, "services": services, **self.changes.get(site, {})}

    @contextmanager
    def serving(self) -> Iterator[Agents]:
        with http_servers(self.address, {name: self._handler(name) for name in PREFIXES}) as ports:
            self.ports.update(ports)
            yield self

    def _handler(self, site: str) -> type[BaseHTTPRequestHandler]:
        agents = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = (agents.metrics if self.path == "/metrics" else json.dumps(agents.status(site))).encode()
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
        running = {"phase": "Running", "conditions": [ready], "podIP": agents.address, "podIPs": [{"ip": agents.address}]}
        kube.patch_status("pod", f"{meta['name']}-pod", NAMESPACE, running)
        counts = dict.fromkeys(("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled"), 1)
        kube.patch_status(
            "daemonset", meta["name"], NAMESPACE, {**counts, "numberMisscheduled": 0, "observedGeneration": meta["generation"]}
        )
