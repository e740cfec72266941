"""Statuses of sites without bridges, from the answers of their agents."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import sos_compile
from operator_listing import custom, listing
from sos_operator.core.model.remote.agent_status import AgentAnswer, parse_agent_answer
from sos_operator.core.status.direct_agents import agents_without_controller
from sos_operator.core.status.report import report
from sos_operator.core.status.situation import Report, Situation

NODES = tuple(
    sos_compile.Node(name, {"site": site}, address) for name, site, address in (("a", "west", "172.18.0.2"), ("b", "east", "172.18.0.3"))
)


def site(name: str, prefix: str) -> dict[str, Any]:
    spec = {"nodeSelector": {"matchLabels": {"site": name}}, "prefixes": [prefix], "wan": {"type": "Routed"}, "intake": {"type": "Pods"}}
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosSite", "metadata": {"name": name}, "spec": spec}


def admitted(obj: dict[str, Any], number: int) -> dict[str, Any]:
    found = sos_compile.admit(obj)[0]
    found["metadata"] |= {"uid": f"uid-{number}", "generation": 1}
    return found


GIVEN = (
    site("west", "10.1.0.0/16"),
    site("east", "10.2.0.0/16"),
    {"apiVersion": "sos.network/v1alpha1", "kind": "SosAgent", "metadata": {"name": "default"}, "spec": {}},
    {
        "apiVersion": "sos.network/v1alpha1",
        "kind": "SosService",
        "metadata": {"name": "bulk", "namespace": "default"},
        "spec": {"from": {"site": "west"}, "to": {"site": "east"}},
    },
)
OBJECTS = tuple(admitted(obj, number) for number, obj in enumerate(GIVEN))
WORLD = sos_compile.World(
    objects=OBJECTS, nodes=NODES, namespaces=(sos_compile.Namespace("default"),), settings=sos_compile.Settings(namespace="default")
)
COMPILED = sos_compile.compile_world(WORLD)


def pod(site_name: str, node: str) -> dict[str, Any]:
    owner = {"kind": "DaemonSet", "name": f"sos-agent-default-{site_name}"}
    meta = {"name": f"agent-{node}", "uid": f"pod-{node}", "ownerReferences": [owner]}
    return {"metadata": meta, "spec": {"nodeName": node}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def daemon_set(site_name: str) -> dict[str, Any]:
    status = {"observedGeneration": 1, "desiredNumberScheduled": 1, "numberReady": 1, "updatedNumberScheduled": 1}
    return {"kind": "DaemonSet", "metadata": {"name": f"sos-agent-default-{site_name}", "generation": 1}, "spec": {}, "status": status}


def answer(node: str, *, ready: bool = True, current: bool = True) -> AgentAnswer:
    hash_ = COMPILED.agents["default", node]["hash"] if current else "sha256:old"
    return AgentAnswer(hash_, True, {"default/bulk": ready})


SEEN = listing(objects=OBJECTS, pods=(pod("west", "a"), pod("east", "b")), children=(daemon_set("west"), daemon_set("east")))


def situation(**answers: AgentAnswer) -> Situation:
    return Situation(seen=SEEN, compiled=COMPILED, agent_answers={f"pod-{node}": given for node, given in answers.items()})


def the(kind: str, given: Situation, name: str = "") -> Report:
    (obj,) = (o for o in OBJECTS if o["kind"] == kind and name in ("", o["metadata"]["name"]))
    found = report(*custom(obj), given)
    assert found is not None
    return found


def condition(found: Report, type_: str) -> tuple[str, str]:
    (verdict,) = (verdict for verdict in found.verdicts if verdict.type == type_)
    return verdict.status, verdict.reason


def test_everything_is_ready_if_all_agents_answer() -> None:
    given = situation(a=answer("a"), b=answer("b"))
    for kind, name in (("SosSite", "west"), ("SosSite", "east"), ("SosAgent", "default"), ("SosService", "bulk")):
        assert condition(the(kind, given, name), "Ready")[0] == "True", (kind, name)
    assert the("SosSite", given, "west").fields["agentsRegistered"] == "1/1"
    assert the("SosAgent", given).fields["registered"] == 2
    assert the("SosService", given).fields["source"] == "Preserve"


def test_a_silent_agent_is_named() -> None:
    given = situation(a=answer("a"))
    assert condition(the("SosSite", given, "east"), "AgentsRegistered") == ("False", "NotRegistered")
    assert condition(the("SosAgent", given), "Registered") == ("False", "NotRegistered")
    assert condition(the("SosService", given), "Programmed") == ("False", "Programming")
    assert condition(the("SosSite", given, "west"), "Ready")[0] == "True"


def test_an_agent_with_an_older_configuration_is_not_current() -> None:
    given = situation(a=answer("a", current=False), b=answer("b"))
    assert condition(the("SosService", given), "Programmed") == ("False", "Programming")


def test_agents_that_do_not_reach_each_other_accelerate_nothing() -> None:
    found = the("SosService", situation(a=answer("a", ready=False), b=answer("b")))
    assert condition(found, "Programmed") == ("False", "NoAgents")
    (message,) = (verdict.message for verdict in found.verdicts if verdict.type == "Programmed")
    assert "SosSite west reach no agent of SosSite east" in message


def test_a_site_needs_one_node_with_its_virtual_address() -> None:
    routed = {**GIVEN[0], "spec": {**GIVEN[0]["spec"], "intake": {"type": "Routed", "interface": "lan0", "virtualAddress": "10.1.0.1"}}}
    objects = (admitted(routed, 0), *OBJECTS[1:])
    twin = sos_compile.Node("a2", {"site": "west"}, "172.18.0.4")
    world = sos_compile.compile_world(replace(WORLD, objects=objects, nodes=(*NODES, twin)))
    seen = listing(
        objects=objects, pods=(pod("west", "a"), pod("west", "a2"), pod("east", "b")), children=(daemon_set("west"), daemon_set("east"))
    )

    def verdict(**backups: bool) -> tuple[str, str, str]:
        answers = {
            f"pod-{node}": AgentAnswer(world.agents["default", node]["hash"], True, {"default/bulk": not backup}, backup)
            for node, backup in ({"b": False} | backups).items()
        }
        found = report(*custom(objects[3]), Situation(seen=seen, compiled=world, agent_answers=answers))
        assert found is not None
        (programmed,) = (verdict for verdict in found.verdicts if verdict.type == "Programmed")
        return programmed.status, programmed.reason, programmed.message

    assert verdict(a=False, a2=True)[0] == "True"
    status, reason, message = verdict(a=True, a2=True)
    assert (status, reason) == ("False", "NoAgents")
    assert "no node of SosSite west has the virtual address 10.1.0.1: a, a2" in message


def test_only_agents_without_controllers_are_queried() -> None:
    other = pod("south", "c")
    found = agents_without_controller(listing(pods=(pod("west", "a"), pod("east", "b"), other)), COMPILED)
    assert [pod.name for pod in found] == ["agent-a", "agent-b"]


def test_answers_are_parsed_and_nonsense_is_none() -> None:
    good = {"hash": "sha256:1", "willing": True, "services": [{"id": "default/bulk", "ready": True}, {"id": "x"}, 7]}
    assert parse_agent_answer(json.dumps(good).encode()) == AgentAnswer("sha256:1", True, {"default/bulk": True, "x": False})
    assert parse_agent_answer(b'{"hash": "h", "virtualAddress": "Backup"}') == AgentAnswer("h", False, {}, backup=True)
    for content in (b"", b"[]", b"{}", b'{"hash": 1}', b"[" * 100_000):
        assert parse_agent_answer(content) is None
    assert parse_agent_answer(b'{"hash": "h", "services": {}}') == AgentAnswer("h", False, {})


def selecting(*pods: sos_compile.Pod) -> tuple[sos_compile.Compiled, dict[str, Any]]:
    """The same objects with a service that selects pods, and that service."""
    service = admitted({**GIVEN[3], "spec": {**GIVEN[3]["spec"], "from": {"site": "west", "pods": {}}}}, 3)
    world = replace(WORLD, objects=(*OBJECTS[:3], service), pods=pods)
    return sos_compile.compile_world(world), service


def programmed(pods: tuple[sos_compile.Pod, ...], **services: dict[str, bool]) -> tuple[str, str, str]:
    """Condition Programmed of that service, with agents that have an older configuration with these services in force."""
    compiled, service = selecting(*pods)
    answers = {f"pod-{node}": AgentAnswer("sha256:old", True, ready) for node, ready in services.items()}
    found = report(*custom(service), Situation(seen=SEEN, compiled=compiled, agent_answers=answers))
    assert found is not None
    (verdict,) = (verdict for verdict in found.verdicts if verdict.type == "Programmed")
    return verdict.status, verdict.reason, verdict.message


POD = sos_compile.Pod("default", "web-0", "a", "10.1.0.4")


def test_a_change_of_the_selected_pods_does_not_interrupt_the_condition() -> None:
    """Pods come and go all the time, and every change is a new configuration."""
    known = {"default/bulk": True}
    assert programmed((POD,), a=known, b=known)[:2] == ("True", "Programmed")
    assert programmed((POD,), a={}, b=known)[:2] == ("False", "Programming"), "the agent has never had the service"


def test_without_a_selected_pod_the_service_is_programmed_and_says_so() -> None:
    status, _, message = programmed((), a={}, b={"default/bulk": True})
    assert status == "True" and "no selected pod is running" in message
