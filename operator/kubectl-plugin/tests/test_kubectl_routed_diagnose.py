"""Findings of `kubectl sos diagnose` between sites without bridges: from the agents' answers and counters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_routed_agents import by_node, compiled, healthy, service, status
from sos_kubectl.base import tables
from sos_kubectl.base.source import SourceError
from sos_kubectl.diagnose import gather as common_gather
from sos_kubectl.diagnose import samples
from sos_kubectl.diagnose.facts import Asked, Facts
from sos_kubectl.diagnose.routed import checks, render, selection
from sos_kubectl.diagnose.routed.facts import RoutedFacts, as_config, pair_views, reasons
from sos_kubectl.targets.agent_configs import Agent, Answer

WEB = compiled()
ASKED = Asked("west", "east")
STREAMS = 5


def with_paths(agent: Agent, **changes: Any) -> dict[str, Any]:
    """The status of a healthy agent with all streams of both paths."""
    found = status(agent, **changes)
    rows = [{"label": label, "streams": STREAMS, "configured": STREAMS} for label in (0, 1)]
    return {**found, "peers": [{"paths": rows, **peer} for peer in found["peers"]]}


def facts(agents: list[Agent] | None = None, asked: Asked = ASKED, **changes: dict[str, Any]) -> RoutedFacts:
    """Facts without any fault, except for the changes by node."""
    given = WEB if agents is None else agents
    answers = {agent.id: Answer(with_paths(agent, **changes.get(agent.node, {}))) for agent in given}
    return RoutedFacts(Facts(asked=asked, config=as_config(given)), given, answers)


def silent(base: RoutedFacts, node: str, answer: Answer) -> RoutedFacts:
    return replace(base, answers={**base.answers, by_node(list(base.agents))[node].id: answer})


def peers(node: str, change: dict[str, Any], *others: str) -> dict[str, list[dict[str, Any]]]:
    """The peers of an agent, with a change of its view of some agents."""
    found = with_paths(by_node(WEB)[node])["peers"]
    return {"peers": [{**peer, **change} if peer["node"] in others else peer for peer in found]}


def path_down(label: int) -> list[dict[str, Any]]:
    return [{"label": each, "streams": 0 if each == label else STREAMS, "configured": STREAMS} for each in (0, 1)]


def test_health_is_ready_and_shows_agents_and_paths() -> None:
    found = checks.findings(facts())
    assert found == [] and checks.verdict(facts(), found) == checks.READY
    printed = render.lines(facts(), found, colour=False)
    assert printed[-1].startswith("ready: ") and sum("5 of 5" in line for line in printed) == 8
    document = render.as_json(facts(), found)
    assert (document["verdict"], document["service"], len(document["agents"]), len(document["paths"])) == ("ready", "default/web", 4, 8)
    first = {"agent": "a1", "peer": "b1", "path": 1, "from": "192.0.2.1", "to": "192.0.2.3", "streams": STREAMS, "configured": STREAMS}
    assert document["paths"][0] == first


GONE = {"alive": False, "willing": False, "paths": [{"label": label, "streams": 0, "configured": STREAMS} for label in (0, 1)]}
REFUSED = {
    "kind": "SosSite",
    "metadata": {"name": "west"},
    "status": {"conditions": [{"type": "Accepted", "status": "False", "reason": "Invalid", "message": "spec.wan"}]},
}


@pytest.mark.parametrize(
    ("changes", "code", "where", "verdict"),
    [
        ({"a1": {"draining": True, "willing": False}}, "AgentUnwilling", "a1 (west)", "degraded"),
        ({"b2": {"willing": False, "sessions": 4000}}, "AgentUnwilling", "b2 (east)", "degraded"),
        ({"a1": {"hash": "sha256:old", "generation": 3}}, "ConfigurationPending", "a1 (west)", "degraded"),
        ({"a1": peers("a1", GONE, "b1")}, "StreamsBlocked", "a1 (west) - b1 (east)", "degraded"),
        ({"a1": peers("a1", GONE, "b1", "b2")}, "StreamsBlocked", "a1 to east", "degraded"),
        ({"a1": peers("a1", {"paths": path_down(1)}, "b2")}, "PathDown", "a1 (west) - b2 (east), path 2", "degraded"),
        ({node: peers(node, GONE, "b1", "b2") for node in ("a1", "a2")}, "StreamsBlocked", "a1 to east", "plain"),
        ({node: {"draining": True, "willing": False} for node in ("b1", "b2")}, "AgentUnwilling", "b1 (east)", "plain"),
    ],
)
def test_each_broken_thing_has_a_name(changes: dict[str, dict[str, Any]], code: str, where: str, verdict: str) -> None:
    given = facts(**changes)
    found = checks.findings(given)
    assert (found[0].code, found[0].where) == (code, where)
    assert checks.verdict(given, found) == verdict
    printed = render.lines(given, found, colour=False)
    assert f"first broken: {code} {where}" in printed and max(map(len, printed)) <= tables.WIDTH


def test_a_backup_is_no_fault_while_another_node_has_the_virtual_address() -> None:
    shared = compiled(intake={"type": "Routed", "interface": "lan0", "virtualAddress": "10.9.0.1"})
    backup: dict[str, Any] = {"virtualAddress": "Backup", "willing": False}
    given = facts(shared, a1=backup, b2=backup)
    assert checks.findings(given) == [] and checks.verdict(given, []) == checks.READY
    given = facts(shared, a1=backup, a2=backup)
    found = checks.findings(given)
    assert (found[0].code, found[0].where) == ("AgentUnwilling", "a1 (west)")
    assert "does not have the virtual address 10.9.0.1" in found[0].what
    assert checks.verdict(given, found) == "plain"


def test_an_agent_without_streams_is_one_finding() -> None:
    (finding,) = checks.findings(facts(a1=peers("a1", GONE, "b1", "b2")))
    assert "no stream to any of 2 agents of east" in finding.what and "10001 of 198.51.100.3" in finding.what


def test_a_down_agent_explains_its_missing_streams() -> None:
    """Without the agent b1, neither a1 nor a2 has a stream to it: the agent is the cause."""
    changes = {node: peers(node, GONE, "b1") for node in ("a1", "a2")}
    given = silent(facts(**changes), "b1", Answer(error="no pod of pool default is on node b1", runs=False))
    assert [(finding.code, finding.where) for finding in checks.findings(given)] == [("AgentDown", "b1 (east)")]
    drained = facts(**changes, b1={"draining": True, "willing": False})
    assert [finding.code for finding in checks.findings(drained)] == ["AgentUnwilling"]


def test_counters_explain_missing_streams() -> None:
    base = facts(a1=peers("a1", GONE, "b1"))
    page = "sos_agent_handshakes_failed_total 7\nsos_agent_strangers_total 0\n"
    (finding,) = checks.findings(replace(base, metrics={by_node(WEB)["a1"].id: page}))
    assert "7 attempts to open a stream failed" in finding.what and "unknown addresses" not in finding.what


def test_without_any_answer_the_verdict_is_unknown_and_without_any_process_plain() -> None:
    for answer, verdict in ((Answer(error="forbidden"), "unknown"), (Answer(error="no pod", runs=False), "plain")):
        given = replace(facts(), answers={agent.id: answer for agent in WEB})
        found = checks.findings(given)
        assert {finding.code for finding in found} == {"AgentDown"} and checks.verdict(given, found) == verdict


def test_streams_show_that_an_agent_runs_which_only_this_command_cannot_reach() -> None:
    base = facts()
    for answer, verdict in ((Answer(error="forbidden"), "degraded"), (Answer(error="no pod", runs=False), "plain")):
        given = silent(silent(base, "b1", answer), "b2", answer)
        assert checks.verdict(given, checks.findings(given)) == verdict


def test_objects_and_services_are_checked_as_between_bridges() -> None:
    back = facts(asked=Asked("east", "west"))
    found = checks.findings(back)
    assert [finding.code for finding in found] == ["NoService"] and checks.verdict(back, found) == "plain"
    refused = replace(facts(), common=replace(facts().common, objects=[REFUSED]))
    assert [(finding.code, finding.where) for finding in checks.findings(refused)] == [("NotAccepted", "SosSite west")]


def test_plain_connections_are_counted_by_reason() -> None:
    page = (
        'sos_agent_plain_total{reason="NoAgent"} 3\nsos_agent_plain_total{reason="Option"} 0\n'
        'sos_agent_rejected_total{reason="not_permitted"} 9\nsos_agent_sessions 4\n'
    )
    given = replace(facts(), metrics={by_node(WEB)["a1"].id: page})
    assert [(agent.node, *rest) for agent, *rest in reasons(given)] == [("a1", "reset", "not_permitted", 9), ("a1", "plain", "NoAgent", 3)]
    rows = render.as_json(given, [])["notAccelerated"]
    assert rows[1] == {"agent": "a1", "site": "west", "outcome": "plain", "reason": "NoAgent", "connections": 3}
    assert samples.totals(page)["sos_agent_plain_total"] == 3


def test_agents_of_an_earlier_version_report_no_streams_by_path() -> None:
    given = RoutedFacts(Facts(asked=ASKED, config=as_config(WEB)), WEB, healthy(WEB))
    assert checks.verdict(given, checks.findings(given)) == checks.READY
    assert sum(line.endswith("some") for line in render.lines(given, [], colour=False)) == 8


@pytest.mark.parametrize("here", ["west", "east"])
def test_one_cluster_of_two_sees_the_streams_of_its_own_agents(here: str) -> None:
    """The other site's agents are known from the agent-configs only."""
    given = facts([agent for agent in WEB if agent.site == here])
    assert len(pair_views(given)) == 4 and all(pair.known is None for pair in pair_views(given))
    assert checks.verdict(given, checks.findings(given)) == checks.READY


def test_a_pair_is_diagnosed_by_its_agents_or_by_its_controller() -> None:
    bridged = Agent({"agentId": "ff", "node": "c", "pool": "default", "site": {"name": "south", "prefixes": ["10.9.0.0/16"]}})
    none = ("", "")
    assert selection.routed_pairs(WEB, none, "") == [("west", "east")]
    assert selection.routed_pairs(WEB, none, "default/other") == []
    assert selection.routed_pairs([*WEB, bridged], ("south", "north"), "") == []
    assert selection.routed_pairs(WEB, ("south", "north"), "") == [("south", "north")], (
        "there are no other sites: the error lists the sites"
    )
    assert selection.routed_pairs([*WEB, bridged], ("west", "east"), "") == [("west", "east")]
    asks = selection.asks_controller
    assert (
        asks([*WEB, bridged], none, "", [("west", "east")]) and asks([], none, "", []) and asks([*WEB, bridged], ("south", "north"), "", [])
    )
    assert not asks(WEB, none, "", [("west", "east")]) and not asks([*WEB, bridged], none, "default/web", [("west", "east")])


def test_services_of_selected_pods_are_known_without_a_selected_pod() -> None:
    agents = compiled(service(source={"pods": {}}))
    assert selection.routed_pairs(agents, ("", ""), "") == [("west", "east")]
    with pytest.raises(SourceError, match="there are default/web"):
        common_gather.pairs(as_config(agents), "default/other")


@settings(deadline=None)  # execution time depends on the machine's load
@given(st.integers(1, 60), st.sampled_from([GONE, {"paths": path_down(0)}]))
def test_the_output_of_large_sites_is_bounded(count: int, change: dict[str, Any]) -> None:
    """Many agents with the same fault: some are named, and the rest is counted."""
    one, far = by_node(WEB)["a1"], by_node(WEB)["b1"]
    copies = [Agent({**one.document, "agentId": f"{number:032x}", "node": f"n{number}"}) for number in range(count)]
    answers = {agent.id: Answer({**with_paths(agent), **peers("a1", change, "b1", "b2")}) for agent in copies}
    given = RoutedFacts(Facts(asked=ASKED, config=as_config(WEB)), [*copies, far], {**answers, far.id: Answer(with_paths(far))})
    found = checks.findings(given)
    assert found and len(found) <= 16 and len(render.lines(given, found, colour=False)) <= 250
