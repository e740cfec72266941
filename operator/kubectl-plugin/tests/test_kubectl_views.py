"""Views of `kubectl sos`: tables fit the terminal, objects without a current status are not ready, traces give reasons."""

from __future__ import annotations

import shlex
from copy import deepcopy
from ipaddress import IPv4Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_kubectl.base import tables
from sos_kubectl.diagnose import render
from sos_kubectl.diagnose.facts import Asked, Facts
from sos_kubectl.diagnose.findings import Finding
from sos_kubectl.lifecycle import removal
from sos_kubectl.lifecycle.drain import Kept, Target, let_back, progress
from sos_kubectl.views import network, overview
from sos_kubectl.views.trace import Question, Trace, add_recent_plain, as_json, lines, trace

cells = st.text(st.characters(codec="ascii", exclude_categories=("C",)), max_size=60)


@given(st.lists(st.tuples(cells, cells, cells, cells), min_size=1, max_size=6))
def test_a_table_fits_and_has_a_line_for_each_row(rows: list[tuple[str, ...]]) -> None:
    made = tables.table(("A", "B", "C", "D"), rows)
    assert len(made) == len(rows) + 1 and max(map(len, made)) <= tables.WIDTH
    short = [row for row in rows if sum(map(len, row)) <= 20]
    for row in short if len(short) == len(rows) else []:
        assert all(cell.strip() in made[1 + rows.index(row)] for cell in row), "cells that fit are not cut"


@given(st.lists(st.text(st.characters(codec="ascii", categories=("L",)), min_size=1, max_size=40), max_size=40))
def test_a_wrapped_sentence_fits_and_loses_no_word(words: list[str]) -> None:
    made = tables.wrapped(" ".join(words))
    assert all(len(line) <= tables.WIDTH for line in made)
    assert " ".join(line.strip() for line in made).split() == words


@given(st.lists(st.text(st.characters(codec="ascii", categories=("L",)), min_size=1, max_size=300), max_size=8))
def test_a_word_longer_than_a_line_continues_on_the_next_line(words: list[str]) -> None:
    made = tables.wrapped(" ".join(words))
    assert all(len(line) <= tables.WIDTH for line in made)
    assert "".join(line.strip() for line in made).replace(" ", "") == "".join(words)


@given(st.lists(st.text(st.characters(codec="ascii", categories=("L",)), min_size=1, max_size=63), min_size=1, max_size=8))
def test_a_long_command_is_the_same_when_it_is_pasted(words: list[str]) -> None:
    made = tables.command(" ".join(words))
    assert all(len(line) <= tables.WIDTH for line in made)
    assert shlex.split("\n".join(made).replace("\\\n", "")) == words


# -- names of any length

names = st.text(st.sampled_from("abc-"), min_size=1, max_size=253)
few = st.lists(names, min_size=1, max_size=12)


@given(few, names, names)
def test_no_line_is_wider_than_a_terminal(several: list[str], one: str, other: str) -> None:
    objects = [{"kind": "SosService", "metadata": {"name": name, "namespace": one}, "spec": {}} for name in several]
    operator = {"metadata": {"name": one[:63], "namespace": other[:63]}}
    agents = {"agents": [{"id": name, "willing": one > other, "draining": False, "sessions": 3} for name in several]}
    wanted = [Target(name, name, one, other, "west") for name in several]
    facts = Facts(Asked(one, other, one))
    printed = [
        *overview.lines(overview.rows([{**obj, "status": {"conditions": [refused(one)]}} for obj in objects]), colour=False),
        *render.lines(facts, [Finding("NotCovered", f"{name} - {one}", other) for name in several], colour=False),
        *removal.what_goes([{"kind": "Deployment"}], objects, purge=True),
        *removal.question(one, objects, purge=True).splitlines(),
        *removal.interrupted(operator),
        *removal.outcome("", "", f"helm uninstall {one[:53]} -n {other[:63]}", purge=False),
        *removal.outcome(one, "", "", purge=False),
        *removal.outcome("", other, "", purge=True),
        *progress(agents, wanted).outcome(wanted, 120.0),
        *let_back([Kept(one, "l", name) for name in several], one),
        *let_back([], one),
        *network.event({"kind": "session", "service": one, "reason": other, "uuid": "0" * 36}),
        *network.flows({"sessions": [session(name, other) for name in several], "total": 10**9}, {"agents": []}),
        *lines(Trace(steps=[(True, f"{one} {other}"), (False, other)], service=one, outcome="accelerated"), colour=False),
    ]
    assert max(map(len, printed)) <= tables.WIDTH


def session(service: str, agent: str) -> dict[str, Any]:
    ends = {"client": "255.255.255.255:65535", "server": "255.255.255.255:65535", "ingress": agent, "egress": agent}
    return {"service": service, **ends, "state": "Preparing", "labels": list(range(16)), "ageSeconds": 1e6}


def refused(words: str) -> dict[str, Any]:
    return {"type": "Ready", "status": "False", "reason": words, "message": f"{words} {words}"}


def site(ready: str = "True", generation: int = 2, observed: int = 2) -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "reason": "Because", "message": "The reason in words."}
    status = {"observedGeneration": observed, "conditions": [condition], "nodesReady": "1/2", "agentsRegistered": "0/1"}
    return {"kind": "SosSite", "metadata": {"name": "west", "generation": generation}, "spec": {}, "status": status}


@pytest.mark.parametrize("ready", ["True", "False", "Unknown"])
def test_status_follows_the_ready_condition_and_shows_its_message(ready: str) -> None:
    found = overview.rows([site(ready)])
    assert [(r.kind, r.name, r.ready, r.detail) for r in found] == [("SosSite", "west", ready, "1/2 nodes, 0/1 agents")]
    assert overview.is_ready(found) == (ready == "True") == overview.as_json(found)["ready"]
    assert any("in words" in line for line in overview.lines(found, colour=False)) == (ready != "True")


def test_a_status_of_an_earlier_spec_is_not_taken_as_current() -> None:
    (row,) = overview.rows([site(generation=3, observed=2)])
    assert (row.ready, row.reason) == ("Unknown", "Pending") and "in words" not in row.message


def test_an_object_without_a_status_is_not_ready_and_an_empty_list_gives_a_hint() -> None:
    found = overview.rows([{"kind": "SosService", "metadata": {"name": "bulk", "namespace": "default"}, "spec": {"mode": "Accelerate"}}])
    assert [(r.name, r.ready, r.detail) for r in found] == [("default/bulk", "Unknown", "Accelerate")]
    assert not overview.is_ready([])
    assert "kubectl apply" in overview.lines([], colour=False)[0]


@pytest.mark.parametrize(
    ("kind", "spec", "detail"),
    [
        ("SosLink", {"a": {"site": "west", "uplink": "wan0"}, "b": {"site": "east", "uplink": "wan0"}, "cost": 20}, "west, east, cost 20"),
        (
            "SosLink",
            {"a": {"site": "west"}, "b": {"site": "east"}, "cost": 10, "transport": {"streams": 8, "protocol": "TCP", "encryption": "TLS"}},
            "west, east, 8 streams, TCP, TLS",
        ),
        (
            "SosPeer",
            {"transport": {"streams": "Auto", "congestionControl": "BBR", "protocol": "QUIC", "encryption": "None"}},
            "sites east, BBR, QUIC, no encryption",
        ),
        ("SosPeer", {}, "sites east"),
    ],
)
def test_declared_transport_of_a_pair_is_shown(kind: str, spec: dict[str, Any], detail: str) -> None:
    (row,) = overview.rows([{"kind": kind, "metadata": {"name": "x"}, "spec": spec, "status": {"siteNames": "east"}}])
    assert row.detail == detail


@pytest.mark.parametrize(("source", "shown"), [("Preserve", ""), ("Agent, PROXY protocol V2", "source Agent, PROXY protocol V2")])
def test_a_service_that_hides_its_clients_addresses_shows_it(source: str, shown: str) -> None:
    status = {"from": "west", "to": "east", "source": source}
    (row,) = overview.rows([{"kind": "SosService", "metadata": {"name": "bulk"}, "spec": {}, "status": status}])
    assert row.detail == ", ".join(part for part in ("west to east", shown) if part)


def test_controllers_come_first_and_services_last() -> None:
    kinds = ["SosService", "SosLink", "SosAgent", "SosSite", "SosController"]
    found = overview.rows([{"kind": kind, "metadata": {"name": "x"}} for kind in kinds])
    assert [row.kind for row in found] == ["SosController", "SosSite", "SosAgent", "SosLink", "SosService"]


# -- trace

CONFIG = {
    "sites": [{"name": "west", "prefixes": ["10.0.0.0/25"]}, {"name": "east", "prefixes": ["10.0.0.128/25"]}],
    "services": [
        {
            **{
                "id": "default/bulk",
                "mode": "Accelerate",
                "percent": 100,
                "ports": [{"first": 22, "last": 22}, {"first": 5000, "last": 5999}],
            },
            **{"from": {"site": "west", "prefixes": ["10.0.0.0/25"]}, "to": {"site": "east", "prefixes": ["10.0.0.128/25"]}},
        }
    ],
    "balances": [
        {
            "id": "default/turns",
            "client": "10.0.0.11",
            "to": ["198.51.100.0/24"],
            "ports": [{"first": 80, "last": 80}],
            "uplinks": [{"name": "wan0"}],
        }
    ],
}
STATUS = {
    "datapaths": [{"dpid": "0001", "name": "edge1", "site": "west", "connected": True}],
    "services": [
        {"id": "default/bulk", "state": "Programmed", "reason": "Programmed", "message": "", "needed": ["0001"], "acknowledged": ["0001"]},
        {"id": "default/turns", "state": "Programmed", "reason": "Programmed", "message": "", "needed": ["0001"], "acknowledged": ["0001"]},
    ],
    "unclaimed": [],
}
AGENTS = {
    "agents": [
        {"id": "aa", "name": "edge1", "site": "west", "address": "10.0.0.126", "dpid": "0001", "willing": True, "draining": False},
        {"id": "bb", "name": "edge2", "site": "east", "address": "10.0.0.254", "dpid": "0002", "willing": True, "draining": False},
    ]
}
SEEN = {"hosts": [{"address": "10.0.0.11", "dpid": "0001"}], "links": []}


def asked(
    client: str = "10.0.0.11", server: str = "10.0.0.139", port: int = 5001, change: Any = None, status: Any = STATUS, agents: Any = AGENTS
) -> Trace:
    config = deepcopy(CONFIG)
    if change is not None:
        change(config)
    return trace(Question(IPv4Address(client), IPv4Address(server), port), config, status, agents, SEEN)


def test_a_covered_connection_with_agents_and_entries_is_accelerated() -> None:
    found = asked()
    assert (found.outcome, found.service, found.why) == ("accelerated", "default/bulk", "")
    printed = lines(found, colour=False)
    assert printed[-1] == "accelerated by service default/bulk" and "ok  10.0.0.11 is behind edge1" in printed
    assert all(step["ok"] for step in as_json(found)["steps"])


def pending(service: str, reason: str, acknowledged: list[str]) -> dict[str, Any]:
    row = {"id": service, "state": "Pending", "reason": reason, "message": "", "needed": ["0001", "0002"], "acknowledged": acknowledged}
    return {**STATUS, "services": [row]}


def test_a_disconnected_switch_makes_the_trace_unknown_instead_of_plain() -> None:
    found = asked(status=pending("default/bulk", "DatapathDisconnected", ["0001"]))
    assert found.outcome == "unknown" and "1 of 2" in found.why and lines(found, colour=False)[-1] != "plain TCP"


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ({"port": 23}, "port 23"),
        ({"client": "192.0.2.1"}, "no site"),
        ({"server": "192.0.2.1"}, "no service covers connections from 10.0.0.11 to 192.0.2.1"),
        ({"change": lambda c: c["services"][0].update(mode="Observe")}, "Observe"),
        ({"change": lambda c: c["services"][0].update(percent=0)}, "percent is 0"),
        ({"status": pending("default/bulk", "NoPath", [])}, "NoPath"),
        ({"status": pending("default/bulk", "DatapathDisconnected", [])}, "on 0 of 2 datapaths: DatapathDisconnected"),
        ({"status": {**STATUS, "services": []}}, "on 0 of 0 datapaths"),
        ({"server": "198.51.100.7", "port": 80, "status": pending("default/turns", "NoUplink", [])}, "NoUplink"),
        ({"agents": {"agents": AGENTS["agents"][:1]}}, "no agent of east"),
        ({"agents": {"agents": [AGENTS["agents"][0], {**AGENTS["agents"][1], "draining": True}]}}, "none of the 1 agents of east"),
    ],
)
def test_a_plain_connection_has_the_first_missing_condition_as_reason(question: dict[str, Any], why: str) -> None:
    found = asked(**question)
    assert found.outcome == "plain" and why in found.why and lines(found, colour=False)[-1] == "plain TCP"
    assert as_json(found)["why"] == found.why


def test_a_connection_that_cannot_be_encrypted_as_required_is_refused() -> None:
    found = asked(change=lambda c: c["services"][0].update(percent=0, require=["Encrypted"]))
    assert found.outcome == "refused" and "not encrypted" in found.why
    assert lines(found, colour=False)[-1] == "refused by service default/bulk"


def test_a_trace_names_the_percentage_and_the_uplinks() -> None:
    found = asked(change=lambda c: c["services"][0].update(percent=30))
    assert found.outcome == "accelerated" and any("30 %" in said for _, said in found.steps)
    found = asked(server="198.51.100.7", port=80)
    assert (found.outcome, found.service) == ("spread", "default/turns") and any("wan0" in said for _, said in found.steps)


def test_other_services_that_cover_the_connection_are_named() -> None:
    def another(config: Any) -> None:
        config["services"].append({**config["services"][0], "id": "other/web", "ports": [{"first": 5001, "last": 5001}]})
        config["balances"][0].update(to=["10.0.0.0/8"], ports=[{"first": 1, "last": 65535}])

    found = asked(change=another)
    assert (found.outcome, found.service, found.hidden) == ("accelerated", "default/bulk", ["other/web", "default/turns"])
    assert as_json(found)["hidden"] == found.hidden and any("other/web" in line for line in lines(found, colour=False))
    assert asked(change=another, port=22).hidden == ["default/turns"]


# -- topology and flows


def test_a_topology_shows_disconnected_and_unclaimed_switches() -> None:
    status = {**STATUS, "datapaths": [{**STATUS["datapaths"][0], "connected": False}], "unclaimed": ["00ff"]}
    seen = {
        **SEEN,
        "links": [{"a": {"dpid": "0001", "name": "wan0", "port": 1}, "b": {"dpid": "0003", "name": "", "port": 2}, "state": "Up"}],
    }
    printed = network.topology(status, seen, AGENTS, colour=False)
    assert any("DISCONNECTED" in line and "10.0.0.126" in line for line in printed)
    assert any(line.split() == ["edge1", "wan0", "0003", "2", "Up"] for line in printed) and any("00ff" in line for line in printed)
    assert max(map(len, printed)) <= tables.WIDTH


def test_flows_name_agents_and_count_unlisted_sessions() -> None:
    session = {"service": "default/bulk", "client": "10.0.0.11:40000", "server": "10.0.0.139:5001", "state": "Active"}
    session |= {"ingress": "aa", "egress": "cc", "labels": [0, 1], "ageSeconds": 300.5}
    printed = network.flows({"sessions": [session], "total": 3}, AGENTS)
    assert "edge1 to ?" in printed[1] and "0,1" in printed[1] and printed[1].endswith("5m") and printed[2] == "and 2 more"
    assert network.flows({"sessions": [], "total": 0}, AGENTS) == ["no sessions"]


def test_a_change_is_printed_on_one_line() -> None:
    change = {"kind": "session", "uuid": "ab", "state": "Active", "reason": ""}
    assert network.event(change) == ["session uuid=ab state=Active"]


@pytest.mark.parametrize(("seconds", "said"), [(0.4, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (200_000, "2d")])
def test_ages_have_the_format_of_kubectl(seconds: float, said: str) -> None:
    assert network.age(seconds) == said


PLAIN = {
    "connections": [
        {
            **{
                "service": "default/bulk",
                "reason": "Option",
                "message": "the SYN carries an MPTCP option",
                "by": "agent1",
                "ageSeconds": 3.2,
            },
            **{"client": "10.0.0.11:40000", "server": "10.0.0.139:5001"},
        }
    ],
    "services": [{"id": "default/bulk", "reasons": {"Option": 12, "NoAnswer": 1}}],
}


def test_plain_connections_are_shown_with_reasons_and_messages() -> None:
    printed = "\n".join(network.plain(PLAIN))
    assert "10.0.0.11:40000" in printed and "Option: the SYN carries an MPTCP option" in printed
    assert [line.split() for line in printed.splitlines() if line.endswith("12")] == [["default/bulk", "Option", "plain", "12"]]
    assert network.plain({"connections": [], "services": []}) == ["no connection of a service went plain"]


def test_refused_connections_are_distinguished_from_plain_ones() -> None:
    connections = [{**PLAIN["connections"][0], "refused": True}]
    services = [{"id": "default/bulk", "reasons": {}, "refused": {"Option": 3}}]
    printed = "\n".join(network.plain({"connections": connections, "services": services}))
    assert ["default/bulk", "Option", "refused", "3"] in [line.split() for line in printed.splitlines()]
    assert printed.count("refused") == 2


def test_a_trace_shows_recent_plain_connections() -> None:
    recent = {"seconds": 300, "accelerated": 4, "plain": {"Option": 12}}
    found = Trace(outcome="accelerated", service="default/bulk")
    add_recent_plain(found, PLAIN, {"services": [{"id": "default/bulk", "recent": recent}]})
    printed = " ".join(" ".join(lines(found, False)).split())
    assert "3 s ago: Option, the SYN carries an MPTCP option (decided by agent1)" in printed
    assert "last 5 minutes: 4 accelerated, plain: 12 Option" in printed
    assert len(as_json(found)["recentPlain"]) == 2
    add_recent_plain(nothing := Trace(), {"connections": []}, {"services": [{"id": "default/bulk"}]})
    assert as_json(nothing)["recentPlain"] == []
