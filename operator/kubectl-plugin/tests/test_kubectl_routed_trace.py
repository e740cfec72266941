"""`kubectl sos trace` between sites without bridges: the agents' own decisions, with reasons."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import pytest
import sos_compile
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_routed_agents import NODES, by_node, compiled, healthy, service, status
from sos_kubectl.base import tables
from sos_kubectl.targets.agent_configs import Agent, Answer
from sos_kubectl.views import pairs, routed_trace
from sos_kubectl.views.trace import Question, Trace, as_json, lines

WEB = compiled()
ROUTERS = compiled(intake={"type": "Routed", "interface": "lan0"})
SHARED = compiled(intake={"type": "Routed", "interface": "lan0", "virtualAddress": "10.9.0.1"})
BACKUP: dict[str, Any] = {"virtualAddress": "Backup", "willing": False}
CLIENT, SERVER, PORT = "10.1.1.4", "10.2.2.5", 80


def question(client: str = CLIENT, server: str = SERVER, port: int = PORT) -> Question:
    return Question(IPv4Address(client), IPv4Address(server), port)


def follow(agents: list[Agent], answers: dict[str, Answer], *ends: Any) -> Trace:
    asked = question(*ends)
    queried = {agent.id for agent in routed_trace.to_query(asked, agents)}
    return routed_trace.trace(asked, agents, {id_: answer for id_, answer in answers.items() if id_ in queried})


def test_the_agents_of_the_pods_own_nodes_and_their_paths_are_named() -> None:
    found = follow(WEB, healthy(WEB))
    assert (found.outcome, found.service, found.why) == ("accelerated", "default/web", "")
    said = "\n".join(lines(found, colour=False))
    assert "10.1.1.4 is on node a1" in said and "agent b2 of east takes sessions" in said
    assert "path 1: 192.0.2.1 to 192.0.2.4" in said and "path 2: 198.51.100.1 to 198.51.100.4" in said
    assert said.endswith("accelerated by service default/web")
    (pair,) = as_json(found)["pairs"]
    assert (pair["ingress"], pair["egress"]) == ("a1", "b2")
    assert pair["paths"][1] == {"path": 2, "from": "198.51.100.1", "to": "198.51.100.4"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"a1": {"draining": True, "willing": False, "sessions": 7}}, "AgentDraining): it is draining, with 7 sessions left"),
        ({"a1": {"willing": False, "sessions": 4000}}, "AgentSessions"),
        ({"a1": {"willing": False, "sessions": 1}}, "AgentMemory"),
        ({"b2": {"draining": True, "willing": False}}, "reaches no agent on the node of 10.2.2.5 that accepts sessions (NoAgent)"),
        ({"a1": {"hash": "sha256:old", "services": []}}, "does not know service default/web yet (NotArmed)"),
        ({"b2": {"hash": "sha256:old", "services": []}}, "NoAgent"),
        ({"a1": {"peers": []}}, "NoAgent"),
    ],
)
def test_a_connection_is_plain_for_the_agents_reason(changes: dict[str, dict[str, Any]], why: str) -> None:
    found = follow(WEB, healthy(WEB, **changes))
    assert found.outcome == "plain" and why in found.why


def test_other_agents_do_not_matter_to_pods_of_known_nodes() -> None:
    found = follow(WEB, healthy(WEB, a2={"willing": False}, b1={"draining": True, "willing": False}))
    assert (found.outcome, found.why) == ("accelerated", "")


def test_an_agent_without_an_answer_is_quoted() -> None:
    answers = healthy(WEB) | {by_node(WEB)["a1"].id: Answer(error="pod x does not answer")}
    assert follow(WEB, answers).why.endswith("(NoAgent): pod x does not answer")


def test_streams_show_that_an_egress_agent_runs_which_only_this_command_cannot_reach() -> None:
    far = by_node(WEB)["b2"].id
    found = follow(WEB, healthy(WEB) | {far: Answer(error="forbidden")})
    assert (found.outcome, found.why) == ("accelerated", "") and (False, "agent b2 does not answer this command: forbidden") in found.steps
    found = follow(WEB, healthy(WEB) | {far: Answer(error="no pod", runs=False)})
    assert found.outcome == "plain" and (False, "agent b2 of east takes no sessions (NoAgent): no pod") in found.steps


def test_an_older_configuration_that_has_the_service_accelerates() -> None:
    found = follow(WEB, healthy(WEB, a1={"hash": "sha256:old", "generation": 3}))
    assert found.outcome == "accelerated" and any("it has configuration 3 in force" in said for _, said in found.steps)


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ((CLIENT, SERVER, 443), "no service covers port 443 between them; covered: 80-89"),
        ((CLIENT, "10.1.2.9"), "no service covers connections from 10.1.1.4 to 10.1.2.9"),
        (("192.0.2.200", SERVER), "192.0.2.200 is in no site's prefixes"),
        ((SERVER, CLIENT), "no service covers connections from 10.2.2.5"),
    ],
)
def test_a_connection_outside_every_service_is_explained(ends: tuple[Any, ...], why: str) -> None:
    found = follow(WEB, healthy(WEB), *ends)
    assert (found.outcome, found.service) == ("plain", "") and why in found.why


def test_the_first_service_wins_and_the_others_are_named() -> None:
    agents = compiled(service("low"), service("high", ports=(80, 80), priority=5))
    found = follow(agents, healthy(agents))
    assert (found.service, found.hidden) == ("default/high", ["default/low"])


def test_a_client_pod_that_is_not_selected_is_plain() -> None:
    agents = compiled(service(source={"pods": {}}), pods=(sos_compile.Pod("default", "web-0", "a1", CLIENT),))
    assert follow(agents, healthy(agents)).outcome == "accelerated"
    found = follow(agents, healthy(agents), "10.1.2.7")
    assert found.outcome == "plain" and "covers it only for selected pods, and 10.1.2.7 is none of them" in found.why


def test_behind_routers_every_agent_counts() -> None:
    agents = ROUTERS
    found = follow(agents, healthy(agents))
    assert found.outcome == "accelerated" and len(found.pairs) == 2
    found = follow(agents, healthy(agents, a2={"draining": True, "willing": False}))
    assert found.outcome == "unknown" and "else plain TCP" in lines(found, colour=False)[-1]
    assert follow(agents, healthy(agents, a1={"willing": False}, a2={"willing": False})).outcome == "plain"


def test_only_the_agent_with_the_virtual_address_intercepts() -> None:
    changes: dict[str, dict[str, Any]] = {"a1": BACKUP, "a2": {"virtualAddress": "Active"}, "b1": BACKUP}
    found = follow(SHARED, healthy(SHARED, **changes))
    assert (found.outcome, len(found.pairs)) == ("accelerated", 1)
    assert any(
        "agent b1 of east takes no sessions (NotArmed): its node does not have the virtual address 10.9.0.1" in s for _, s in found.steps
    )
    found = follow(SHARED, healthy(SHARED, a1=BACKUP, a2=BACKUP))
    assert found.outcome == "plain" and "its node does not have the virtual address 10.9.0.1" in found.why


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ({}, "only if it is a pod on node b1; otherwise plain (PortTaken)"),
        ({"prefixes": ["10.2.200.0/24"], "source": "Agent"}, "from its node's own address"),
    ],
)
def test_a_server_beside_no_agent_is_explained(to: dict[str, Any], words: str) -> None:
    agents = compiled(service(to=to))
    found = follow(agents, healthy(agents), CLIENT, "10.2.200.9")
    assert found.outcome == "accelerated" and any(words in said for _, said in found.steps)


def test_agents_are_queried_also_for_servers_outside_their_sites_prefixes() -> None:
    """The addresses of a Kubernetes Service are inside the service's `to` only."""
    outside = "10.96.0.7/32"
    agents = [
        Agent({**agent.document, "services": [{**row, "to": [*row["to"], outside]} for row in agent.document["services"]]}) for agent in WEB
    ]
    queried = routed_trace.to_query(question(CLIENT, "10.96.0.7"), agents)
    assert {agent.node for agent in queried} == {"a1", "a2", "b1", "b2"}
    assert {agent.node for agent in routed_trace.to_query(question(CLIENT, "10.96.0.8"), agents)} == {"a1", "a2"}
    found = follow(agents, healthy(agents), CLIENT, "10.96.0.7")
    assert found.outcome == "accelerated" and any("only if it is a pod on node b1" in said for _, said in found.steps)


def test_shortest_uses_the_first_path_only() -> None:
    agents = compiled(service(spec={"paths": {"mode": "Shortest"}}))
    (pair,) = follow(agents, healthy(agents)).pairs
    assert [path["path"] for path in pair["paths"]] == [1]


def test_a_client_of_another_cluster_is_traced_there() -> None:
    remote = [agent for agent in WEB if agent.site == "east"]
    assert follow(remote, healthy(remote)).why.endswith("in site west of another cluster or machine: trace it there")


def test_only_connections_of_sites_without_bridges_are_traced_here() -> None:
    bridged = Agent({"agentId": "ff", "node": "c", "pool": "default", "site": {"name": "south", "prefixes": ["10.9.0.0/16"]}})
    assert routed_trace.concerns(question(), [*WEB, bridged])
    assert not routed_trace.concerns(question("10.9.0.1", "10.9.0.2"), [*WEB, bridged])
    assert routed_trace.concerns(question("10.9.0.1", "10.9.0.2"), WEB) and not routed_trace.concerns(question(), [bridged])


@settings(deadline=None)  # execution time depends on the machine's load
@given(st.integers(1, 300))
def test_the_trace_of_a_large_site_is_bounded(count: int) -> None:
    """Each agent of a site behind routers may be the ingress agent; all count, and few are listed."""
    one, far = (by_node(ROUTERS)[node] for node in ("a1", "b1"))
    copies = [Agent({**one.document, "agentId": f"{number:032x}", "node": f"n{number}"}) for number in range(count)]
    agents = [*copies, far]
    last = {copies[-1].id: Answer(status(copies[-1], willing=False))}
    found = follow(agents, healthy(agents) | last)
    assert len(found.steps) <= 40 and found.outcome == ("unknown" if count > 1 else "plain")
    assert max(map(len, lines(found, colour=False))) <= tables.WIDTH


def test_both_agents_name_the_same_port_of_a_path() -> None:
    """Only one of two agents accepts the streams of a pair."""
    own = {agent.id: agent for agent in WEB}
    seen = 0
    for agent in WEB:
        for peer in agent.document["peers"]:
            for other in peer["agents"]:
                back = next(row for row in pairs.peer_agents(own[other["id"]].document, agent.site) if row["id"] == agent.id)
                there = pairs.paths(agent.document, peer["site"], other)
                assert [(path.accepts, path.port) for path in there] == [
                    (path.accepts, path.port) for path in pairs.paths(own[other["id"]].document, agent.site, back)
                ]
                assert len(there) == 2
                seen += 1
    assert seen == len(NODES) * 2
