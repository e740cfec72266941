"""Compare the flow entries that enforce `spec.require` with a model of single connections."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import Compiled, Reason, compile_world
from sos_compile.model import network
from worlds import nodes, obj, service, site, world

SITES = (site("west", "10.0.0.0/24"), site("east", "10.1.0.0/24"))
MACHINES = nodes(west=1, east=1)
REQUIRED = {"require": ["Accelerated"]}
SMALL = [(client, server, port) for client in range(4) for server in range(4) for port in range(1, 8)]


def compiled(*services: dict[str, Any], sites: tuple[dict[str, Any], ...] = SITES) -> Compiled:
    return compile_world(world(*sites, *services, nodes=MACHINES))


def node(found: Compiled, name: str = "west-1") -> dict[str, Any]:
    return found.nodes[next(each for each in found.nodes if each.startswith(name.split("-", maxsplit=1)[0]))]


def flows(found: Compiled, priority: int, name: str = "west-1") -> list[dict[str, Any]]:
    return [flow for flow in node(found, name)["baseFlows"] if flow["priority"] == priority]


def number(address: str) -> int:
    return int.from_bytes(bytes(map(int, address.split("."))), "big")


def matches(match: str, client: int, server: int, port: int) -> bool:
    fields = dict(part.split("=", 1) for part in match.split(",") if "=" in part)
    for field, value in (("nw_src", (10 << 24) + client), ("nw_dst", (10 << 24) + (1 << 16) + server)):
        network_address, length = fields[field].split("/")
        if (value ^ number(network_address)) >> (32 - int(length)):
            return False
    wanted, _, mask = fields.get("tp_dst", "0/0").partition("/")
    return port & int(mask or "0xffff", 0) == int(wanted, 0)


def test_service_without_requirements_adds_no_reject_entries() -> None:
    found = node(compiled(service("a", "west", "east")))
    assert "rejectPort" not in found and not any("33900" in flow["actions"] for flow in found["baseFlows"])


def test_only_the_site_of_the_client_rejects_connections() -> None:
    found = compiled(service("a", "west", "east", ports=[{"port": 22}], **REQUIRED))
    assert node(found)["rejectPort"] == {"name": "sosrej0", "peer": "sosrej1", "ofport": network.REJECT_OFPORT}
    assert [flow["match"] for flow in flows(found, 29970)] == [
        "vlan_tci=0x0000/0x1fff,tcp,tcp_flags=+syn-ack-rst-fin,nw_src=10.0.0.0/24,nw_dst=10.1.0.0/24,tp_dst=22"
    ]
    assert "rejectPort" not in node(found, "east")
    assert found.controllers["default"]["services"][0]["require"] == ["Accelerated"]


def test_service_of_all_ports_needs_one_entry() -> None:
    assert len(flows(compiled(service("a", "west", "east", **REQUIRED)), 29970)) == 1


@pytest.mark.parametrize(("setup", "flags"), [("Reactive", ""), ("Proactive", "tcp_flags=+syn-ack-rst-fin,")])
def test_connections_forwarded_by_an_agent_are_rejected_but_not_its_own(setup: str, flags: str) -> None:
    pool = obj("SosAgent", "default", {"siteSelector": {}})
    found = compiled(service("a", "west", "east", ports=[{"port": 22}], setup=setup, **REQUIRED), pool)
    assert [flow["match"] for flow in flows(found, 45500)] == [
        f"in_port=34001,vlan_tci=0x0000/0x1fff,tcp,{flags}nw_src=10.0.0.0/24,nw_dst=10.1.0.0/24,tp_dst=22"
    ]
    own = {flow["match"].partition("=")[2] for flow in flows(found, 45600)}
    assert own == {agent["address"] for site in found.controllers["default"]["sites"] for agent in site["agents"]}
    assert {flow["actions"] for flow in flows(found, 45600)} == {"goto_table:1"}


def test_agents_are_configured_to_use_only_encrypted_streams() -> None:
    pool = obj("SosAgent", "default", {"siteSelector": {}})
    tls = {"transport": {"encryption": "TLS"}}
    found = compiled(service("a", "west", "east", require=["Encrypted"], **tls), service("b", "west", "east", **tls, **REQUIRED), pool)
    for agent in found.agents.values():
        assert [each.get("encryptedOnly", False) for each in agent["services"]] == [True, False]


def test_requirement_at_an_external_switch_is_rejected() -> None:
    west = site("west", "10.0.0.0/24", datapaths=[{"dpid": "00000000000000aa"}])
    found = compiled(service("a", "west", "east", **REQUIRED), sites=(west, SITES[1]))
    assert [(p.path, p.reason) for p in found.problems if p.kind == "SosService"] == [("spec.require", Reason.INVALID)]


def test_requirement_with_too_many_entries_is_refused() -> None:
    ports = [{"port": 1024 * i + 1, "endPort": 1024 * i + 1023} for i in range(60)]
    prefixes = [f"10.0.0.{2 * i}/32" for i in range(16)]
    large = service("a", "west", "east", ports=ports, **REQUIRED)
    large["spec"]["from"]["prefixes"] = prefixes
    found = compiled(large, service("b", "west", "east", ports=[{"port": 22}], **REQUIRED))
    assert [(p.name, p.reason) for p in found.problems] == [("a", Reason.LIMIT_EXCEEDED)]
    assert len(flows(found, 29970)) == 1


def test_entries_of_services_at_their_limits_are_counted_before_creation() -> None:
    """64 x 64 prefixes and 64 port ranges would need millions of entries."""
    ports = [{"port": 1000 * i + 1, "endPort": 1000 * i + 777} for i in range(64)]
    made = []
    for i in range(30):
        each = service(f"s{i}", "west", "east", ports=ports, priority=i, **(REQUIRED if i % 2 else {}))
        each["spec"]["from"]["prefixes"] = [f"10.0.0.{2 * n + i % 3 % 2}/32" for n in range(64)]
        each["spec"]["to"]["prefixes"] = [f"10.1.0.{2 * n}/32" for n in range(64)]
        made.append(each)
    began = time.process_time()
    found = compiled(*made)
    assert time.process_time() - began < 60, "many times the expected few seconds"
    assert {p.reason for p in found.problems if not p.warning} <= {Reason.LIMIT_EXCEEDED}


points = st.sets(st.integers(0, 3), min_size=1)


@st.composite
def services(draw: st.DrawFn) -> list[dict[str, Any]]:
    made = []
    for i in range(draw(st.integers(1, 4))):
        ports = [{"port": port} for port in sorted(draw(st.sets(st.integers(1, 7), min_size=1)))]
        spec: dict[str, Any] = {"ports": ports, "priority": draw(st.integers(0, 3))}
        spec |= REQUIRED if draw(st.booleans()) else {"mode": draw(st.sampled_from(["Accelerate", "Observe"]))}
        each = service(f"s{i}", "west", "east", **spec)
        each["spec"]["from"]["prefixes"] = [f"10.0.0.{n}/32" for n in sorted(draw(points))]
        each["spec"]["to"]["prefixes"] = [f"10.1.0.{n}/32" for n in sorted(draw(points))]
        made.append(each)
    return made


@given(services())
def test_connection_is_rejected_if_its_first_service_has_requirements(made: list[dict[str, Any]]) -> None:
    found = compiled(*made)
    rejects = [flow["match"] for flow in flows(found, 29970)]
    for client, server, port in SMALL:
        ends = (f"10.0.0.{client}/32", f"10.1.0.{server}/32")
        first = next(
            (
                each
                for each in found.controllers["default"]["services"]
                if ends[0] in each["from"]["prefixes"]
                and ends[1] in each["to"]["prefixes"]
                and any(r["first"] <= port <= r["last"] for r in each["ports"])
            ),
            {},
        )
        assert any(matches(match, client, server, port) for match in rejects) == bool(first.get("require"))
