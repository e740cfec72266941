"""A cluster of any size for tests and benchmarks: sites with one node and one agent pool each, and services between them."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from operator_kube import Kube
from operator_run import NAMESPACE
from operator_table import build, create

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class Size:
    """Numbers of sites and services."""

    sites: int
    services: int


def nodes(size: Size) -> list[dict[str, Any]]:
    """One node for each site, with an address, because tunnels need addresses."""
    found = []
    for i in range(size.sites):
        status = {"addresses": [{"type": "InternalIP", "address": f"192.0.2.{i + 1}"}]}
        labels = {"sos.network/site": f"site{i:02}"}
        found.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node{i:02}", "labels": labels}, "status": status})
    return found


def objects(size: Size) -> list[dict[str, Any]]:
    """A controller, sites with one pool each, and services between many pairs of sites."""
    names = [f"site{i:02}" for i in range(size.sites)]
    found = [build("default", {"kind": "SosController", "spec": {}})]
    for i, name in enumerate(names):
        site = {"nodeSelector": {"matchLabels": {"sos.network/site": name}}, "prefixes": [f"10.{i}.0.0/16"]}
        found.append({**build(name, {"kind": "SosSite", "spec": site}), "metadata": {"name": name, "labels": {"scale": name}}})
        found.append(build(f"pool{i:02}", {"kind": "SosAgent", "spec": {"siteSelector": {"matchLabels": {"scale": name}}}}))
    for i in range(size.services):
        source, target = i % size.sites, (i + 1 + i // size.sites % (size.sites - 1)) % size.sites
        spec = {"from": {"site": names[source]}, "to": {"site": names[target]}, "ports": [{"port": 1000 + i}]}
        found.append(build(f"service{i:04}", {"kind": "SosService", "spec": spec}))
    return found


def populate(kube: Kube, size: Size) -> None:
    for node in nodes(size):
        kube.apply(node)
        kube.kubectl(
            "patch", "node", node["metadata"]["name"], "--subresource=status", "--type=merge", "-p", json.dumps({"status": node["status"]})
        )
    for obj in objects(size):
        answer = create(kube, obj)
        assert answer["kind"] == obj["kind"], answer


def writes(kube: Kube) -> list[str]:
    """Write requests of the operator, from the API server's audit log."""
    account = f"system:serviceaccount:{NAMESPACE}:sos-operator"
    return [f"{e['verb']} {e['requestURI']}" for e in kube.audit() if e["user"]["username"] == account and e["verb"] in WRITES]


@dataclass
class Recorder:
    """Proxy between operator and controller that records the time at which the controller accepts each configuration."""

    target: str
    taken: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    """(monotonic seconds, service -> priority) of each accepted configuration (HTTP 200)."""
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def await_priority(self, service: str, priority: int, timeout: float) -> float:
        """Wait for a configuration with this priority; return the time of its acceptance (monotonic seconds)."""
        deadline = time.monotonic() + timeout
        with self.arrived:
            while True:
                found = [at for at, priorities in self.taken if priorities.get(service) == priority]
                if found:
                    return found[0]
                assert self.arrived.wait(deadline - time.monotonic()), f"{service} did not get priority {priority} within {timeout} s"

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes | None) -> tuple[int, bytes]:
        request = urllib.request.Request(self.target + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 502, b"{}"
        at = time.monotonic()
        if method == "PUT" and body:
            priorities = {each["id"]: each["priority"] for each in json.loads(body)["services"]}
            with self.arrived:
                self.taken = [*self.taken[-50:], (at, priorities)]
                self.arrived.notify_all()
        return status, content

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve inside the block; yield the URL."""
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
                kept = {name: self.headers[name] for name in ("Authorization", "Content-Type") if name in self.headers}
                status, content = recorder.forward(self.command, self.path, kept, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_PUT = do_GET  # noqa: N815 - http.server's name for it

            def log_message(self, *_: Any) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
