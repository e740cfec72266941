"""`kubectl sos` at sites without bridges, through a real API server's pod proxy: no controller is involved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from operator_fixtures import children, populated
from operator_kube import Kube
from operator_plugin import sos
from operator_routed import NODES, OBJECTS, Agents, node_addresses, own_address, start_pods
from operator_run import NAMESPACE, eventually, operator_running

LABEL = "drain.sos.network/default"


class Draining(Agents):
    """Agents that drain like real ones: after their node has the label, `sessions` end one by one."""

    sessions = 3

    def status(self, site: str) -> dict[str, Any]:
        drains = LABEL in self.kube.get("node", NODES[site])["metadata"]["labels"]
        self.sessions -= drains and self.sessions > 0
        return {**super().status(site), "draining": drains, "willing": not drains, "sessions": self.sessions}


@pytest.fixture(scope="module")
def sites(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Draining]:
    """Two sites without bridges, and an agent at each."""
    folder = tmp_path_factory.mktemp("routed")
    with (
        populated(installed) as kube,
        Draining(kube, own_address()).serving() as agents,
        operator_running(kube, folder),
    ):
        node_addresses(kube)
        kube.apply(*OBJECTS)
        eventually("the DaemonSets of the agents", lambda: len(children(kube, "daemonsets")) == 2)
        start_pods(kube, agents)
        yield agents


def label(kube: Kube) -> str | None:
    found: str | None = kube.get("node", "edge1")["metadata"]["labels"].get(LABEL)
    return found


def test_drain_asks_the_agents_themselves(sites: Draining) -> None:
    kube = sites.kube
    done = sos(kube, "drain", "edge1", "--timeout", "60", "-o", "json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["agents"], said["sessions"], said["done"]) == (0, ["edge1"], 0, True), done.stderr
    assert "sessions left at edge1" in done.stderr and label(kube) == "true"
    sites.silent.add("west")
    done = sos(kube, "drain", "edge1", "--timeout", "1")
    assert done.returncode == 1 and "edge1: no answer" in done.stdout, "a silent agent may have sessions"
    kube.kubectl("delete", "pod", "sos-agent-default-west-pod", "-n", NAMESPACE, "--force", "--grace-period=0")
    done = sos(kube, "drain", "edge1", "--timeout", "20")
    assert (done.returncode, done.stdout) == (0, "edge1: drained\n"), "without a pod there is no session"
    done = sos(kube, "drain", "edge1", "--undo")
    assert (done.returncode, label(kube)) == (0, None)
    sites.silent.clear()
    start_pods(kube, sites)


def test_trace_asks_the_agents_of_both_sites(sites: Draining) -> None:
    done = sos(sites.kube, "trace", "10.244.1.9", "10.244.2.9", "80", "-o", "json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["outcome"], said["service"]) == (0, "accelerated", f"{NAMESPACE}/web"), done.stderr
    assert said["pairs"] == [{"ingress": "edge1", "egress": "edge2", "paths": [{"path": 1, "from": "172.18.0.2", "to": "172.18.0.5"}]}]
    sites.silent.add("west")
    done = sos(sites.kube, "trace", "10.244.1.9", "10.244.2.9", "80")
    sites.silent.clear()
    assert done.returncode == 1 and "(NoAgent): pod sos-agent-default-west-pod does not answer" in " ".join(done.stdout.split())
    done = sos(sites.kube, "trace", "10.244.1.9", "10.244.2.9", "80", "-n", "default")
    assert done.returncode == 2 and "sos-controller-default" in done.stderr, "agent-configs are in the operator's namespace"


def test_diagnose_asks_the_agents_of_both_sites(sites: Draining) -> None:
    sites.metrics = 'sos_agent_plain_total{reason="NoAgent"} 3\n'
    done = sos(sites.kube, "diagnose", "-o", "json")
    (said,) = json.loads(done.stdout)["pairs"]
    assert (done.returncode, said["verdict"], said["findings"]) == (0, "ready", []), done.stderr
    assert [(row["path"], row["from"], row["to"], row["streams"]) for row in said["paths"]] == [(1, "172.18.0.2", "172.18.0.5", 5)]
    assert [(row["agent"], row["reason"], row["connections"]) for row in said["notAccelerated"]] == [
        ("edge1", "NoAgent", 3),
        ("edge2", "NoAgent", 3),
    ]
    sites.silent.add("east")
    done = sos(sites.kube, "diagnose", "west", "east")
    sites.silent.clear()
    assert done.returncode == 1 and "first broken: AgentDown edge2 (east)" in done.stdout
    assert "degraded: connections can be accelerated" in done.stdout, "the agent at west has streams to it"
    wrong = sos(sites.kube, "diagnose", "west", "north")
    assert wrong.returncode == 2 and "no site north without a bridge; there are east, west" in wrong.stderr
    wrong = sos(sites.kube, "diagnose", "--service", "default/other")
    assert wrong.returncode == 2 and f"there are {NAMESPACE}/web" in wrong.stderr
    wrong = sos(sites.kube, "diagnose", "west", "east", "--server", "10.244.2.9:80")
    assert wrong.returncode == 2 and "--server is tested by traffic" in wrong.stderr


def test_an_unknown_name_lists_the_agents(sites: Draining) -> None:
    done = sos(sites.kube, "drain", "no-such-node")
    assert done.returncode == 2 and "there are edge1, edge2" in done.stderr


def test_without_the_right_to_read_agent_configs_drain_says_so(sites: Draining, tmp_path: Path) -> None:
    kube = sites.kube
    kube.kubectl("create", "serviceaccount", "guest", "-n", NAMESPACE)
    token = kube.kubectl("create", "token", "guest", "-n", NAMESPACE).stdout.strip()
    guest = Kube(kube.folder, kube.url, kube.config_for("guest", token))
    done = sos(guest, "drain", "edge1")
    assert done.returncode == 2 and "the agents of sites with wan.type Routed are unknown" in done.stderr and label(kube) is None
    kube.kubectl("delete", "serviceaccount", "guest", "-n", NAMESPACE)
