"""Findings of `kubectl sos diagnose` from facts: in the order of cause, and `ok` only for bytes that arrived."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_kube import ROOT
from sos_kubectl.base import tables
from sos_kubectl.base.source import SourceError
from sos_kubectl.diagnose import checks, gather, links, render
from sos_kubectl.diagnose.facts import AgentView, Asked, Facts, Pair, Server
from sos_kubectl.diagnose.findings import ORDER, REMEDIES, Finding, in_order
from sos_kubectl.targets import traffic
from sos_kubectl.targets.traffic import Way
from sos_kubectl.targets.transfer import End, Mtu, Transfer

CONFIG: dict[str, Any] = {
    "sites": [
        {
            **{"name": name, "prefixes": [prefix], "transit": False, "agents": [{"id": agent, "node": node, "pool": "default"}]},
            "datapaths": [{"dpid": dpid, "name": node, "forwarding": "Node"}],
        }
        for name, prefix, agent, node, dpid in (
            ("west", "10.0.0.0/25", "aa", "edge1", "01"),
            ("east", "10.0.0.128/25", "bb", "edge2", "02"),
        )
    ],
    "services": [
        {
            **{"id": "default/bulk", "mode": "Accelerate", "percent": 100, "ports": [{"first": 5000, "last": 5999}]},
            **{"from": {"site": "west", "prefixes": ["10.0.0.0/25"]}, "to": {"site": "east", "prefixes": ["10.0.0.128/25"]}},
        }
    ],
    "balances": [],
}
GOOD = Transfer(ok=True, bytes=12_500_000, seconds=1.0, own="10.0.0.11:4000", seen="10.0.0.11:4000")
STALLED = Transfer(ok=False, bytes=9, seconds=6.0, failure="stalled")


def agent(id_: str, site: str, **changes: Any) -> dict[str, Any]:
    row = {"id": id_, "site": site, "willing": True, "draining": False, "sessions": 0, "sessionLimit": 10}
    return {**row, **changes}


def healthy(**changes: Any) -> Facts:
    """Facts without any fault, except for the changes."""
    facts = Facts(
        asked=Asked("west", "east"),
        config=CONFIG,
        status={
            "datapaths": [{"dpid": "01", "name": "edge1", "site": "west", "connected": True}],
            "services": [{"id": "default/bulk", "state": "Programmed", "reason": "", "message": "", "needed": [], "acknowledged": []}],
        },
        agents={"agents": [agent("aa", "west"), agent("bb", "east")]},
        topology={"datapaths": [], "links": []},
        views={"aa": AgentView("edge1", "west", armed=1, streams=8), "bb": AgentView("edge2", "east", streams=8)},
        client=End("client", "10.0.0.11"),
        server=End("server", "10.0.0.139"),
        plain=Pair(20000, GOOD, GOOD),
        through=Pair(5000, GOOD, GOOD),
        accelerated=True,
        mtu=Mtu(1500, 1500, 1500),
    )
    for name, value in changes.items():
        setattr(facts, name, value)
    return facts


def codes(facts: Facts) -> list[str]:
    return [finding.code for finding in checks.findings(facts)]


def test_health_is_ok_and_shows_both_rates() -> None:
    facts = healthy()
    assert codes(facts) == [] and checks.verdict(facts, []) == "ok"
    printed = render.lines(facts, [], colour=False)
    assert sum("100 Mbit/s" in line for line in printed) == 2 and printed[-1].startswith("ok")
    assert render.as_json(facts, [])["through"]["up"]["mbps"] == 100.0


@given(st.lists(st.booleans(), min_size=4, max_size=4), st.booleans(), st.booleans(), st.booleans())
def test_never_ok_when_a_transfer_fails(oks: list[bool], accelerated: bool, through: bool, plain: bool) -> None:
    made = [GOOD if ok else STALLED for ok in oks]
    facts = healthy(
        through=Pair(5000, made[0], made[1]) if through else None,
        plain=Pair(20000, made[2], made[3]) if plain else None,
        accelerated=accelerated,
    )
    found = checks.findings(facts)
    outcome = checks.verdict(facts, found)
    arrived = all(oks[:2] if through else [True]) and all(oks[2:] if plain else [True])
    assert outcome != "ok" or (arrived and through and plain and accelerated and not found)
    assert arrived or outcome == "broken"
    assert arrived or found, "a failure has a finding"


WIRES = {
    "datapaths": [{"dpid": "01", "name": "edge1", "site": "west", "connected": True, "ports": [{"name": "wan0", "port": 1, "up": True}]}],
    "links": [],
}
SITE = {"kind": "SosSite", "metadata": {"name": "west"}, "spec": {"wan": {"type": "Uplinks", "uplinks": [{"name": "wan0"}]}}}
MESH = [
    {"kind": "SosSite", "metadata": {"name": name}, "spec": {"prefixes": [prefix], "wan": {"type": "Overlay"}}}
    for name, prefix in (("west", "10.0.0.0/25"), ("east", "10.0.0.128/25"))
]


def tunnels(*links: tuple[str, str], **sites: str) -> dict[str, Any]:
    """Topology of connected switches, `dpid=site`, and of the links found between them."""
    datapaths = [
        {"dpid": dpid[1:], "name": f"edge{int(dpid[1:])}", "site": site, "connected": True, "ports": []} for dpid, site in sites.items()
    ]
    heard = [{"a": {"dpid": a, "name": "sosvx1"}, "b": {"dpid": b, "name": "sosvx2"}} for a, b in links]
    return {"datapaths": datapaths, "links": heard}


ROUTER = {**SITE, "spec": {"wan": {"uplinks": [{"name": "wan0", "gateway": "192.0.2.1"}]}}}


def service(**changes: Any) -> dict[str, Any]:
    return {**CONFIG, "services": [{**CONFIG["services"][0], **changes}]}


def status(**changes: Any) -> dict[str, Any]:
    return {**healthy().status, **changes}


REFUSED = {
    "metadata": {"name": "west"},
    "kind": "SosSite",
    "status": {"conditions": [{"type": "Accepted", "status": "False", "message": "no"}]},
}
PENDING = {"id": "default/bulk", "state": "Pending", "reason": "NoPath", "message": "", "needed": ["01"], "acknowledged": []}
ONE = {"agents": [agent("bb", "east")]}
BYPASSED = {"reason": "ServerElsewhere", "client": "10.0.0.11:4711", "server": "10.0.0.139:5000", "ageSeconds": 3.2}
NATTED = replace(GOOD, seen="192.0.2.1:9")


@pytest.mark.parametrize(
    ("changes", "code", "where"),
    [
        ({"controller_error": "refused", "agents": {}, "status": {}, "topology": {}}, "ControllerUnreachable", "controller"),
        ({"config": {}}, "NoConfiguration", "controller"),
        ({"objects": [REFUSED]}, "NotAccepted", "SosSite west"),
        ({"asked": Asked("east", "west")}, "NoService", "east to west"),
        ({"asked": Asked("west", "east", service="default/other")}, "NoService", "west to east"),
        ({"client": End("c", "10.0.1.1")}, "NotCovered", "service default/bulk"),
        ({"asked": Asked("west", "east", server=("10.0.0.139", 80))}, "NotCovered", "10.0.0.139:80"),
        ({"config": service(mode="Observe")}, "NotRedirected", "service default/bulk"),
        ({"config": service(percent=0)}, "NotRedirected", "service default/bulk"),
        ({"config": service(percent=0, require=["Encrypted"])}, "NotEncrypted", "service default/bulk"),
        ({"plain_connections": [BYPASSED], "accelerated": False}, "ServerElsewhere", "10.0.0.139:5000"),
        ({"ends_error": "no pod"}, "NoEnds", "west, east"),
        (
            {"status": status(datapaths=[{"dpid": "01", "name": "edge1", "site": "west", "connected": False}])},
            "DatapathDisconnected",
            "edge1",
        ),
        ({"topology": {**WIRES, "datapaths": [{**WIRES["datapaths"][0], "ports": []}]}, "objects": [SITE]}, "LinkDown", "edge1 wan0"),
        ({"topology": WIRES, "objects": [SITE]}, "LinkSilent", "edge1 wan0"),
        ({"topology": tunnels(d01="west", d02="east"), "objects": MESH}, "LinkSilent", "edge1 - edge2"),
        ({"mtu": Mtu(1500, 1500, 1400)}, "MtuTooSmall", "west - east"),
        ({"plain": Pair(2, GOOD, STALLED)}, "HostUnreachable", "10.0.0.11 - 10.0.0.139"),
        ({"agents": ONE, "views": {}}, "AgentDown", "edge1 (west)"),
        ({"agents": ONE, "views": {"aa": AgentView("edge1", "west", error="gone")}}, "AgentDown", "edge1 (west)"),
        ({"agents": ONE, "refused": {"tag": 3}}, "AgentRefused", "edge1 (west)"),
        ({"agents": ONE, "refused": {"length": 3}}, "AgentSilent", "edge1 (west)"),
        ({"agents": {"agents": [agent("aa", "west", draining=True), agent("bb", "east")]}}, "AgentUnwilling", "edge1 (west)"),
        ({"agents": ONE, "views": {"aa": AgentView("edge1", "west", draining=True)}}, "AgentUnwilling", "edge1 (west)"),
        ({"views": {"aa": AgentView("edge1", "west")}}, "StreamsBlocked", "edge1 to east"),
        ({"status": status(services=[PENDING])}, "ServicePending", "service default/bulk"),
        ({"own_server": Server("10.0.0.139", 80, far="reset", near="refused")}, "ServerRefuses", "10.0.0.139:80"),
        ({"own_server": Server("10.0.0.139", 80, far="", near="unanswered")}, "ServerUnreachable", "10.0.0.139:80"),
        ({"own_server": Server("10.0.0.139", 80, far="reset")}, "ThroughFails", "10.0.0.139:80"),
        ({"through": Pair(5000, GOOD, STALLED)}, "ThroughFails", "service default/bulk"),
        ({"through": Pair(5000, NATTED, GOOD)}, "AddressChanged", "service default/bulk"),
        ({"through": None}, "NoPort", "service default/bulk"),
        ({"plain": None}, "NoPort", "10.0.0.11 - 10.0.0.139"),
        ({"ratios": {"down": (0.7, 0.75, 0.9)}}, "SlowerThanPlain", "service default/bulk"),
        ({"accelerated": False}, "NotAccelerated", "service default/bulk"),
    ],
)
def test_each_broken_thing_has_a_name(changes: dict[str, Any], code: str, where: str) -> None:
    facts = healthy(**changes)
    first = checks.findings(facts)[0]
    assert (first.code, first.where) == (code, where)
    assert checks.verdict(facts, [first]) != "ok"
    printed = render.lines(facts, [first], colour=False)
    assert f"first broken: {code} {where}" in printed and max(map(len, printed)) <= tables.WIDTH


PORT_5001 = Asked("west", "east", server=("10.0.0.139", 5001))


@pytest.mark.parametrize(
    ("row", "changes", "found"),
    [
        ({}, {}, True),
        ({}, {"accelerated": True}, False),
        ({"server": "10.0.0.139:5001"}, {"accelerated": True}, True),
        ({"server": "10.0.0.140:5000"}, {}, False),
        ({"server": "10.0.0.139:5001"}, {"asked": PORT_5001}, True),
        ({"server": "10.0.0.139:5002"}, {"asked": PORT_5001}, False),
        ({"ageSeconds": checks.RECENT_S + 0.1}, {}, False),
        ({"reason": "ServerUnreachable"}, {}, False),
        ({"reason": "Option", "client": GOOD.own}, {}, False),
        ({"reason": "ServerSilent", "client": GOOD.own}, {}, True),
        ({"reason": "ServerSilent", "client": GOOD.own}, {"through": Pair(5000, GOOD, STALLED)}, False),
    ],
)
def test_answers_that_bypass_the_agent_are_a_finding_while_they_are_seen(row: dict[str, Any], changes: dict[str, Any], found: bool) -> None:
    facts = healthy(**{"plain_connections": [{**BYPASSED, **row}], "accelerated": False, **changes})
    assert ("ServerElsewhere" in codes(facts)) == found


@pytest.mark.parametrize(
    ("ratios", "word"), [((0.5, 0.5, 0.5), "slower"), ((0.5, 0.79, 1.2), "slower"), ((0.5, 0.81, 1.2), "ok"), ((0.1, 1.0, 1.0), "ok")]
)
def test_slower_than_plain_is_the_verdict_if_most_repetitions_are_slower(ratios: tuple[float, ...], word: str) -> None:
    facts = healthy(ratios={"up": ratios})
    assert checks.verdict(facts, checks.findings(facts)) == word
    assert render.as_json(facts, [])["ratios"] == {"up": list(ratios)}


@pytest.mark.parametrize(
    ("changes", "seconds", "repeated"),
    [
        ({}, 3, 4),
        ({}, 1, 0),  # too short to compare
        ({"accelerated": False}, 3, 0),
        ({"plain": Pair(8080, STALLED, GOOD)}, 3, 0),
        ({"through": Pair(5000, GOOD, GOOD)}, 3, 0),
    ],
)
def test_only_slow_whole_transfers_are_repeated(
    changes: dict[str, Any], seconds: int, repeated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[tuple[int, str]]()

    def transfer(way: Way, direction: str) -> Transfer:
        sent.append((way.port, direction))
        return GOOD if way.port == 8080 else replace(GOOD, bytes=GOOD.bytes // 2)

    monkeypatch.setattr(traffic, "transfer", transfer)
    facts = healthy(**{"through": Pair(5000, replace(GOOD, bytes=GOOD.bytes // 2), GOOD), "plain": Pair(8080, GOOD, GOOD), **changes})
    look = gather.Look(place=None, controller=None, seconds=seconds, say=lambda _line: None)  # type: ignore[arg-type]
    gather._compare(look, facts, Way(End("client", "10.0.0.11"), "10.0.0.139", 5000, seconds), 8080)
    assert sent == [(5000, "up"), (8080, "up"), (5000, "up"), (8080, "up")][:repeated]
    assert facts.ratios == ({"up": (0.5, 0.5, 0.5)} if repeated else {})


def test_a_repeated_transfer_that_fails_means_broken_not_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "transfer", lambda way, _direction: GOOD if way.port == 8080 else STALLED)
    facts = healthy(through=Pair(5000, replace(GOOD, bytes=GOOD.bytes // 2), GOOD), plain=Pair(8080, GOOD, GOOD))
    look = gather.Look(place=None, controller=None, seconds=3, say=lambda _line: None)  # type: ignore[arg-type]
    gather._compare(look, facts, Way(End("client", "10.0.0.11"), "10.0.0.139", 5000, 3), 8080)
    found = checks.findings(facts)
    assert [finding.code for finding in found] == ["ThroughFails"]
    assert checks.verdict(facts, found) == "broken"


def test_every_finding_has_facts_that_cause_it() -> None:
    """The table above is complete: every code follows from some facts. Two codes are of sites without bridges only."""
    (mark,) = [m for m in test_each_broken_thing_has_a_name.pytestmark if m.name == "parametrize"]
    assert {row[1] for row in mark.args[1]} == set(ORDER) - {"ConfigurationPending", "PathDown"}


def test_a_router_behind_an_uplink_is_no_silent_link() -> None:
    assert codes(healthy(topology=WIRES, objects=[ROUTER])) == []


def told(facts: Facts) -> list[tuple[str, str]]:
    return [(finding.code, finding.where) for finding in checks.findings(facts)]


TRANSIT = {
    "name": "middle",
    "prefixes": [],
    "transit": True,
    "agents": [],
    "datapaths": [{"dpid": "03", "name": "edge3", "forwarding": "Node"}],
}
THREE = {**CONFIG, "sites": [*CONFIG["sites"], TRANSIT]}
MIDDLE = {"kind": "SosSite", "metadata": {"name": "middle"}, "spec": {}}
ALL_OF_THREE = (("01", "02"), ("03", "01"), ("02", "03"))


@pytest.mark.parametrize(
    ("heard", "named"),
    [
        (ALL_OF_THREE, []),
        (ALL_OF_THREE[1:], ["edge1 - edge2"]),
        (ALL_OF_THREE[:2], ["edge2 - edge3"]),
        (ALL_OF_THREE[2:], ["edge1"]),
        ((), ["edge1", "edge2", "edge3"]),
    ],
)
def test_silent_tunnels_are_named_per_pair_of_switches(heard: tuple[tuple[str, str], ...], named: list[str]) -> None:
    """Links are checked per pair of switches; a switch whose links are all silent is one finding."""
    seen = tunnels(*heard, d01="west", d02="east", d03="middle")
    assert told(healthy(config=THREE, topology=seen, objects=[*MESH, MIDDLE])) == [("LinkSilent", where) for where in named]


def test_only_connected_overlay_nodes_have_silent_tunnels() -> None:
    seen = tunnels(d01="west", d02="east")
    assert codes(healthy(topology=seen, objects=MESH)) == ["LinkSilent"]
    assert codes(healthy(topology={**seen, "truncated": True}, objects=MESH)) == [], "an unlisted link may exist"
    away = {**seen, "datapaths": [{**seen["datapaths"][0], "connected": False}, seen["datapaths"][1]]}
    assert codes(healthy(topology=away, objects=MESH)) == [], "another finding reports a disconnected switch"
    remote = [MESH[0], {**MESH[1], "spec": {**MESH[1]["spec"], "remote": True}}]
    assert codes(healthy(topology=seen, objects=remote)) == []
    hardware = {
        **CONFIG,
        "sites": [CONFIG["sites"][0], {**CONFIG["sites"][1], "datapaths": [{"dpid": "02", "name": "s", "forwarding": "Controller"}]}],
    }
    assert codes(healthy(config=hardware, topology=seen, objects=MESH)) == []


def test_of_many_silent_tunnels_some_are_named_and_the_rest_counted() -> None:
    nodes = {f"d{number:02}": "west" if number < 10 else "east" for number in range(1, 21)}
    west, east = ([dpid[1:] for dpid, site in nodes.items() if site == name] for name in ("west", "east"))
    sites = [
        {**site, "datapaths": [{"dpid": d, "name": d, "forwarding": "Node"} for d in own]}
        for site, own in zip(CONFIG["sites"], (west, east), strict=True)
    ]
    heard = [two for own in (west, east) for two in product(own, repeat=2)]
    found = checks.findings(healthy(config={**CONFIG, "sites": sites}, topology=tunnels(*heard, **nodes), objects=MESH))
    assert {finding.code for finding in found} == {"LinkSilent"} and len(found) == links.NAMED_MAX
    assert sum(f"{len(west) * len(east) - links.NAMED_MAX} more" in finding.what for finding in found) == 1


# -- relevance of objects


def refused(kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    return {**REFUSED, "kind": kind, "metadata": {"name": name, **({"namespace": namespace} if namespace else {})}, "spec": spec}


TWO_SITES = {"from": {"site": "west"}, "to": {"site": "east"}}
BY_PREFIX = {"from": {"prefixes": ["10.0.0.8/29"]}, "to": {"prefixes": ["10.0.0.128/25"]}}
ELSEWHERE = {"from": {"site": "west"}, "to": {"site": "south"}}
NONE = {**CONFIG, "services": []}


@pytest.mark.parametrize(
    ("obj", "changes", "named"),
    [
        (refused("SosSite", "east", {}), {}, True),
        (refused("SosSite", "middle", {}), {}, True),
        (refused("SosSite", "south", {"prefixes": ["10.3.0.0/16"]}), {}, False),
        (refused("SosController", "default", {}), {}, True),
        (refused("SosController", "second", {}), {}, False),
        (refused("SosAgent", "default", {"siteSelector": {}}), {}, True),
        (refused("SosAgent", "theirs", {"siteSelector": {"matchLabels": {"team": "b"}}}), {}, False),
        (refused("SosLink", "l", {"a": {"site": "west"}, "b": {"site": "east"}}), {}, True),
        (refused("SosLink", "l", {"a": {"site": "west"}, "b": {"site": "south"}}), {}, False),
        (refused("SosService", "theirs", TWO_SITES, "b"), {}, False),
        (refused("SosService", "mine", TWO_SITES, "a"), {"config": NONE}, True),
        (refused("SosService", "mine", BY_PREFIX, "a"), {"config": NONE}, True),
        (refused("SosService", "theirs", ELSEWHERE, "b"), {"config": NONE}, False),
        (refused("SosService", "mine", TWO_SITES, "a"), {"config": NONE, "asked": Asked("west", "east", "a/mine")}, True),
        (refused("SosService", "theirs", TWO_SITES, "b"), {"config": NONE, "asked": Asked("west", "east", "a/mine")}, False),
        (refused("SosService", "mine", TWO_SITES, "a"), {"asked": Asked("west", "east", server=("10.0.0.139", 80))}, True),
    ],
)
def test_a_refused_object_is_named_if_the_connection_depends_on_it(obj: dict[str, Any], changes: dict[str, Any], named: bool) -> None:
    found = told(healthy(objects=[*MESH, obj], topology={}, **changes))
    assert any(code == "NotAccepted" for code, _ in found) == named


def test_a_dead_link_precedes_refused_objects_on_the_path() -> None:
    theirs = refused("SosService", "theirs", TWO_SITES, "b")
    link = refused("SosLink", "cost", {"a": {"site": "west"}, "b": {"site": "middle"}})
    facts = healthy(
        config=THREE, topology=tunnels(*ALL_OF_THREE[1:], d01="west", d02="east", d03="middle"), objects=[*MESH, MIDDLE, theirs, link]
    )
    assert told(facts) == [("LinkSilent", "edge1 - edge2"), ("NotAccepted", "SosLink cost")]
    own = healthy(topology=tunnels(d01="west", d02="east"), objects=[*MESH, REFUSED])
    assert told(own)[0] == ("NotAccepted", "SosSite west"), "a refused object that the connection needs explains the rest"


def test_of_equal_findings_those_at_the_requested_sites_come_first() -> None:
    found = in_order([Finding("LinkSilent", "core1 wan0", "x", near=False), Finding("LinkSilent", "edge1 wan0", "x")])
    assert [finding.where for finding in found] == ["edge1 wan0", "core1 wan0"]


# -- choice of the service


def two_services(**second: Any) -> dict[str, Any]:
    """Configuration with a second service, for the upper half of east's addresses, on other ports."""
    to = {"site": "east", "prefixes": ["10.0.0.192/26"]}
    other = {**CONFIG["services"][0], "id": "default/upper", "to": to, "ports": [{"first": 443, "last": 443}], **second}
    first = {**CONFIG["services"][0], "to": {"site": "east", "prefixes": ["10.0.0.128/26"]}}
    return {**CONFIG, "services": [first, other]}


@pytest.mark.parametrize(
    ("server", "service"),
    [
        (("10.0.0.139", 5001), "default/bulk"),
        (("10.0.0.200", 443), "default/upper"),
        (("10.0.0.200", 22), "default/upper"),
        (None, "default/bulk"),
    ],
)
@pytest.mark.parametrize("ends", [True, False])
def test_the_chosen_service_covers_the_requested_address(server: tuple[str, int] | None, service: str, ends: bool) -> None:
    """The choice also works without hosts: the service's prefixes narrow the search for hosts."""
    facts = healthy(config=two_services(), asked=Asked("west", "east", server=server), **({} if ends else {"client": None, "server": None}))
    chosen = checks.chosen(facts)
    assert chosen is not None and chosen["id"] == service


def test_a_port_without_a_service_is_reported_and_never_ok() -> None:
    listens = Server("10.0.0.200", 22)
    facts = healthy(config=two_services(), asked=Asked("west", "east", server=("10.0.0.200", 22)), own_server=listens)
    (finding,) = checks.findings(facts)
    assert finding.what == "No service covers port 22 of 10.0.0.200 for west: connections to it are plain (default/upper has 443)."
    assert checks.verdict(facts, [finding]) == "plain"
    facts.asked = Asked("west", "east", "default/bulk", ("10.0.0.139", 22))
    (finding,) = checks.findings(facts)
    assert finding.what.startswith("Service default/bulk does not cover port 22 of 10.0.0.139")


def test_a_services_name_selects_its_sites() -> None:
    back = {**CONFIG["services"][0], "id": "default/back", "from": {"site": "east", "prefixes": []}, "to": {"site": "west", "prefixes": []}}
    config = {**CONFIG, "services": [*CONFIG["services"], back], "balances": [{"id": "default/turns"}]}
    assert gather.pairs(config) == [("west", "east"), ("east", "west")]
    assert gather.pairs(config, "default/back") == [("east", "west")]
    with pytest.raises(SourceError, match=r"default/other is in force; there are default/bulk, default/back"):
        gather.pairs(config, "default/other")
    with pytest.raises(SourceError, match="without agents"):
        gather.pairs(config, "default/turns")


def test_findings_that_explain_more_come_first_in_any_order() -> None:
    found = [Finding(code, "x", "y") for code in reversed(ORDER)]
    assert [finding.code for finding in in_order([*found, *found])] == list(ORDER)


def test_every_finding_has_an_entry_in_the_docs_and_every_entry_a_finding() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    findings = page.partition("\n## Findings\n")[2].partition("\n## ")[0]
    entries = re.findall(r"^### (\w+)$", findings, flags=re.MULTILINE)
    assert entries == list(ORDER) == list(REMEDIES), "the page has the same order"
    bodies = re.split(r"^### \w+$", page, flags=re.MULTILINE)[1:]
    assert all("Look: " in body and "Remedy: " in body for body in bodies)
    headings = re.findall(r"^### (\w+)$", page, flags=re.MULTILINE)
    assert set(re.findall(r"\]\(#(\w+)\)", page)) <= {heading.lower() for heading in headings}


@pytest.mark.parametrize(("up", "down"), list(product((GOOD, STALLED), repeat=2)))
def test_a_failure_names_its_direction(up: Transfer, down: Transfer) -> None:
    found = [f for f in checks.findings(healthy(plain=Pair(2, up, down))) if f.code == "HostUnreachable"]
    assert bool(found) == (not (up.ok and down.ok))
    for finding in found:
        assert ("upwards" in finding.what, "downwards" in finding.what) == (not up.ok, not down.ok)


def test_a_third_sites_uplinks_do_not_concern_a_pair() -> None:
    south = {"dpid": "03", "name": "edge3", "site": "south", "connected": True, "ports": []}
    site = {"kind": "SosSite", "metadata": {"name": "south"}, "spec": {"wan": {"uplinks": [{"name": "wan0"}]}}}
    assert codes(healthy(topology={"datapaths": [south], "links": []}, objects=[site])) == []
    assert codes(healthy(topology={"datapaths": [{**south, "site": "west"}], "links": []}, objects=[SITE])) == ["LinkDown"]
    away = {**south, "connected": False}
    assert codes(healthy(topology={**WIRES, "datapaths": [*WIRES["datapaths"], away]}, objects=[SITE])) == ["LinkSilent"]


# -- probe processes


def way(script: str) -> Way:
    return Way(End("host", "10.0.0.11", ("sh", "-c", script)), "10.0.0.139", 5000, 1)


def test_a_probe_that_fails_is_a_failed_transfer_and_not_a_missing_host() -> None:
    ended = traffic.transfer(way("echo broken >&2; exit 1"), "up")
    assert (ended.ok, ended.failure) == (False, "error") and "broken" in ended.detail
    facts = healthy(through=Pair(5000, ended, GOOD))
    assert codes(facts) == ["ThroughFails"] and checks.verdict(facts, []) == "broken"


def test_the_session_watcher_gets_the_clients_address() -> None:
    report = {**dict.fromkeys(("failure", "detail")), "own": "10.0.0.11:9", "seen": "10.0.0.11:9", "ok": True, "bytes": 1, "seconds": 1}
    asked = list[str]()

    def seen(own: str) -> bool:
        asked.append(own)
        return len(asked) > 1

    said = f"""echo '{{"own": "10.0.0.11:9"}}'; cat >/dev/null; echo '{json.dumps(report)}'"""
    ended, accelerated = traffic.watched(way(said), "up", seen)
    assert ended.ok and accelerated and asked == ["10.0.0.11:9"] * 2, "and the probe ends when its session has been seen"
