"""Test properties of every compilation."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import Compiled, Memo, Node, ObjectKey, Observed, World, compile_world, draft
from sos_compile.model.formats.agent import AgentConfig
from sos_compile.model.formats.controller import ControllerConfig
from sos_compile.model.formats.node import NodeConfig
from sos_compile.model.formats.shared import Document, content_hash
from worlds import BAD_OBJECTS, ENDPOINT, nodes, obj, service, site, world, worlds


def outputs(compiled: Compiled) -> dict[str, Any]:
    return {
        "controllers": compiled.controllers,
        "nodes": compiled.nodes,
        "agents": {str(key): doc for key, doc in compiled.agents.items()},
        "manifests": compiled.manifests,
    }


def as_model(model: type[Document], document: dict[str, Any]) -> Document:
    return model.model_validate_json(json.dumps(document))


@given(worlds(), st.randoms(use_true_random=False))
def test_output_does_not_depend_on_the_order_of_objects_and_nodes(given_world: World, random: Any) -> None:
    objects, machines = list(given_world.objects), list(given_world.nodes)
    random.shuffle(objects)
    random.shuffle(machines)
    assert compile_world(replace(given_world, objects=tuple(objects), nodes=tuple(machines))) == compile_world(given_world)


@given(worlds(), st.sampled_from(BAD_OBJECTS))
def test_bad_object_is_a_problem_and_affects_no_other_output(given_world: World, bad: dict[str, Any]) -> None:
    before = compile_world(given_world)
    after = compile_world(replace(given_world, objects=(*given_world.objects, bad)))
    assert outputs(after) == outputs(before)
    key = ObjectKey(bad.get("kind", ""), bad.get("metadata", {}).get("namespace", ""), bad.get("metadata", {}).get("name", ""))
    new = [problem for problem in after.problems if problem not in before.problems]
    assert {(problem.kind, problem.name) for problem in new} == {(bad.get("kind") or "object", key.name)}
    assert not after.facts[key].resolved
    assert after.facts[key].message
    assert {k: v for k, v in after.facts.items() if k != key} == dict(before.facts)


@given(worlds())
def test_controllers_and_nodes_agree_about_tunnels(given_world: World) -> None:
    """The port `sosvxN` of a datapath leads to the datapath with tunnel number N, and there to the port with its own number."""
    compiled = compile_world(given_world)
    ports = {doc["bridge"]["datapathId"]: {port["name"] for port in doc["tunnels"]} for doc in compiled.nodes.values()}
    for document in compiled.controllers.values():
        datapaths = [datapath for entry in document["sites"] for datapath in entry["datapaths"]]
        numbers = {datapath["dpid"]: datapath.get("tunnel", 0) for datapath in datapaths}
        assert len({number for number in numbers.values() if number}) == sum(map(bool, numbers.values()))
        ends = {(one, other) for one in numbers for other in numbers if f"sosvx{numbers[other]}" in ports.get(one, ())}
        assert ends == {(one, other) for one in numbers for other in numbers if one != other and numbers[one] and numbers[other]}


@given(worlds())
def test_documents_match_their_models_and_contain_their_hash(given_world: World) -> None:
    compiled = compile_world(given_world)
    for model, documents in ((ControllerConfig, compiled.controllers), (NodeConfig, compiled.nodes), (AgentConfig, compiled.agents)):
        for document in documents.values():  # type: ignore[attr-defined]
            as_model(model, document)
            assert document["hash"] == content_hash(document)
            assert document["generation"] == given_world.settings.generation


@given(worlds())
def test_numbers_and_addresses_are_unique(given_world: World) -> None:
    compiled = compile_world(given_world)
    allocations = compiled.allocations
    for given_numbers in (allocations.sites, allocations.nodes, allocations.controllers):
        assert len(set(given_numbers.values())) == len(given_numbers)
    addresses = [agent.address for agent in allocations.agents]
    assert len(set(addresses)) == len(addresses)
    dpids = [doc["bridge"]["datapathId"] for doc in compiled.nodes.values()]
    assert len(set(dpids)) == len(dpids)
    for doc in compiled.agents.values():
        address = IPv4Address(doc["interface"]["address"].split("/")[0])
        assert any(address in IPv4Network(prefix) for prefix in doc["site"]["prefixes"])


@given(worlds(), worlds())
def test_valid_allocations_are_kept(first: World, second: World) -> None:
    """Objects in both worlds keep their numbers and addresses, whatever the second world adds."""
    before = compile_world(first)
    known = {(obj["kind"], obj["metadata"]["name"]) for obj in first.objects if isinstance(obj, dict)}
    added = tuple(
        obj
        for obj in second.objects
        if isinstance(obj, dict) and (obj["kind"], obj["metadata"]["name"]) not in known and obj["kind"] != "SosSite"
    )
    more = (*first.nodes, *(node for node in second.nodes if node.name not in {each.name for each in first.nodes}))
    observed = Observed(endpoints={"default": (ENDPOINT,)}, allocations=before.allocations)
    after = compile_world(replace(first, objects=(*first.objects, *added), nodes=more, observed=observed))
    assert {name: after.allocations.sites[name] for name in before.allocations.sites} == dict(before.allocations.sites)
    assert {name: after.allocations.nodes[name] for name in before.allocations.nodes} == dict(before.allocations.nodes)
    assert set(before.allocations.agents) <= set(after.allocations.agents)


@given(worlds())
def test_second_compilation_with_the_same_allocations_changes_nothing(given_world: World) -> None:
    first = compile_world(given_world)
    observed = replace(given_world.observed, allocations=first.allocations)
    assert compile_world(replace(given_world, observed=observed)) == first


def test_allocations_survive_temporary_absence() -> None:
    """A temporarily rejected site and a temporarily unlabelled node keep their allocations."""
    sites = [site("amber", "10.0.0.0/16"), site("beryl", "10.1.0.0/16")]
    machines = nodes(amber=2, beryl=1)
    before = compile_world(world(*sites, nodes=machines))
    observed = Observed(allocations=before.allocations)
    broken = site("amber", "10.0.0.0/16", network={"agentAddresses": "10.3.0.0/24"})
    unlabelled = tuple(replace(node, labels={}) if node.name == "beryl-0" else node for node in machines)
    between = compile_world(world(broken, sites[1], nodes=unlabelled, observed=observed))
    assert between.nodes == {}
    assert between.allocations == before.allocations
    after = compile_world(world(*sites, nodes=machines, observed=Observed(allocations=between.allocations)))
    assert after.allocations == before.allocations


def pool(name: str, **labels: str) -> dict[str, Any]:
    return obj("SosAgent", name, {"siteSelector": {"matchLabels": labels}})


def moved_to_another_pool(agent_range: str, machines: int) -> tuple[set[str], set[str]]:
    """Return the addresses of a pool's agents at a site and of the agents that replace them. Pool `default` also has agents there."""
    pools = [pool("older", pool="older"), pool("newer", pool="newer")]

    def amber(which: str) -> dict[str, Any]:
        made = site("amber", "10.0.0.0/16", network={"agentAddresses": agent_range})
        return {**made, "metadata": {**made["metadata"], "labels": {"pool": which}}}

    before = compile_world(world(amber("older"), *pools, nodes=nodes(amber=machines)))
    after = compile_world(world(amber("newer"), *pools, nodes=nodes(amber=machines), observed=Observed(allocations=before.allocations)))
    found = [{doc["interface"]["address"] for doc in compiled.agents.values() if doc["pool"] == name}
             for compiled, name in ((before, "older"), (after, "newer"))]  # fmt: skip
    return found[0], found[1]


def test_new_agents_do_not_get_addresses_of_leaving_agents() -> None:
    """The leaving agents use their addresses on the same bridge until their sessions have ended."""
    before, after = moved_to_another_pool("10.0.9.0/24", machines=2)
    assert len(before) == len(after) == 2
    assert not before & after


def test_new_agents_get_addresses_of_leaving_agents_if_no_others_are_free() -> None:
    before, after = moved_to_another_pool("10.0.9.0/29", machines=3)
    assert before == after
    assert len(before) == 3


def test_allocations_of_removed_objects_are_released() -> None:
    before = compile_world(world(site("amber", "10.0.0.0/16"), site("beryl", "10.1.0.0/16"), nodes=nodes(amber=1, beryl=1)))
    after = compile_world(world(site("beryl", "10.1.0.0/16"), nodes=nodes(beryl=1), observed=Observed(allocations=before.allocations)))
    assert set(after.allocations.sites) == {"beryl"}
    assert set(after.allocations.nodes) == {"beryl-0"}
    assert [agent.node for agent in after.allocations.agents] == ["beryl-0"]


def test_invalid_previous_allocations_are_replaced() -> None:
    before = compile_world(world(site("amber", "10.0.0.0/16"), nodes=nodes(amber=2)))
    agents = tuple(
        replace(agent, address=address) for agent, address in zip(before.allocations.agents, ["elsewhere", "10.0.255.255"], strict=True)
    )
    bad = replace(before.allocations, sites={"amber": 70000}, nodes={"amber-0": 5, "amber-1": 5}, agents=agents)
    after = compile_world(world(site("amber", "10.0.0.0/16"), nodes=nodes(amber=2), observed=Observed(allocations=bad)))
    assert after.allocations.sites == {"amber": 1}
    assert after.allocations.nodes == {"amber-0": 5, "amber-1": 1}
    assert [agent.address for agent in after.allocations.agents] == ["10.0.255.254", "10.0.255.253"]


def test_generation_is_in_every_document_but_not_in_the_hash() -> None:
    one = compile_world(world(site("amber", "10.0.0.0/16"), nodes=nodes(amber=1)))
    seven = world(site("amber", "10.0.0.0/16"), nodes=nodes(amber=1))
    two = compile_world(replace(seven, settings=replace(seven.settings, generation=7)))
    assert two.nodes["amber-0"]["generation"] == 7
    assert two.nodes["amber-0"]["hash"] == one.nodes["amber-0"]["hash"]


def test_empty_world_compiles() -> None:
    compiled = compile_world(World(objects=()))
    assert (compiled.controllers, compiled.nodes, compiled.agents, compiled.manifests, compiled.problems) == ({}, {}, {}, (), ())


def test_nodes_without_a_site_object_get_no_document() -> None:
    assert compile_world(World(objects=(), nodes=(Node("a", {"sos.network/site": "amber"}),))).nodes == {}


def test_new_agent_does_not_become_the_first_agent_of_its_site() -> None:
    """The first agent serves proactive services. If another agent became first, running connections would reach the wrong agent."""
    objects = (site("west", "10.1.0.0/24"), site("east", "10.2.0.0/24"), service("bulk", "west", "east", 80))
    machines = nodes(west=1, east=1)
    before = compile_world(world(*objects, nodes=machines))
    observed = Observed(endpoints={"default": (ENDPOINT,)}, allocations=before.allocations)
    after = compile_world(world(*objects, obj("SosAgent", "alpha"), nodes=machines, observed=observed))
    for one, other in zip(before.controllers["default"]["sites"], after.controllers["default"]["sites"], strict=True):
        assert (len(one["agents"]), len(other["agents"])) == (1, 2)
        assert other["agents"][0] == one["agents"][0]
    here, there = before.agents["default", "west-0"], after.agents["default", "west-0"]
    assert there["peers"][0]["agents"][0] == here["peers"][0]["agents"][0]


def in_cluster(given_world: World) -> World:
    """Return the same world as stored by an API server: uid and generation determine the spec, and each uid is created once."""
    objects = []
    for each in given_world.objects:
        assert isinstance(each, dict)
        generation = zlib.crc32(json.dumps(each["spec"], sort_keys=True).encode()) + 1
        uid = f"{each['metadata']['name']}-{each['metadata'].get('creationTimestamp')}"
        objects.append({**each, "metadata": {**each["metadata"], "uid": uid, "generation": generation}})
    return replace(given_world, objects=tuple(objects))


@given(worlds(), worlds(), st.data())
def test_memo_does_not_change_any_result(first: World, second: World, data: st.DataObject) -> None:
    """Compile a sequence of other worlds with the same names, and parts of them."""
    memo = Memo()
    for each in (in_cluster(first), in_cluster(second), in_cluster(first)):
        some = tuple(o for o in each.objects if data.draw(st.booleans()) or (isinstance(o, dict) and o["metadata"]["name"] == "default"))
        machines = tuple(node for node in each.nodes if data.draw(st.booleans()))
        for now in (each, replace(each, objects=some), replace(each, nodes=machines), each):
            assert compile_world(now, memo) == compile_world(now)


def test_only_changed_documents_get_a_new_generation() -> None:
    before = draft(world(site("amber", "10.0.0.0/16"), site("beryl", "10.1.0.0/16"), nodes=nodes(amber=1, beryl=1)))
    compiled = before.issued({("node", "amber-0"): 4})
    assert (compiled.nodes["amber-0"]["generation"], compiled.nodes["beryl-0"]["generation"]) == (4, 1)
    (text,) = [
        m["data"]["amber-0.json"] for m in compiled.manifests if m["kind"] == "ConfigMap" and m["metadata"]["name"] == "sos-node-amber"
    ]
    assert json.loads(text) == compiled.nodes["amber-0"]


@pytest.mark.parametrize(("field", "value"), [("encryption", "TLS"), ("compression", "Adaptive")])
def test_stream_settings_go_to_both_sites_and_only_if_requested(field: str, value: str) -> None:
    base = (site("west", "10.0.0.0/16"), site("east", "10.1.0.0/16"), service("plain", "west", "east", 22))
    here = nodes(west=1, east=1)
    asked = service("special", "west", "east", 443, transport={field: value})
    without = service("special", "west", "east", 443, transport={field: "None"})
    compiled, before = compile_world(world(*base, asked, nodes=here)), compile_world(world(*base, without, nodes=here))
    for key, document in compiled.agents.items():
        transports = {each["id"]: each["transport"] for each in document["services"]}
        assert transports["sos-system/special"][field] == value
        # agents that do not know the field keep accepting documents of services without the field
        assert field not in transports["sos-system/plain"]
        assert field not in json.dumps(before.agents[key])
    assert len(compiled.agents) == 2
    assert field not in json.dumps(list(compiled.controllers.values()))


def test_agents_and_controllers_get_the_protocol_only_if_it_is_not_tcp() -> None:
    base = (site("west", "10.0.0.0/16"), site("east", "10.1.0.0/16"), service("usual", "west", "east", 22))
    here = nodes(west=1, east=1)
    with_quic = service("other", "west", "east", 443, transport={"protocol": "QUIC"})
    without = service("other", "west", "east", 443, transport={"protocol": "TCP"})
    compiled, before = compile_world(world(*base, with_quic, nodes=here)), compile_world(world(*base, without, nodes=here))
    documents = [*compiled.agents.values(), *compiled.controllers.values()]
    assert len(documents) == 3
    for document in documents:
        transports = {each["id"]: each["transport"] for each in document["services"]}
        assert transports["sos-system/other"]["protocol"] == "QUIC"
        # programs that do not know the field keep accepting documents of services without the field
        assert "protocol" not in transports["sos-system/usual"]
    assert '"protocol"' not in json.dumps([*before.agents.values(), *before.controllers.values()])
