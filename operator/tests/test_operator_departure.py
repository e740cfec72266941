"""How sites and the whole release go: nodes clean up first, nothing of ours is left behind, users' objects stay."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import FIGURE8, OWN, becomes, children, play_kubelet, populated
from operator_kube import ROOT, Kube
from operator_run import NAMESPACE, Operator, environment, eventually, operator_running

OURS = "app.kubernetes.io/managed-by=sos-operator"


class Nodes:
    """All nodes' `sos-node` HTTP servers: each answers as one that has carried out the node-config in the cluster, unless told else."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.slow: set[str] = set()
        self.words: dict[str, tuple[str, str]] = {}
        self.ports: dict[str, int] = {}

    def status(self, node: str) -> dict[str, Any]:
        site = FIGURE8[node]
        document = json.loads(self.kube.get("configmap", f"sos-node-{site}", "-n", NAMESPACE)["data"][f"{node}.json"])
        absent = document["state"] == "Absent"
        state, message = self.words.get(node, ("Ready", "removed" if absent else "as configured"))
        hash_ = "sha256:old" if node in self.slow else document["hash"]
        bridge = None if absent and node not in self.slow else "br-sos"
        return {"node": node, "site": site, "hash": hash_, "state": state, "bridge": bridge, "message": message, "applied": True}

    @contextmanager
    def serving(self) -> Iterator[Nodes]:
        servers = []
        for node in FIGURE8:
            server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(node))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.ports[node] = int(server.server_address[1])
            servers.append(server)
        try:
            yield self
        finally:
            for server in servers:
                server.shutdown()
                server.server_close()

    def _handler(self, node: str) -> type[BaseHTTPRequestHandler]:
        nodes = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = json.dumps(nodes.status(node)).encode()
                self.send_response(200 if self.path == "/status" else 404)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                return

        return Handler


def start_pods(kube: Kube, nodes: Nodes) -> None:
    """Running pods whose address leads to the servers above."""
    play_kubelet(kube, port_of=nodes.ports)
    for pod in children(kube, "pods"):
        kube.patch_status("pod", pod["metadata"]["name"], NAMESPACE, {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]})


def apply_example(kube: Kube) -> None:
    kube.kubectl("apply", "-f", str(ROOT / "examples" / "01-two-sites"))
    eventually("the DaemonSets", lambda: len(children(kube, "daemonsets")) == 6)
    eventually("the finalizers", lambda: all(s["metadata"].get("finalizers") for s in kube.items("sossites")))


@pytest.fixture
def running(installed: Kube, tmp_path: Path) -> Iterator[tuple[Operator, Nodes]]:
    extra = {"SOS_CONTROLLER_API_OVERRIDE": "default=http://127.0.0.1:1", "SOS_SITE_CLEANUP_SECONDS": "12"}
    with populated(installed) as kube, Nodes(kube).serving() as nodes, operator_running(kube, tmp_path, **extra) as operator:
        apply_example(kube)
        start_pods(kube, nodes)
        yield operator, nodes


def test_a_site_stays_until_its_nodes_are_clean(running: tuple[Operator, Nodes]) -> None:
    operator, nodes = running
    kube = operator.kube
    nodes.slow.add("edge1")
    kube.kubectl("delete", "sossite", "west", "--wait=false")
    eventually("the node-config Absent", lambda: state_of(kube, "west", "edge1") == "Absent")
    becomes(kube, "sossite/west", "Ready", "False", "Terminating")
    eventually(
        "its agents gone", lambda: not [c for c in children(kube, "daemonsets") if c["metadata"]["name"] == "sos-agent-default-west"]
    )
    time.sleep(4)
    assert kube.get("sossite", "west")["metadata"]["deletionTimestamp"], "it went before its node was clean"
    assert [c for c in children(kube, "daemonsets") if c["metadata"]["name"] == "sos-node-west"]
    nodes.slow.clear()
    eventually("the site gone", lambda: "west" not in {s["metadata"]["name"] for s in kube.items("sossites")}, 15)
    eventually("its DaemonSet gone", lambda: not [c for c in children(kube, "daemonsets") if c["metadata"]["name"] == "sos-node-west"])


def test_a_node_that_never_answers_does_not_hold_a_site_for_ever(running: tuple[Operator, Nodes]) -> None:
    operator, nodes = running
    nodes.slow.add("core1")
    started = time.monotonic()
    operator.kube.kubectl("delete", "sossite", "core1", "--timeout=40s")
    assert time.monotonic() - started > 8


def test_a_node_says_why_its_bridge_is_not_up(running: tuple[Operator, Nodes]) -> None:
    operator, nodes = running
    kube = operator.kube
    becomes(kube, "sossite/east", "BridgesReady", "True", "Ready")
    nodes.words["edge2"] = ("Failed", "uplink wan0 carries the default route")
    kube.kubectl("delete", "pods", "-n", NAMESPACE, "-l", "sos.network/site=east", "--force", "--grace-period=0")
    start_pods(kube, nodes)
    row = becomes(kube, "sossite/east", "BridgesReady", "False", "NodeFailed")
    assert "edge2: uplink wan0 carries the default route" in row["message"]
    assert kube.get("sossite", "east")["status"]["nodes"][0]["state"] == "Failed"


def state_of(kube: Kube, site: str, node: str) -> str:
    return str(json.loads(kube.get("configmap", f"sos-node-{site}", "-n", NAMESPACE)["data"][f"{node}.json"])["state"])


def test_uninstall_leaves_nothing_but_users_objects(installed: Kube, tmp_path: Path) -> None:
    defaults = tmp_path / "defaults"
    defaults.mkdir()
    shipped = next(o for o in helm_objects() if o["kind"] == "ConfigMap")["data"]
    for name, text in shipped.items():
        (defaults / name).write_text(text)
    with populated(installed) as kube, Nodes(kube).serving() as nodes:
        foreign = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs", "namespace": NAMESPACE}}
        kube.apply(foreign)
        with operator_running(kube, tmp_path, SOS_DEFAULTS_DIR=str(defaults)):
            eventually("default objects", lambda: kube.items("sosagents") and kube.items("soscontrollers"))
            sites = [ROOT / "examples" / "01-two-sites" / name for name in ("sites.yaml", "sosservice.yaml")]
            kube.kubectl("apply", *(arg for path in sites for arg in ("-f", str(path))))
            eventually("the DaemonSets", lambda: len(children(kube, "daemonsets")) == 6)
            eventually("the finalizers", lambda: all(s["metadata"].get("finalizers") for s in kube.items("sossites")))
            start_pods(kube, nodes)
            kube.kubectl("delete", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent", "--force", "--grace-period=0")
        done = subprocess.run(
            [sys.executable, "-m", "sos_operator", "uninstall", "--timeout", "40"],
            env=environment(kube, 0, {}),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "every node has taken its bridge down" in done.stderr, done.stderr
        assert kube.get("deployment", "sos-operator", "-n", NAMESPACE)["spec"]["replicas"] == 0
        left = kube.items("daemonsets,deployments,services,configmaps,secrets", "-n", NAMESPACE, "-l", OURS)
        assert left == []
        assert kube.get("secret", "theirs", "-n", NAMESPACE)
        assert kube.items("sosagents") == kube.items("soscontrollers") == []
        assert {s["metadata"]["name"] for s in kube.items("sossites")} == set(FIGURE8.values())
        for obj in [o for kind in OWN for o in kube.items(kind, "-A")]:
            assert not obj["metadata"].get("finalizers")
            (row,) = obj["status"]["conditions"]
            assert (row["type"], row["status"], row["reason"]) == ("Ready", "Unknown", "NotInstalled")
        assert kube.get("sossite", "west")["status"]["siteID"], "kept for the next installation"
        kube.kubectl("scale", "deployment", "sos-operator", "-n", NAMESPACE, "--replicas=1")
        kube.kubectl("delete", "secret", "theirs", "-n", NAMESPACE)


def helm_objects() -> list[dict[str, Any]]:
    from operator_run import render

    return render()


def test_default_objects_follow_the_chart(installed: Kube, tmp_path: Path) -> None:
    """Made with the chart's rights, kept as stated, removed when no longer wanted; one of that name made by a user stays theirs."""
    defaults = tmp_path / "defaults"
    defaults.mkdir()
    agent = "apiVersion: sos.network/v1alpha1\nkind: SosAgent\nmetadata: {name: default}\nspec: {drainSeconds: 7}\n"
    (defaults / "sosagent.yaml").write_text(agent)
    with populated(installed) as kube:
        for name, folder in (("with", defaults), ("without", tmp_path / "none")):
            (tmp_path / name).mkdir()
            folder.mkdir(exist_ok=True)
            with operator_running(kube, tmp_path / name, SOS_DEFAULTS_DIR=str(folder)):
                if name == "without":
                    eventually("it is gone", lambda: kube.items("sosagents") == [])
                    continue
                eventually("it is there", lambda: [a["spec"]["drainSeconds"] for a in kube.items("sosagents")] == [7])
                kube.kubectl("patch", "sosagent", "default", "--type=merge", "-p", '{"spec":{"drainSeconds":9}}')
                eventually("it is as stated", lambda: [a["spec"]["drainSeconds"] for a in kube.items("sosagents")] == [7])
