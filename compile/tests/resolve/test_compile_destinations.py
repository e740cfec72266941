"""`spec.to.service`: a Kubernetes Service as the destination of a service (docs/adr/0066)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from sos_compile import Compiled, KubernetesService, ObjectKey, compile_world
from sos_compile.model.site_card import MAX_DESTINATION_PARTS, MAX_DESTINATIONS, CardError, SiteCard, parse_card
from sos_compile.resolve.card_bounds import MAX_BYTES
from test_compile_peers import cluster, obj, peer, reasons, site
from test_compile_routed import EAST, POOL, WEST, compiled

WEB = KubernetesService("shop", "web", ("10.2.9.7", "10.96.0.7"), (443, 8443))
PODS = KubernetesService("default", "db", ("10.2.0.4", "10.2.0.5", "10.2.1.9"), (5432,), headless=True)


def service(to: dict[str, Any], name: str = "bulk", **spec: Any) -> dict[str, Any]:
    return obj("SosService", name, "default", **{"from": {"site": "west"}, "to": {"site": "east"} | to, **spec})


BULK = service({"service": {"name": "web", "namespace": "shop"}, "source": "Agent"})
HEADLESS = service({"service": {"name": "db"}})


def east(*objects: dict[str, Any], services: tuple[KubernetesService, ...] = (WEB, PODS), problem: str = "", **cards: SiteCard) -> Compiled:
    """Compile the servers' cluster."""
    world = cluster("east", peer("other"), *objects, **cards)
    return compile_world(replace(world, kubernetes_services=services, kubernetes_services_problem=problem))


def west(*objects: dict[str, Any], **cards: SiteCard) -> Compiled:
    """Compile the clients' cluster, whose own Services do not matter."""
    return compile_world(replace(cluster("west", peer("other"), *objects, **cards), kubernetes_services_problem=""))


def both(*objects: dict[str, Any], **changes: Any) -> tuple[Compiled, Compiled]:
    """Return both clusters after as many exchanges of cards as they need: sites, the destination, the clients' services."""
    first = west().cards["other"]
    servers = east(*objects, other=first, **changes)
    clients = west(*objects, other=servers.cards["other"])
    return clients, east(*objects, other=clients.cards["other"], **changes)


def covered(found: Compiled) -> list[tuple[list[str], list[tuple[int, int]]]]:
    """Destinations and ports of all services of the first agent."""
    document = next(iter(found.agents.values()))
    return [(each["to"], [(p["first"], p["last"]) for p in each["ports"]]) for each in document["services"]]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (BULK, (["10.2.9.7/32"], [(443, 443), (8443, 8443)])),
        (HEADLESS, (["10.2.0.4/31", "10.2.1.9/32"], [(5432, 5432)])),
        (service({"service": {"name": "db"}}, ports=[{"port": 5000, "endPort": 6000}]), (["10.2.0.4/31", "10.2.1.9/32"], [(5000, 6000)])),
    ],
)
def test_both_clusters_cover_the_same_addresses(declared: dict[str, Any], expected: tuple[list[str], list[tuple[int, int]]]) -> None:
    """Addresses outside the site's prefixes are left out: the cluster IP 10.96.0.7 exists in both clusters."""
    clients, servers = both(declared)
    assert (reasons(clients), reasons(servers)) == ([], [])
    assert covered(clients) == covered(servers) == [expected]


def test_an_address_beside_the_sites_prefixes_does_not_hide_its_neighbour() -> None:
    edge = replace(PODS, addresses=("10.1.255.255", "10.2.0.0", "10.2.255.255", "10.3.0.0"))
    assert [to for to, _ in covered(both(HEADLESS, services=(edge,))[1])] == [["10.2.0.0/32", "10.2.255.255/32"]]
    narrow = site("east", prefixes=["10.2.0.4/32"])
    (announced,) = east(narrow, HEADLESS, other=west().cards["other"]).cards["other"].destinations
    assert announced.prefixes == ("10.2.0.4/32",)


def test_the_status_names_the_service_and_its_addresses() -> None:
    for found in both(BULK):
        assert found.facts[ObjectKey("SosService", "default", "bulk")].text["to"] == "east (shop/web: 10.2.9.7/32)"


def test_a_card_has_the_destinations_of_its_own_services_only() -> None:
    clients, servers = both(BULK)
    assert [each.service for each in servers.cards["other"].destinations] == ["default/bulk"]
    assert clients.cards["other"].destinations == ()
    assert "destinations" not in clients.cards["other"].encode(), "earlier versions need not know the field"
    assert parse_card(servers.cards["other"].encode()) == servers.cards["other"]


def test_a_changed_address_changes_both_clusters() -> None:
    moved = replace(WEB, addresses=("10.2.9.8",))
    clients, servers = both(BULK, services=(moved,))
    assert covered(clients) == covered(servers) == [(["10.2.9.8/32"], [(443, 443), (8443, 8443)])]


def test_the_clients_wait_for_the_announcement() -> None:
    other = east(other=west().cards["other"]).cards["other"]
    found = west(BULK, other=other)
    assert reasons(found) == [("bulk", "WaitingForPeer")]
    assert "SosPeer other has not announced the addresses of Service shop/web" in found.problems[0].message
    assert found.cards["other"].services == ()


@pytest.mark.parametrize(
    ("declared", "changes", "reason", "words"),
    [
        (BULK, {"services": ()}, "DestinationUnknown", "there is no Service shop/web"),
        (BULK, {"services": (replace(WEB, ports=()),)}, "DestinationUnknown", "Service shop/web has no TCP port"),
        (BULK, {"services": (replace(WEB, addresses=()),)}, "DestinationUnknown", "Service shop/web has no IPv4 address"),
        (BULK, {"services": (replace(WEB, addresses=("fd00::1",)),)}, "DestinationUnknown", "has no IPv4 address"),
        (HEADLESS, {"services": (replace(PODS, addresses=()),)}, "DestinationUnknown", "has no ready pod with an IPv4 address"),
        (BULK, {"problem": "no right"}, "DestinationUnknown", "the Services of the cluster are unknown: no right"),
        (BULK, {"services": (replace(WEB, addresses=("10.96.0.7",)),)}, "PrefixOutsideSite", "SosSite east: 10.96.0.7"),
        (service({"service": {"name": "web", "namespace": "shop"}}), {}, "Invalid", "reach only from their own address"),
        (HEADLESS, {"services": (replace(PODS, addresses=tuple(f"10.2.0.{2 * i}" for i in range(65))),)}, "LimitExceeded", "65 prefixes"),
        (HEADLESS, {"services": (replace(PODS, ports=tuple(range(1, 131, 2))),)}, "LimitExceeded", "65 ranges of ports"),
    ],
)
def test_the_servers_cluster_names_the_problem(declared: dict[str, Any], changes: dict[str, Any], reason: str, words: str) -> None:
    found = east(declared, other=west().cards["other"], **changes)
    assert reasons(found) == [("bulk", reason)]
    assert words in found.problems[0].message and found.problems[0].path == "spec.to.service"


def test_rules_of_the_servers_site_bound_the_addresses() -> None:
    """Users can write any address into a Service."""
    ruled = site("east", services={"namespaces": "All", "rules": [{"namespaces": ["default"], "prefixes": ["10.2.1.0/24"]}]})
    found = east(ruled, HEADLESS, other=west().cards["other"])
    assert reasons(found) == [("bulk", "NotPermitted")]
    assert found.problems[0].path == "spec.to.service" and "for 10.2.0.4/31" in found.problems[0].message


def test_a_machine_has_no_services() -> None:
    machine = peer("gw", "10.9.0.0/16", machine={"addresses": ["192.0.2.9"], "interface": "lan0", "siteID": 9})
    world = cluster("west", machine, service({"site": "gw", "service": {"name": "web"}}))
    found = compile_world(replace(world, kubernetes_services=(WEB,), kubernetes_services_problem=""))
    assert reasons(found) == [("bulk", "Invalid")] and "outside Kubernetes" in found.problems[0].message


def test_within_one_cluster_the_service_is_looked_up_at_once() -> None:

    found = compiled(WEST, EAST, POOL, HEADLESS, kubernetes_services=(PODS,), kubernetes_services_problem="")
    assert found.problems == () and {tuple(to) for to, _ in covered(found)} == {("10.2.0.4/31", "10.2.1.9/32")}


def test_services_beyond_the_bounds_of_a_card_are_refused_in_the_servers_cluster() -> None:
    """One namespace's many addresses must not stop the card, on which all services with the peer depend."""
    many = replace(PODS, addresses=tuple(f"10.2.{i // 128}.{2 * (i % 128)}" for i in range(64)))
    fitting = MAX_DESTINATION_PARTS // 65
    declared = [service({"service": {"name": "db"}}, f"s{i:03}") for i in range(fitting + 2)]
    found = east(*declared, services=(many,), other=west().cards["other"])
    refused = [name for name, reason in reasons(found) if reason == "LimitExceeded"]
    assert refused == [f"s{fitting:03}", f"s{fitting + 1:03}"]
    assert len(found.cards["other"].destinations) == fitting
    few = replace(PODS, addresses=("10.2.0.4",))
    declared = [service({"service": {"name": "db"}}, f"s{i:03}") for i in range(MAX_DESTINATIONS + 1)]
    found = east(*declared, services=(few,), other=west().cards["other"])
    assert len(found.cards["other"].destinations) == MAX_DESTINATIONS


def test_long_names_of_services_do_not_make_a_card_too_large() -> None:
    declared = [obj("SosService", f"{'n' * 180}-{i:04}", "default", **HEADLESS["spec"] | {"to": {"site": "east"}}) for i in range(1500)]
    found = east(*declared, BULK, other=west().cards["other"])
    refused = [problem for problem in found.problems if problem.reason == "LimitExceeded"]
    assert refused and all("SosPeer other has no room for more services" in problem.message for problem in refused)
    card = found.cards["other"]
    assert len(card.services) == len(declared) + 1 - len(refused) and card.services[0] == "default/bulk"
    assert 0.9 * MAX_BYTES < len(json.dumps(card.services, separators=(",", ":"))) <= MAX_BYTES


@pytest.mark.parametrize(
    "change",
    [
        lambda each: each | {"prefixes": []},
        lambda each: each | {"prefixes": ["127.0.0.1/32"]},
        lambda each: each | {"ports": []},
        lambda each: each | {"ports": [{"first": 0, "last": 1}]},
        lambda each: each | {"ports": [{"first": 2, "last": 1}]},
        lambda each: each | {"prefixes": ["10.2.0.1/32"] * 65},
    ],
)
def test_a_card_with_a_wrong_destination_is_refused(change: Any) -> None:
    card = json.loads(both(BULK)[1].cards["other"].encode())
    card["destinations"] = [change(card["destinations"][0])]
    with pytest.raises(CardError, match="destinations"):
        parse_card(json.dumps(card))
