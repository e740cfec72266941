"""Simulated nodes for tests: one HTTP server per node, which answers as its `sos-node` would."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from operator_fixtures import FIGURE8, children, play_kubelet
from operator_http import http_servers
from operator_kube import Kube
from operator_repeat import repeated
from operator_run import NAMESPACE


class Nodes:
    """HTTP servers of all nodes: each reports its node-config from the cluster as applied, unless `slow` or `words` names the node."""

    def __init__(self, kube: Kube, sites: Mapping[str, str] = FIGURE8) -> None:
        self.kube = kube
        self.sites = sites
        self.slow: set[str] = set()
        self.words: dict[str, tuple[str, str]] = {}
        self.ports: dict[str, int] = {}
        self.agents: set[str] = set()
        """User-Agents of the clients."""

    def status(self, node: str) -> dict[str, Any]:
        site = self.sites[node]
        documents = self.kube.get("configmap", f"sos-node-{site}", "-n", NAMESPACE).get("data") or {}
        if f"{node}.json" not in documents:
            return {"node": node, "site": site, "hash": "", "state": "Failed", "bridge": None, "message": "there is no such file"}
        document = json.loads(documents[f"{node}.json"])
        absent = document["state"] == "Absent"
        state, message = self.words.get(node, ("Ready", "removed" if absent else "as configured"))
        hash_ = "sha256:old" if node in self.slow else document["hash"]
        bridge = None if absent and node not in self.slow else "br-sos"
        return {"node": node, "site": site, "hash": hash_, "state": state, "bridge": bridge, "message": message, "applied": True}

    @contextmanager
    def serving(self) -> Iterator[Nodes]:
        with http_servers("127.0.0.1", {node: self._handler(node) for node in self.sites}) as ports:
            self.ports.update(ports)
            yield self

    def _handler(self, node: str) -> type[BaseHTTPRequestHandler]:
        nodes = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                nodes.agents.add(self.headers.get("User-Agent", ""))
                content = json.dumps(nodes.status(node)).encode()
                self.send_response(200 if self.path == "/status" else 404)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                return

        return Handler


def start_pods(kube: Kube, nodes: Nodes) -> None:
    """Create running pods with the address of these servers."""
    play_kubelet(kube, port_of=nodes.ports)
    for pod in children(kube, "pods"):
        kube.patch_status("pod", pod["metadata"]["name"], NAMESPACE, {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]})


def kubelets(kube: Kube) -> AbstractContextManager[None]:
    """Confirm the deletion of terminating pods, as a node's kubelet would."""

    def confirm() -> None:
        for pod in children(kube, "pods"):
            if pod["metadata"].get("deletionTimestamp"):
                kube.kubectl("delete", "pod", pod["metadata"]["name"], "-n", NAMESPACE, "--force", "--grace-period=0", check=False)

    return repeated(confirm, every_s=0.5)
