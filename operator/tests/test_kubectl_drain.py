"""`kubectl sos drain`: which agents are meant, when it is over, and the label that keeps a pool's agents off a node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from operator_run import NAMESPACE, Operator
from sos_kubectl.drain import known, not_yet, progress, targets

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
def test_drained_is_who_takes_nothing_and_has_nothing(rows: list[dict[str, Any]], done: bool, line: str) -> None:
    now = progress({"agents": rows}, targets(CONFIG, "edge1"))
    assert (now.done, now.line) == (done, line)


def test_who_drains_already_is_not_told_again() -> None:
    rows = {"agents": [row("aa", 2), row("ab", 0, willing=True, draining=False)]}
    assert [target.id for target in not_yet(rows, targets(CONFIG, "edge1"))] == ["ab"]


def test_the_label_keeps_the_pools_agents_off_the_node(example: Operator) -> None:
    """DaemonSets honour affinity also for pods that run: the label ends the agent's pod, which drains it."""
    kube = example.kube
    (target, *_) = targets(CONFIG, "edge1")
    daemon_set = kube.get("daemonset", "sos-agent-default-west", "-n", NAMESPACE)
    affinity = daemon_set["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["nodeSelectorTerms"]
    assert {"key": target.label, "operator": "DoesNotExist"} in term["matchExpressions"]
    assert target.label == "drain.sos.network/default"
    switch = kube.get("daemonset", "sos-node-west", "-n", NAMESPACE)
    assert target.label not in json.dumps(switch), "the switch stays: its node forwards"
