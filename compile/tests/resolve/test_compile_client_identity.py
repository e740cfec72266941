"""Source address and header of connections to servers: `spec.to.source` and `spec.to.proxyProtocol` (docs/adr/0062)."""

from __future__ import annotations

from typing import Any

import pytest
from sos_compile import ObjectKey, Reason, compile_world
from test_compile_machines import TO_MACHINE, machine
from test_compile_peers import SERVICE as TO_PEER
from test_compile_peers import card_of, cluster, peer
from test_compile_routed import EAST, POOL, SERVICE, WEST, compiled, obj, problem, site, with_spec

V2 = {"source": "Agent", "proxyProtocol": "V2"}
KEY = ObjectKey("SosService", "default", "bulk")


def connecting(service: dict[str, Any], **fields: str) -> dict[str, Any]:
    """Return a service with these fields in `spec.to`."""
    return with_spec(service, to={**service["spec"]["to"], **fields})


def identity(document: dict[str, Any]) -> dict[str, str]:
    """Return the fields of an agent's first service that concern the client's identity."""
    return {name: document["services"][0][name] for name in ("source", "proxyProtocol") if name in document["services"][0]}


@pytest.mark.parametrize(
    ("to", "shown"), [({}, "Preserve"), ({"source": "Agent"}, "Agent"), (V2, "Agent, PROXY protocol V2")], ids=["default", "agent", "v2"]
)
def test_only_the_egress_agent_gets_the_fields(to: dict[str, str], shown: str) -> None:
    found = compiled(WEST, EAST, POOL, connecting(SERVICE, **to))
    assert found.problems == ()
    assert (identity(found.agents["default", "a1"]), identity(found.agents["default", "b1"])) == ({}, to)
    assert found.facts[KEY].text["source"] == shown


def test_hosts_behind_a_router_may_be_reached_from_the_agents_address() -> None:
    router = site("east", "10.2.0.0/16", intake={"type": "Routed", "interface": "lan0"})
    found = compiled(WEST, router, POOL, connecting(SERVICE, **V2))
    assert found.problems == ()
    assert identity(found.agents["default", "b1"]) == V2


@pytest.mark.parametrize("to", [{"source": "Agent"}, V2], ids=["agent", "v2"])
def test_sites_with_bridges_preserve_the_clients_address(to: dict[str, str]) -> None:
    sites = [
        obj("SosSite", name, nodeSelector={"matchLabels": {"site": name}}, prefixes=[prefix])
        for name, prefix in (("west", "10.1.0.0/16"), ("east", "10.2.0.0/16"))
    ]
    refused = problem(compiled(*sites, POOL, obj("SosController", "default"), connecting(SERVICE, **to)))
    assert (refused.kind, refused.path, refused.reason) == ("SosService", "spec.to.source", Reason.INVALID)
    assert "SosSites west and east have bridges" in refused.message
    assert "remove spec.to.source" in (refused.remedy or "")


def test_of_two_clusters_the_servers_cluster_decides() -> None:
    service = connecting(TO_PEER, **V2)
    west, east = card_of("west"), card_of("east")
    west, east = card_of("west", service, other=east), card_of("east", TO_PEER, other=west)
    near = compile_world(cluster("west", peer("other"), service, other=east))
    far = compile_world(cluster("east", peer("other"), TO_PEER, other=west))
    assert near.problems == far.problems == ()
    assert "source" not in near.facts[KEY].text, "only the other cluster knows it"
    assert (identity(far.agents["default", "b1"]), far.facts[KEY].text["source"]) == ({}, "Preserve")
    far = compile_world(cluster("east", peer("other"), service, other=card_of("west", TO_PEER, other=card_of("east"))))
    assert (identity(far.agents["default", "b1"]), far.facts[KEY].text["source"]) == (V2, "Agent, PROXY protocol V2")


def test_a_machine_may_connect_from_its_own_address() -> None:
    found = compile_world(cluster("west", machine(), connecting(TO_MACHINE, **V2)))
    assert found.problems == ()
    assert identity(found.machines["gw"]) == V2
    assert found.facts[ObjectKey("SosService", "default", "backup")].text["source"] == "Agent, PROXY protocol V2"
