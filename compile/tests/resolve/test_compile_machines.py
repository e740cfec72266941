"""Machines outside Kubernetes: sites of one agent, which this cluster describes and configures (spec/card.md section 5)."""

from __future__ import annotations

from typing import Any

import pytest
from sos_compile import Compiled, ObjectKey, compile_world, draft
from sos_compile.keys import agent_id
from test_compile_peers import SERVICE, card_of, cluster, obj, peer, peers_in, reasons, site

MACHINE = {"siteID": 9, "addresses": ["192.0.2.9", "198.51.100.9"], "interface": "lan0"}
TO_MACHINE = obj("SosService", "backup", "default", **{"from": {"site": "west"}, "to": {"site": "gw"}})
FROM_MACHINE = obj("SosService", "restore", "default", **{"from": {"site": "gw"}, "to": {"site": "west"}})


def machine(name: str = "gw", prefix: str = "10.3.0.0/16", **changes: Any) -> dict[str, Any]:
    return peer(name, prefix, machine=MACHINE | changes)


@pytest.fixture(scope="module")
def found() -> Compiled:
    return compile_world(cluster("west", machine(), TO_MACHINE, FROM_MACHINE))


def test_a_machine_gets_the_agent_config_of_its_site(found: Compiled) -> None:
    assert reasons(found) == []
    (document,) = found.machines.values()
    assert (document["node"], document["pool"], document["agentId"]) == ("gw", "machine", agent_id("gw", "machine", "gw").hex())
    assert document["site"] == {"name": "gw", "id": 9, "prefixes": ["10.3.0.0/16"], "rewrite": "Transparent"}
    assert (document["wan"], document["intake"]) == (["192.0.2.9", "198.51.100.9"], {"type": "Routed", "interface": "lan0"})
    assert document["limits"] == {"sessions": 4096, "memoryMiB": 1024, "sessionMemoryMiB": 128}
    assert document["metricsAddress"].startswith("127.0.0.1:"), "no firewall of the cluster protects the machine's metrics"
    assert peers_in(document) == [("west", 1, ["a1"])]
    assert [(each["id"], each["role"]) for each in document["services"]] == [("default/backup", "Egress"), ("default/restore", "Ingress")]


def test_agents_of_the_cluster_know_the_machine(found: Compiled) -> None:
    document = found.agents["default", "a1"]
    assert peers_in(document) == [("gw", 9, ["gw"])]
    (agent,) = document["peers"][0]["agents"]
    assert (agent["id"], agent["addresses"]) == (agent_id("gw", "machine", "gw").hex(), ["192.0.2.9", "198.51.100.9"])
    assert [each["role"] for each in document["services"]] == ["Ingress", "Egress"]
    assert found.facts[ObjectKey("SosPeer", "", "gw")].sites == ("gw",)


def test_streams_with_a_machine_use_tls_unless_its_peer_says_otherwise(found: Compiled) -> None:
    plain = compile_world(cluster("west", {**machine(), "spec": {**machine()["spec"], "transport": {"encryption": "None"}}}, TO_MACHINE))
    for compiled, expected in ((found, "TLS"), (plain, "None")):
        documents = [*compiled.machines.values(), *compiled.agents.values()]
        assert {each["transport"].get("encryption", "None") for document in documents for each in document["services"]} == {expected}


@pytest.mark.parametrize(("inbound", "dials"), [("Open", ("ByID", "ByID")), ("Blocked", ("Always", "Never"))])
def test_a_blocked_machine_dials(inbound: str, dials: tuple[str, str]) -> None:
    compiled = compile_world(cluster("west", machine(inbound=inbound), TO_MACHINE))
    documents = compiled.machines["gw"], compiled.agents["default", "a1"]
    assert tuple(document["peers"][0].get("dial", "ByID") for document in documents) == dials


def test_a_machine_is_in_no_card_and_has_no_card(found: Compiled) -> None:
    assert found.cards == {}
    compiled = compile_world(cluster("west", peer("other", "10.2.0.0/16"), machine(), TO_MACHINE))
    assert [each.name for each in compiled.cards["other"].sites] == ["west"]


def test_a_received_card_of_a_machine_is_ignored(found: Compiled) -> None:
    claimed = compile_world(cluster("west", machine(), TO_MACHINE, FROM_MACHINE, gw=card_of("east")))
    assert claimed.machines == found.machines and claimed.facts == found.facts


def test_a_service_needs_a_site_of_the_cluster() -> None:
    between = obj("SosService", "between", "default", **{"from": {"site": "gw"}, "to": {"site": "other"}})
    compiled = compile_world(cluster("west", machine(), machine("other", "10.4.0.0/16", siteID=8, addresses=["192.0.2.8"]), between))
    assert [name for name, _ in reasons(compiled)] == ["between"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"siteID": 1}, "DuplicateSiteID"),
        ({"addresses": ["172.18.0.2"]}, "OverlappingNodes"),
    ],
)
def test_a_machine_takes_nothing_of_the_clusters_own_sites(changes: dict[str, Any], reason: str) -> None:
    compiled = compile_world(cluster("west", machine(**changes)))
    assert reasons(compiled) == [("gw", reason)] and compiled.machines == {}


def test_a_machine_cannot_have_the_name_or_the_prefix_of_a_site() -> None:
    assert reasons(compile_world(cluster("west", machine("west")))) == [("west", "Duplicate")]
    assert reasons(compile_world(cluster("west", machine("gw", "10.1.2.0/24")))) == [("gw", "OverlappingPrefixes")]


def test_sites_get_other_ids_than_machines() -> None:
    west = site("west")
    del west["spec"]["siteID"]
    compiled = compile_world(cluster("west", west, machine(siteID=1), TO_MACHINE))
    assert reasons(compiled) == [] and compiled.allocations.sites["west"] != 1


def test_each_configuration_has_its_own_generation() -> None:
    drafted = draft(cluster("west", machine(), SERVICE, TO_MACHINE))
    issued = drafted.issued({("machine", "gw"): 17})
    assert issued.machines["gw"]["generation"] == 17
    assert drafted.hashes()["machine", "gw"] == issued.machines["gw"]["hash"]


def test_a_configuration_too_large_for_an_answer_is_refused() -> None:
    prefixes = [f"10.1.{n}.0/24" for n in range(64)]
    ends = {"from": {"site": "west", "prefixes": prefixes}, "to": {"site": "gw"}}
    many = [obj("SosService", f"s{n}", "default", ports=[{"port": n}], **ends) for n in range(1, 400)]
    compiled = compile_world(cluster("west", machine(), *many))
    assert ("gw", "LimitExceeded") in reasons(compiled)
