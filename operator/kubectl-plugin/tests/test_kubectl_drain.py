"""`kubectl sos drain`: selection of agents, completion, and the label that keeps a pool's agents off a node."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from operator_kube import Kube, _process, free_port, tool
from operator_plugin import sos
from operator_run import NAMESPACE, Operator, eventually
from sos_kubectl.base.names import drain_label
from sos_kubectl.lifecycle.drain import AmbiguousError, direct_targets, kept_away, known, nodes_named, not_yet, progress, rows, targets
from sos_kubectl.targets import agent_configs
from sos_kubectl.targets.agent_configs import Agent, Answer

CONFIG = {
    "sites": [
        {"name": "west", "agents": [{"id": "aa", "node": "edge1", "pool": "default"}, {"id": "ab", "node": "edge1", "pool": "second"}]},
        {"name": "east", "agents": [{"id": "bb", "node": "edge2", "pool": "default"}]},
    ]
}


@pytest.mark.parametrize(("name", "ids"), [("edge1", ["aa", "ab"]), ("edge1-second", ["ab"]), ("edge2", ["bb"]), ("nobody", []), ("", [])])
def test_a_node_means_all_of_its_agents(name: str, ids: list[str]) -> None:
    assert [target.id for target in targets(CONFIG, name)] == ids
    assert known(CONFIG) == ["edge1", "edge1-second", "edge2"]


def test_an_ambiguous_name_is_refused() -> None:
    agents = [{"id": "aa", "node": "worker", "pool": "2"}, {"id": "bb", "node": "worker-2", "pool": "default"}]
    with pytest.raises(AmbiguousError, match="pool 2 on node worker"):
        targets({"sites": [{"name": "west", "agents": agents}]}, "worker-2")


def node(name: str, *labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **dict.fromkeys(labels, "true")}}}


NODES = [
    node("edge1", "drain.sos.network/default", drain_label("second")),
    node("edge", drain_label("a.pool.with.dots")),
    node("edge2"),
]


@pytest.mark.parametrize(
    ("name", "back"),
    [
        ("edge1", [("edge1", "drain.sos.network/default"), ("edge1", "drain.sos.network/second")]),
        ("edge1-second", [("edge1", "drain.sos.network/second")]),
        ("edge-a.pool.with.dots", [("edge", drain_label("a.pool.with.dots"))]),
        ("edge1-third", []),
        ("edge2", []),
        ("nobody", []),
    ],
)
def test_undo_reads_node_labels_only(name: str, back: list[tuple[str, str]]) -> None:
    assert [(kept.node, kept.label) for kept in kept_away(NODES, name)] == back
    asked = [found for found in NODES if found["metadata"]["name"] in nodes_named(name)]
    assert kept_away(asked, name) == kept_away(NODES, name), "the nodes that the name may mean are enough"


def test_undo_refuses_a_name_only_if_two_labels_match() -> None:
    agent, whole = node("worker", drain_label("2")), node("worker-2", drain_label("default"))
    with pytest.raises(AmbiguousError, match="a node and an agent of node worker"):
        kept_away([agent, whole], "worker-2")
    assert [kept.node for kept in kept_away([agent, node("worker-2")], "worker-2")] == ["worker"]
    assert [kept.node for kept in kept_away([node("worker"), whole], "worker-2")] == ["worker-2"]


def row(agent: str, sessions: int, *, willing: bool = False, draining: bool = True) -> dict[str, Any]:
    return {"id": agent, "sessions": sessions, "willing": willing, "draining": draining}


@pytest.mark.parametrize(
    ("rows", "done", "line"),
    [
        ([row("aa", 0, willing=True, draining=False), row("ab", 0)], False, "edge1: still taking sessions"),
        ([row("aa", 2), row("ab", 1), row("bb", 9)], False, "3 sessions left at edge1, edge1-second"),
        ([row("ab", 0)], True, "no sessions left"),
        ([], True, "no sessions left"),
    ],
)
def test_drained_means_no_sessions_and_no_new_ones(rows: list[dict[str, Any]], done: bool, line: str) -> None:
    now = progress({"agents": rows}, targets(CONFIG, "edge1"))
    assert (now.done, now.line) == (done, line)


def test_a_draining_agent_gets_no_second_drain_order() -> None:
    rows = {"agents": [row("aa", 2), row("ab", 0, willing=True, draining=False)]}
    assert [target.id for target in not_yet(rows, targets(CONFIG, "edge1"))] == ["ab"]


def config_of(node: str, site: str, *, pool: str = "default", wan: tuple[str, ...] = ("192.0.2.1",)) -> dict[str, Any]:
    return {"agentId": f"{node}-{pool}", "node": node, "pool": pool, "site": {"name": site}, "wan": list(wan)}


def config_map(*documents: dict[str, Any], **more: str) -> dict[str, Any]:
    data = {f"{document['node']}.json": json.dumps(document) for document in documents}
    return {"metadata": {"namespace": "sos-system"}, "data": {**data, **more}}


def test_agent_configs_are_read_and_other_data_is_skipped() -> None:
    found = agent_configs.read([config_map(config_of("b", "west"), config_of("a", "west"), note="{", other="[]"), {"metadata": {}}])
    assert [(agent.node, agent.site, agent.namespace, agent.routed) for agent in found] == [
        ("a", "west", "sos-system", True),
        ("b", "west", "sos-system", True),
    ]


def test_only_agents_that_no_controller_knows_are_queried_directly() -> None:
    found = [Agent(config_of("edge1", "west")), Agent(config_of("edge2", "east", wan=()))]
    assert [target.name for target in direct_targets(found, "edge1")] == ["edge1"]
    assert direct_targets(found, "edge2") == [] and direct_targets(found, "no-such-node") == []
    ambiguous = [Agent(config_of("worker", "west", pool="2")), Agent(config_of("worker-2", "east", wan=()))]
    with pytest.raises(AmbiguousError, match="pool 2 on node worker"):
        direct_targets(ambiguous, "worker-2")


@pytest.mark.parametrize(
    ("answer", "done", "line"),
    [
        (Answer({"draining": False, "willing": False, "sessions": 9}), False, "edge1: still taking sessions"),
        (Answer({"draining": True, "willing": False, "sessions": 2}), False, "2 sessions left at edge1"),
        (Answer({"draining": True, "willing": False, "sessions": 0}), True, "no sessions left"),
        (Answer(error="no route to host"), False, "edge1: no answer: no route to host"),
        (Answer(error="no pod", runs=False), True, "no sessions left"),
    ],
)
def test_the_agents_own_answers_show_the_progress(answer: Answer, done: bool, line: str) -> None:
    """An agent at a limit accepts sessions again later; a silent agent may have sessions."""
    wanted = direct_targets([Agent(config_of("edge1", "west"))], "edge1")
    now = progress(rows({"edge1-default": answer}), wanted)
    assert (now.done, now.line) == (done, line)


@pytest.mark.parametrize(
    ("status", "deleted", "runs"),
    [
        ({"phase": "Running", "containerStatuses": [{"name": "agent", "state": {"running": {}}}]}, True, True),
        ({"phase": "Running", "containerStatuses": [{"name": "agent", "state": {"terminated": {}}}]}, True, False),
        ({"phase": "Running", "containerStatuses": [{"name": "agent", "state": {"terminated": {}}}]}, False, True),
        ({"phase": "Failed"}, False, False),
        ({}, False, True),
    ],
)
def test_an_agent_is_gone_when_its_container_has_ended_for_good(status: dict[str, Any], deleted: bool, runs: bool) -> None:
    meta = {"name": "agent", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})}
    assert agent_configs.runs({"metadata": meta, "status": status}) == runs


@pytest.fixture
def managed(example: Operator) -> Iterator[Kube]:
    """The example with Kubernetes' own DaemonSet controller, which creates and deletes pods."""
    kube = example.kube
    command = [tool("kube-controller-manager"), f"--kubeconfig={kube.admin}", "--controllers=daemonset-controller", "--leader-elect=false"]
    command += ["--bind-address=127.0.0.1", f"--secure-port={free_port()}", f"--cert-dir={kube.folder / 'manager'}"]
    with _process(command, kube.folder / "daemonsets.log"):
        yield kube


def agents_at(kube: Kube, pool: str = "default", component: str = "agent") -> list[str]:
    """Sites of the pods that exist and are not being deleted."""
    selector = f"app.kubernetes.io/component={component}" + (f",sos.network/pool={pool}" if component == "agent" else "")
    pods = [pod for pod in kube.items("pods", "-n", NAMESPACE, "-l", selector) if not pod["metadata"].get("deletionTimestamp")]
    return sorted(pod["metadata"]["labels"]["sos.network/site"] for pod in pods)


def act(kube: Kube) -> None:
    """Play scheduler and kubelets: bind each pod to its node, and finish the deletion of deleted pods."""
    for pod in kube.items("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component in (agent,node)"):
        name = pod["metadata"]["name"]
        if pod["metadata"].get("deletionTimestamp"):
            kube.kubectl("delete", "pod", name, "-n", NAMESPACE, "--force", "--grace-period=0", check=False)
        elif not pod["spec"].get("nodeName"):
            affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            (field,) = affinity["nodeSelectorTerms"][0]["matchFields"]
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name},
                "target": {"kind": "Node", "name": field["values"][0]},
            }
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/binding"
            kube.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding), check=False)


def only(kube: Kube, sites: list[str]) -> bool:
    act(kube)
    found = agents_at(kube)
    assert found == sites, found
    return True


def test_the_drain_label_keeps_the_agent_away_until_it_is_removed(managed: Kube) -> None:
    """DaemonSets enforce affinity also for running pods: the label ends the agent's pod, which drains the agent."""
    kube = managed
    (target, *_) = targets(CONFIG, "edge1")
    assert target.label == "drain.sos.network/default"
    eventually("agents at both sites", lambda: only(kube, ["east", "west"]), 60)
    kube.kubectl("label", "node", "edge1", f"{target.label}=true")
    eventually("none at west", lambda: only(kube, ["east"]), 60)
    assert "west" in agents_at(kube, component="node"), "the switch stays, so that the node forwards"
    kube.kubectl("label", "node", "edge1", f"{target.label}-")
    eventually("it is back", lambda: only(kube, ["east", "west"]), 60)


class Agents(BaseHTTPRequestHandler):
    """Controller API that shows a draining agent: its sessions end one by one, then the agent disappears."""

    sessions = 0
    label = ""
    kube: Kube

    def do_GET(self) -> None:
        drains = self.label in self.kube.get("node", "edge1")["metadata"]["labels"]
        type(self).sessions -= drains and self.sessions > 0
        rows = [row("aa", self.sessions, willing=not drains, draining=drains)] if self.sessions or not drains else []
        document = {"/v1/config": CONFIG, "/v1/agents": {"agents": rows}}[self.path]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *_: Any) -> None:
        return


def test_drain_labels_nodes_waits_and_reports_remaining_sessions(example: Operator) -> None:
    kube = example.kube
    handler = type("Handler", (Agents,), {"kube": kube, "label": "drain.sos.network/default", "sessions": 1000})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = ("--url", f"http://127.0.0.1:{server.server_address[1]}")
        done = sos(kube, "drain", "edge1-second", *url, "--timeout", "20")
        assert done.returncode == 0, "an absent agent has no sessions"
        assert kube.get("node", "edge1")["metadata"]["labels"]["drain.sos.network/second"] == "true"
        done = sos(kube, "drain", "edge1", *url, "--timeout", "2")
        assert done.returncode == 1 and "sessions left at edge1" in done.stdout
        handler.sessions = 3
        done = sos(kube, "drain", "edge1", *url, "--timeout", "60", "-o", "json")
        assert (done.returncode, json.loads(done.stdout)["done"]) == (0, True)
        wrong = sos(kube, "drain", "nobody", *url)
        assert wrong.returncode == 2 and "edge1, edge1-second, edge2" in wrong.stderr
        server.shutdown()
    gone = ("--url", f"http://127.0.0.1:{free_port()}")
    done = sos(kube, "drain", "edge1-second", *gone, "--undo")
    assert (done.returncode, done.stdout) == (0, "edge1-second may come back\n"), "no controller answers"
    assert drains(kube) == ["drain.sos.network/default"]
    done = sos(kube, "drain", "edge1", *gone, "--undo", "-o", "json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"agents": ["edge1"], "draining": False}) and drains(kube) == []
    done = sos(kube, "drain", "edge1", "--undo")
    assert (done.returncode, done.stdout) == (0, "edge1: no agent is kept away\n")
    wrong = sos(kube, "drain", "nobody", "--undo")
    assert wrong.returncode == 2 and "no such node" in wrong.stderr


def drains(kube: Kube) -> list[str]:
    return sorted(key for key in kube.get("node", "edge1")["metadata"]["labels"] if "drain" in key)
