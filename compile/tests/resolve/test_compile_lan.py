"""Test LAN interfaces of a site's nodes (spec.network.lan)."""

from __future__ import annotations

from typing import Any

from sos_compile import compile_world
from sos_compile.model.network import LAN_OFPORT
from worlds import nodes, site, world


def lan_site(*entries: dict[str, str], name: str = "west", **spec: Any) -> dict[str, Any]:
    return site(name, "10.1.0.0/16", network={"lan": list(entries)}, **spec)


def ports(document: Any) -> list[tuple[str, int]]:
    return [(port["name"], port["ofport"]) for port in document.get("lan", [])]


def test_the_only_node_gets_an_interface_without_a_node() -> None:
    compiled = compile_world(world(lan_site({"name": "eth1"}, {"name": "eth2", "node": "west-0"}), nodes=nodes(west=1)))
    assert compiled.problems == ()
    assert ports(compiled.nodes["west-0"]) == [("eth1", LAN_OFPORT), ("eth2", LAN_OFPORT + 1)]


def test_a_node_gets_the_interfaces_that_name_it_with_numbers_of_the_sites_list() -> None:
    entries = [{"name": "eth1", "node": "west-0"}, {"name": "eth1", "node": "west-1"}, {"name": "eth3", "node": "west-1"}]
    compiled = compile_world(world(lan_site(*entries), nodes=nodes(west=3)))
    assert compiled.problems == ()
    assert ports(compiled.nodes["west-0"]) == [("eth1", LAN_OFPORT)]
    assert ports(compiled.nodes["west-1"]) == [("eth1", LAN_OFPORT + 1), ("eth3", LAN_OFPORT + 2)]
    assert "lan" not in compiled.nodes["west-2"], "nodes of earlier versions refuse unknown fields"


def test_an_interface_of_several_nodes_is_refused_because_its_lan_could_form_a_ring() -> None:
    both = world(lan_site({"name": "eth1"}), site("east", "10.2.0.0/16"), nodes=nodes(west=2, east=1))
    (problem,) = compile_world(both).problems
    assert (problem.name, problem.path, problem.reason) == ("west", "spec.network.lan[0].node", "BaseLoop")
    assert "name the node of each LAN interface" in problem.remedy
    assert list(compile_world(both).nodes) == ["east-0"], "other sites are not affected"


def test_an_interface_listed_twice_for_the_only_node_is_one_port() -> None:
    compiled = compile_world(world(lan_site({"name": "eth1", "node": "west-0"}, {"name": "eth1"}), nodes=nodes(west=1)))
    assert ports(compiled.nodes["west-0"]) == [("eth1", LAN_OFPORT)]


def test_hosts_behind_a_lan_port_are_not_excluded_from_redirection() -> None:
    """Guard entries exclude packets of uplinks, tunnels and agents. A LAN port is a host port: no base entry names it."""
    plain = compile_world(world(site("west", "10.1.0.0/16"), nodes=nodes(west=1))).nodes["west-0"]
    attached = compile_world(world(lan_site({"name": "eth1"}), nodes=nodes(west=1))).nodes["west-0"]
    assert attached["baseFlows"] == plain["baseFlows"]


def test_an_interface_of_a_node_outside_the_site_causes_a_warning() -> None:
    entries = [{"name": "eth1", "node": "west-0"}, {"name": "eth1", "node": "elsewhere"}]
    compiled = compile_world(world(lan_site(*entries), nodes=nodes(west=1)))
    (problem,) = compiled.problems
    assert problem.warning and (problem.path, problem.reason) == ("spec.network.lan[1].node", "NodeNotFound")
    assert ports(compiled.nodes["west-0"]) == [("eth1", LAN_OFPORT)]
