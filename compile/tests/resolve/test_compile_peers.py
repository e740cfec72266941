"""Peers: sites of another cluster, announced by its site card (spec/card.md)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import Compiled, Namespace, Node, ObjectKey, World, compile_world
from sos_compile.keys import agent_id
from sos_compile.model.site_card import MAX_CARD_BYTES, CardError, SiteCard, parse_card

NODES = {
    "west": (Node("a1", {"site": "west"}, "172.18.0.2", pod_prefixes=("10.1.0.0/24",)),),
    "east": (
        Node("b1", {"site": "east"}, "172.18.0.3", pod_prefixes=("10.2.0.0/24",)),
        Node("b2", {"site": "east"}, "172.18.0.4", pod_prefixes=("10.2.1.0/24",)),
    ),
}
PREFIX = {"west": "10.1.0.0/16", "east": "10.2.0.0/16"}
NUMBER = {"west": 1, "east": 2}


def obj(kind: str, name: str, namespace: str | None = None, **spec: Any) -> dict[str, Any]:
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "sos.network/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


def site(name: str, **changes: Any) -> dict[str, Any]:
    spec = {
        "nodeSelector": {"matchLabels": {"site": name}},
        "siteID": NUMBER[name],
        "prefixes": [PREFIX[name]],
        "wan": {"type": "Routed"},
        "intake": {"type": "Pods"},
    }
    return obj("SosSite", name, **(spec | changes))


def peer(name: str, *prefixes: str, **changes: Any) -> dict[str, Any]:
    return obj("SosPeer", name, prefixes=list(prefixes) or ["10.0.0.0/8"], **changes)


POOL = obj("SosAgent", "default")
AGENT = {"id": "c" * 32, "node": "b3", "addresses": ["192.0.2.3"], "firstStreamPort": 10000, "cardPort": 14790, "prefixes": []}
SERVICE = obj("SosService", "bulk", "default", **{"from": {"site": "west"}, "to": {"site": "east"}})


def cluster(own: str, *objects: dict[str, Any], **cards: SiteCard) -> World:
    """Return the world of the cluster with one of the two sites."""
    others = [item for item in objects if item["kind"] == "SosSite"]
    base = World(
        objects=(*([] if others else [site(own)]), POOL, *objects), nodes=NODES[own], namespaces=(Namespace("default"),), cards=cards
    )
    return replace(base, settings=replace(base.settings, namespace="default"))


def reasons(found: Compiled) -> list[tuple[str, str]]:
    return [(problem.name, str(problem.reason)) for problem in found.problems]


def peers_in(document: dict[str, Any]) -> list[tuple[str, int, list[str]]]:
    return [(each["site"], each["siteID"], [agent["node"] for agent in each["agents"]]) for each in document["peers"]]


def card_of(own: str, *objects: dict[str, Any], **cards: SiteCard) -> SiteCard:
    return compile_world(cluster(own, peer("other"), *objects, **cards)).cards["other"]


@pytest.fixture(scope="module")
def both() -> tuple[Compiled, Compiled]:
    """Return the results of both clusters after an exchange of cards with sites, and an exchange of cards with services."""
    west, east = card_of("west"), card_of("east")
    west, east = card_of("west", SERVICE, other=east), card_of("east", SERVICE, other=west)
    return (
        compile_world(cluster("west", peer("other"), SERVICE, other=east)),
        compile_world(cluster("east", peer("other"), SERVICE, other=west)),
    )


def test_a_card_describes_sites_and_agents() -> None:
    card = card_of("east")
    (east,) = card.sites
    assert (east.name, east.id, east.prefixes) == ("east", 2, ("10.2.0.0/16",))
    assert [(agent.node, agent.addresses, agent.prefixes) for agent in east.agents] == [
        ("b1", ("172.18.0.3",), ("10.2.0.0/24",)),
        ("b2", ("172.18.0.4",), ("10.2.1.0/24",)),
    ]
    assert card.services == ()
    assert parse_card(card.encode()) == card


def dials(document: dict[str, Any]) -> list[str]:
    return [each.get("dial", "ByID") for each in document["peers"]]


def test_agents_of_a_blocked_site_dial(both: tuple[Compiled, Compiled]) -> None:
    assert {choice for found in both for document in found.agents.values() for choice in dials(document)} == {"ByID"}
    blocked = site("west", wan={"type": "Routed", "inbound": "Blocked"})

    def west(**cards: SiteCard) -> Compiled:
        return compile_world(cluster("west", blocked, peer("other"), SERVICE, **cards))

    card = west(other=card_of("east")).cards["other"]
    assert card.sites[0].inbound == "Blocked" and parse_card(card.encode()) == card
    assert "inbound" not in card_of("east").encode(), "earlier versions need not know the field"
    east = compile_world(cluster("east", peer("other"), SERVICE, other=card))
    assert {choice for document in east.agents.values() for choice in dials(document)} == {"Never"}
    here = west(other=east.cards["other"])
    assert {choice for document in here.agents.values() for choice in dials(document)} == {"Always"}
    open_card = east.cards["other"]
    (open_site,) = open_card.sites
    both_blocked = open_card.model_copy(update={"sites": (open_site.model_copy(update={"inbound": "Blocked"}),)})
    refused = west(other=both_blocked)
    assert reasons(refused) == [("bulk", "Invalid")] and "both Blocked" in refused.problems[0].message


def test_a_service_is_in_force_when_both_clusters_have_it() -> None:
    east = card_of("east")
    alone = compile_world(cluster("west", peer("other"), SERVICE, other=east))
    assert reasons(alone) == [("bulk", "WaitingForPeer")]
    facts = alone.facts[ObjectKey("SosService", "default", "bulk")]
    assert (facts.accepted, facts.resolved) == (True, False)
    assert alone.agents["default", "a1"]["services"] == []
    assert alone.cards["other"].services == ("default/bulk",)


def test_both_clusters_serve_a_service_of_both(both: tuple[Compiled, Compiled]) -> None:
    west, east = both
    assert reasons(west) == reasons(east) == []
    near, far = west.agents["default", "a1"], east.agents["default", "b1"]
    assert [(peer["site"], peer["siteID"], [agent["node"] for agent in peer["agents"]]) for peer in near["peers"]] == [
        ("east", 2, ["b1", "b2"])
    ]
    assert [(peer["site"], peer["siteID"], [agent["node"] for agent in peer["agents"]]) for peer in far["peers"]] == [("west", 1, ["a1"])]
    assert (near["services"][0]["role"], far["services"][0]["role"]) == ("Ingress", "Egress")
    assert near["services"][0]["transport"]["encryption"] == "TLS"
    assert far["peers"][0]["agents"][0]["id"] == near["agentId"]


def test_streams_to_a_peer_are_plain_only_on_request() -> None:
    east = card_of("east", SERVICE, other=card_of("west"))
    found = compile_world(cluster("west", peer("other", transport={"encryption": "None"}), SERVICE, other=east))
    assert "encryption" not in found.agents["default", "a1"]["services"][0]["transport"]
    found = compile_world(cluster("west", peer("other", transport={"streams": 8}), SERVICE, other=east))
    assert found.agents["default", "a1"]["services"][0]["transport"]["encryption"] == "TLS"


def test_nothing_is_built_for_a_peers_site(both: tuple[Compiled, Compiled]) -> None:
    west, _ = both
    assert set(west.agents) == {("default", "a1")}
    assert west.allocations.sites == {"west": 1}
    assert ObjectKey("SosSite", "", "east") not in west.facts
    assert west.facts[ObjectKey("SosPeer", "", "other")].sites == ("east",)


@pytest.mark.parametrize(
    ("card", "allowed", "reason"),
    [
        ({"prefixes": ["10.1.5.0/24"]}, "10.0.0.0/8", "OverlappingPrefixes"),
        ({"prefixes": ["192.0.2.0/24"]}, "10.0.0.0/8", "PrefixOutsideSite"),
        ({"prefixes": ["10.0.0.0/8"]}, "10.2.0.0/16", "PrefixOutsideSite"),
        ({"name": "west"}, "10.0.0.0/8", "Duplicate"),
        ({"id": 1}, "10.0.0.0/8", "DuplicateSiteID"),
        ({"prefixes": ["10.2.0.0/16", "10.2.0.0/16"]}, "10.0.0.0/8", "OverlappingPrefixes"),
        ({"prefixes": ["10.2.0.0/17", "172.18.0.0/16"]}, "0.0.0.0/0", "OverlappingNodes"),
    ],
)
def test_a_card_grants_nothing(card: dict[str, Any], allowed: str, reason: str) -> None:
    announced = json.loads(card_of("east").encode())
    announced["sites"][0] |= card
    found = compile_world(cluster("west", peer("other", allowed), SERVICE, other=parse_card(json.dumps(announced))))
    assert ("other", reason) in reasons(found)
    assert found.agents["default", "a1"]["peers"] == []
    assert found.allocations.sites == {"west": 1}
    assert not found.facts[ObjectKey("SosPeer", "", "other")].accepted


def test_a_second_peer_cannot_claim_the_site_of_the_first() -> None:
    east = card_of("east")
    found = compile_world(cluster("west", peer("other"), peer("thief"), SERVICE, other=east, thief=east))
    assert reasons(found) == [("thief", "Duplicate"), ("bulk", "WaitingForPeer")]


def test_a_new_site_gets_no_id_of_a_peer() -> None:
    unnumbered = site("west")
    del unnumbered["spec"]["siteID"]
    east = SiteCard.model_validate(card_of("east").model_dump() | {"services": ()})
    first = east.model_copy(update={"sites": (east.sites[0].model_copy(update={"id": 1}),)})
    found = compile_world(cluster("west", peer("other"), unnumbered, other=first))
    assert found.allocations.sites == {"west": 2}


def test_a_service_between_two_peers_is_refused() -> None:
    east = card_of("east")
    south = east.model_copy(
        update={"sites": (east.sites[0].model_copy(update={"name": "south", "id": 3, "prefixes": ("10.3.0.0/16",), "agents": ()}),)}
    )
    between = obj("SosService", "bulk", "default", **{"from": {"site": "south"}, "to": {"site": "east"}})
    found = compile_world(cluster("west", peer("other"), peer("third"), between, other=east, third=south))
    assert reasons(found) == [("bulk", "Invalid")]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": "v2"}, "version"),
        ({"sites": [{"name": "east", "id": 0, "prefixes": ["10.2.0.0/16"], "agents": []}]}, "sites.0.id"),
        ({"sites": [{"name": "east", "id": 2, "prefixes": ["127.0.0.0/8"], "agents": []}]}, "sites.0.prefixes.0"),
        ({"sites": [{"name": "east", "id": 2, "prefixes": ["10.2.0.1/16"], "agents": []}]}, "sites.0.prefixes.0"),
        ({"sites": [{"name": "e", "id": 2, "prefixes": ["10.2.0.0/16"], "agents": [{"id": "x"}]}]}, "sites.0.agents.0"),
        ({"services": ["x"] * 4097}, "services"),
        (
            {"sites": [{"name": "e", "id": 2, "prefixes": ["10.2.0.0/16"], "agents": [AGENT | {"firstStreamPort": 65_529}]}]},
            "firstStreamPort",
        ),
        (
            {"sites": [{"name": "e", "id": 2, "prefixes": ["10.2.0.0/16"], "agents": [AGENT | {"addresses": ["192.0.2.1"] * 2}]}]},
            "addresses",
        ),
        *(
            ({"sites": [{"name": "e", "id": 2, "prefixes": ["10.2.0.0/16"], "agents": [AGENT | {"addresses": [address]}]}]}, "addresses")
            for address in ("127.0.0.1", "0.1.2.3", "169.254.1.1", "224.0.0.1", "255.255.255.255")
        ),
    ],
)
def test_invalid_cards_are_refused_with_the_field(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CardError, match=named):
        parse_card(json.dumps(json.loads(card_of("east").encode()) | change))


def test_prefixes_without_a_length_are_those_of_one_host() -> None:
    announced = json.loads(card_of("east").encode())
    announced["sites"][0]["prefixes"] = ["10.2.0.1"]
    assert parse_card(json.dumps(announced)).sites[0].prefixes == ("10.2.0.1/32",)


@pytest.mark.parametrize(
    ("agents", "reason"),
    [
        ([AGENT | {"id": agent_id("west", "default", "a1").hex()}], "Duplicate"),
        ([AGENT, AGENT | {"node": "b4"}], "Duplicate"),
        ([AGENT | {"addresses": ["172.18.0.2"]}], "OverlappingNodes"),
    ],
)
def test_agents_of_a_card_cannot_take_the_place_of_others(agents: list[dict[str, Any]], reason: str) -> None:
    announced = json.loads(card_of("east", SERVICE, other=card_of("west")).encode())
    announced["sites"][0]["agents"] = agents
    found = compile_world(cluster("west", peer("other"), SERVICE, other=parse_card(json.dumps(announced))))
    assert ("other", reason) in reasons(found)
    assert found.agents["default", "a1"]["peers"] == []


def test_a_site_cannot_have_an_agent_of_another_peer() -> None:
    east = card_of("east", SERVICE, other=card_of("west"))
    south = east.model_copy(update={"sites": (east.sites[0].model_copy(update={"name": "south", "id": 3, "prefixes": ("10.3.0.0/16",)}),)})
    found = compile_world(cluster("west", peer("other"), peer("third"), SERVICE, other=east, third=south))
    assert reasons(found) == [("third", "Duplicate")]
    assert peers_in(found.agents["default", "a1"]) == [("east", 2, ["b1", "b2"])]


def test_the_largest_card_is_compiled() -> None:
    sites = [{"name": f"s{i}", "id": 100 + i, "prefixes": [f"10.{128 + i}.{j}.0/24" for j in range(64)], "agents": []} for i in range(64)]
    card = SiteCard.model_validate({"software": "1", "sites": sites, "services": []})
    found = compile_world(cluster("west", peer("other"), other=card))
    assert len(found.facts[ObjectKey("SosPeer", "", "other")].sites) == 64


def test_sites_that_fit_into_no_card_are_a_problem_of_the_sospeer() -> None:
    nodes = tuple(Node(f"a{i}", {"site": "west"}, f"172.18.{i // 250}.{i % 250 + 1}") for i in range(1_024))
    second = site("west") | {"metadata": {"name": "more"}}
    second["spec"] = {**second["spec"], "siteID": 7, "prefixes": ["10.8.0.0/16"], "nodeSelector": {"matchLabels": {"site": "more"}}}
    world = cluster("west", peer("other"), site("west"), second)
    more = Node("more", {"site": "more"}, "172.19.0.1")
    found = compile_world(replace(world, nodes=(*nodes, more)))
    assert ("other", "LimitExceeded") in reasons(found)
    assert found.cards == {}
    assert len(found.agents) == 1_025


def test_more_sites_than_a_card_holds_are_a_problem_of_the_sospeer() -> None:
    more = [site("west", siteID=100 + i, prefixes=[f"10.8.{i}.0/24"], nodeSelector={"matchLabels": {"site": f"s{i}"}}) for i in range(64)]
    named = [{**each, "metadata": {"name": f"s{i}"}} for i, each in enumerate(more)]
    found = compile_world(cluster("west", peer("other"), site("west"), *named))
    (problem,) = [each for each in found.problems if each.name == "other"]
    assert problem.reason == "LimitExceeded" and "sites" in problem.message
    assert found.cards == {}


def test_a_card_has_all_addresses_of_an_agent_and_peers_have_none_of_them() -> None:
    addresses = [{"node": "b1", "addresses": ["192.0.2.2", "198.51.100.2"]}]
    card = card_of("east", site("east", wan={"type": "Routed", "addresses": addresses}), SERVICE)
    agents = {agent.node: agent.addresses for site in card.sites for agent in site.agents}
    assert agents == {"b1": ("192.0.2.2", "198.51.100.2"), "b2": ("172.18.0.4",)}
    own = site("west", wan={"type": "Routed", "addresses": [{"node": "a1", "addresses": ["192.0.2.9", "198.51.100.2"]}]})
    assert reasons(compile_world(cluster("west", peer("other"), own, SERVICE, other=card)))[0] == ("other", "OverlappingNodes")


def test_oversized_cards_are_refused_before_they_are_parsed() -> None:
    with pytest.raises(CardError, match="bytes"):
        parse_card(b" " * (MAX_CARD_BYTES + 1))


@given(st.one_of(st.binary(max_size=300), st.text(max_size=300)))
def test_any_bytes_are_a_card_or_an_error(text: bytes | str) -> None:
    with pytest.raises(CardError):
        parse_card(text)
