"""Test unexpected exceptions: the object or node that causes an exception is rejected.

The output for all other objects stays byte-identical.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sos_compile import Compiled, Fault, Memo, Node, ObjectKey, Reason, World, compile_world, draft, facts
from sos_compile import compiler as compiler_module
from sos_compile.admission import objects, schema
from sos_compile.admission.fault_isolation import MAX_SEARCHES, Faulty, isolate
from sos_compile.documents import controller_config, node_config
from sos_compile.manifests import build
from sos_compile.resolve.services import placement
from worlds import nodes, obj, service, site, world

OPEN = {"services": {"namespaces": "All"}}
WORLD = world(
    site("west", "10.0.0.0/24", **OPEN),
    site("east", "10.0.1.0/24", **OPEN),
    site("north", "10.0.2.0/24"),
    *(service(f"s{i}", "west", "east", 80 + i) for i in range(5)),
    nodes=nodes(west=2, east=2, north=1),
)


def without(kind: str, name: str) -> World:
    return dataclasses.replace(WORLD, objects=tuple(o for o in WORLD.objects if (o["kind"], o["metadata"]["name"]) != (kind, name)))


def documents(compiled: Compiled) -> str:
    agents = {"/".join(key): doc for key, doc in compiled.agents.items()}
    return json.dumps([compiled.controllers, compiled.nodes, agents, compiled.manifests], sort_keys=True)


def raises_for(what: Callable[[Any], bool], original: Callable[..., Any]) -> Callable[..., Any]:
    def patched(*args: Any, **kwargs: Any) -> Any:
        if any(what(arg) for arg in args):
            raise KeyError("a rule that nobody thought of")
        return original(*args, **kwargs)

    return patched


PLACES = [
    (schema, "_rules", "SosService", "s3"),
    (objects, "parse", "SosSite", "north"),
    (placement.Judge, "place", "SosService", "s2"),
    (controller_config, "_service", "SosService", "s1"),
    (controller_config, "_site", "SosSite", "north"),
    (build, "build_site", "SosSite", "north"),
    (facts, "_service", "SosService", "s4"),
]


def is_about(name: str) -> Callable[[Any], bool]:
    def about(value: Any) -> bool:
        if isinstance(value, dict):
            return (value.get("metadata") or {}).get("name") == name
        for attribute in ("name", "origin", "site", "service"):
            found = getattr(value, attribute, None)
            if found == name or (found is not None and not isinstance(found, str) and about(found)):
                return True
        return False

    return about


@pytest.mark.parametrize(("module", "function", "kind", "name"), PLACES, ids=lambda value: str(getattr(value, "__name__", value)))
def test_only_the_object_that_raises_an_exception_is_rejected(
    module: Any, function: str, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = compile_world(without(kind, name))
    monkeypatch.setattr(module, function, raises_for(is_about(name), getattr(module, function)))
    compiled = compile_world(WORLD)
    assert [(p.kind, p.name, p.reason) for p in compiled.problems] == [(kind, name, Reason.INTERNAL)]
    assert "a rule that nobody thought of" in compiled.problems[0].line()
    assert [fault.key.name for fault in compiled.faults] == [name]
    assert "Traceback" in compiled.faults[0].trace
    key = ObjectKey(kind, "sos-system" if kind == "SosService" else "", name)
    assert not compiled.facts[key].accepted and compiled.facts[key].reason == "InternalError"
    assert compiled.controllers == expected.controllers or kind == "SosSite", "rejected sites keep their ids"
    assert compiled.manifests == expected.manifests or kind == "SosSite"
    for node, document in expected.nodes.items():
        assert compiled.nodes[node]["baseFlows"] == document["baseFlows"]


def test_node_that_raises_an_exception_keeps_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is not part of its site until the error is gone, but its number stays reserved."""
    original = node_config._tunnels

    def tunnels(network: Any, placed: Any, node: Any, settings: Any) -> Any:
        if any(other.node.name == "west-1" for other in network.mesh_of(placed)):
            raise ValueError("an address that nobody thought of")
        return original(network, placed, node, settings)

    before = compile_world(WORLD)
    monkeypatch.setattr(node_config, "_tunnels", tunnels)
    compiled = compile_world(dataclasses.replace(WORLD, observed=dataclasses.replace(WORLD.observed, allocations=before.allocations)))
    assert [(p.kind, p.name, p.reason, p.warning) for p in compiled.problems] == [("SosSite", "west", Reason.INTERNAL, True)]
    assert [fault.key for fault in compiled.faults] == [ObjectKey("Node", "", "west-1")]
    assert sorted(compiled.nodes) == ["east-0", "east-1", "north-0", "west-0"]
    assert compiled.allocations.nodes == before.allocations.nodes


def test_each_long_name_is_one_problem() -> None:
    """An id has at most 253 characters, including the namespace: longer names, which an older API server may have accepted, do not fit into
    the document."""
    long = [obj("SosService", f"{letter}{'x' * 249}", {"from": {"site": "west"}, "to": {"site": "east"}}) for letter in "abc"]
    compiled = compile_world(dataclasses.replace(WORLD, objects=(*WORLD.objects, *long)))
    assert [(p.name[0], p.reason) for p in compiled.problems] == [(letter, Reason.INVALID) for letter in "abc"]
    assert "at most 189 characters" in compiled.problems[0].message
    assert documents(compiled) == documents(compile_world(WORLD))


def test_services_that_cannot_be_written_need_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for each such service would take too long, because any user may create thousands of them."""
    monkeypatch.setattr(
        controller_config, "_service", raises_for(lambda v: v.service.origin.name.startswith("bad"), controller_config._service)
    )
    bad = [service(f"bad{i}", "west", "east", 80) for i in range(60)]
    compilations = []
    original = compiler_module._draft
    monkeypatch.setattr(compiler_module, "_draft", lambda *args: (compilations.append(1), original(*args))[1])
    compiled = compile_world(dataclasses.replace(WORLD, objects=(*WORLD.objects, *bad)))
    assert len(compiled.faults) == 60 and len(compilations) == 2, len(compilations)
    assert documents(compiled) == documents(compile_world(WORLD))


def test_known_culprits_are_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_config, "_bridge", raises_for(is_about("north"), node_config._bridge))
    compilations = []
    original = compiler_module._draft
    monkeypatch.setattr(compiler_module, "_draft", lambda *args: (compilations.append(1), original(*args))[1])
    memo = Memo()
    first = draft(WORLD, memo).issued({})
    searched = len(compilations)
    assert draft(WORLD, memo).issued({}).faults == first.faults
    assert len(compilations) - searched == 3 < searched
    monkeypatch.undo()
    assert draft(WORLD, memo).issued({}).faults == (), "the site is accepted again"


def test_exception_without_a_culprit_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("not about any object")

    monkeypatch.setattr(compiler_module, "resolve", broken)
    with pytest.raises(RuntimeError):
        compile_world(WORLD)


SWITCH = {"datapaths": [{"dpid": "00000000000000ff"}]}


def test_objects_of_unexpected_shapes_are_problems() -> None:
    """Objects of a newer API or from files may have kinds, metadata and values that are not strings."""
    odd: list[dict[str, Any]] = [
        {"apiVersion": "sos.network/v1alpha1", "kind": ["x"], "metadata": {"name": "a"}},
        {"apiVersion": "sos.network/v1alpha1", "kind": "SosSite", "metadata": []},
        {"apiVersion": "sos.network/v1alpha1", "kind": "SosSite", "metadata": {"name": 5, "uid": ["u"], "generation": 1}, "spec": None},
        obj("SosSite", "labels", {**SWITCH, "siteID": 9}, labels={"a": ["b"]}, uid="u1", generation=1),
        obj("SosSite", "number", {**SWITCH, "siteID": 10**400}),
        obj("SosService", "nan", {"from": {"site": "west"}, "to": {"site": "east"}, "priority": float("nan")}),
        obj("SosSite", "enum", {**SWITCH, "siteID": 8, "wan": {"type": "FromANewerAPI"}}),
    ]
    compiled = compile_world(dataclasses.replace(WORLD, objects=(*WORLD.objects, *odd)))
    assert documents(compiled) == documents(compile_world(WORLD))
    assert len({(p.kind, p.name) for p in compiled.problems}) == len(odd)


KEYS = [ObjectKey("SosService", "ns", f"s{i}") for i in range(40)]


@settings(max_examples=60)
@given(st.sets(st.integers(0, 39), max_size=MAX_SEARCHES + 4), st.booleans())
def test_isolation_leaves_out_exactly_the_culprits(bad: set[int], known: bool) -> None:
    """Up to MAX_SEARCHES culprits are found exactly. Above this number, other objects may be left out, too. No exception is raised."""
    culprits = {KEYS[i] for i in bad}

    def attempt(faults: Any) -> frozenset[ObjectKey]:
        for key in KEYS:
            if key in culprits and key not in faults:
                raise ValueError(key.name)
        return frozenset(faults)

    if not culprits:
        assert attempt({}) == frozenset()
        return
    last = {key: Fault(key, "", "") for key in culprits} if known else {}
    left_out, faults = isolate(KEYS, attempt, ValueError("first"), last)
    assert left_out == frozenset(faults) and left_out >= culprits
    if len(culprits) <= MAX_SEARCHES:
        assert left_out == culprits


def test_known_faults_end_the_search() -> None:
    key = KEYS[0]
    error = Faulty({key: Fault(key, "", "")})

    def attempt(_: Any) -> None:
        raise error

    with pytest.raises(Faulty):
        isolate(KEYS, attempt, error, {})


@settings(max_examples=40)
@given(st.text(max_size=60), st.text(max_size=20))
def test_wrong_node_address_affects_no_other_node(address: str, name: str) -> None:
    """Kubernetes accepts any text as an InternalIP."""
    odd = Node(name or "x", {"sos.network/site": "west"}, address)
    compiled = compile_world(dataclasses.replace(WORLD, nodes=(*WORLD.nodes, odd)))
    assert not [p for p in compiled.problems if not p.warning]
    assert set(compiled.nodes) >= {"west-0", "west-1", "east-0", "east-1", "north-0"}


def test_site_that_raises_for_all_its_nodes_affects_no_other_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search finds one node. The number of searches is bounded, and no service is rejected with the nodes."""
    many = dataclasses.replace(WORLD, nodes=nodes(west=2, east=2, north=2 * MAX_SEARCHES))
    monkeypatch.setattr(node_config, "_bridge", raises_for(is_about("north"), node_config._bridge))
    compiled = compile_world(many)
    assert {(p.kind, p.name) for p in compiled.problems} == {("SosSite", "north")}
    assert sorted(compiled.nodes) == ["east-0", "east-1", "west-0", "west-1"]
    assert len(compiled.controllers["default"]["services"]) == 5


@pytest.mark.parametrize(
    "address", ["fd00::1", "node.example", "127.0.0.1", "224.0.0.5", "0.0.0.0", "169.254.7.7", "255.255.255.255", "1.2.3"]
)
def test_node_address_unfit_for_tunnels_is_reported_and_others_keep_tunnels(address: str) -> None:
    odd = Node("odd", {"sos.network/site": "west"}, address)
    compiled = compile_world(dataclasses.replace(WORLD, nodes=(*WORLD.nodes, odd)))
    assert compiled.faults == () and [(p.warning, p.reason) for p in compiled.problems] == [(True, Reason.NO_NODE_ADDRESS)]
    assert address in compiled.facts[ObjectKey("SosSite", "", "west")].node_problems["odd"]
    assert compiled.nodes["odd"]["tunnels"] == []
    remotes = [[t["remote"] for t in each.nodes["west-0"]["tunnels"]] for each in (compiled, compile_world(WORLD))]
    assert sorted(remotes[0]) == sorted(remotes[1])


def test_younger_of_two_nodes_keeps_a_shared_address() -> None:
    """The older Node usually belongs to a removed machine."""
    (west,) = (n for n in WORLD.nodes if n.name == "west-0")
    twin = dataclasses.replace(west, name="twin", created="2026-01-01T00:00:00Z")
    compiled = compile_world(dataclasses.replace(WORLD, nodes=(*WORLD.nodes, twin)))
    problems = compiled.facts[ObjectKey("SosSite", "", "west")].node_problems
    assert "twin" in problems["west-0"] and "twin" not in problems
    assert compiled.nodes["west-0"]["tunnels"] == []


def test_only_ipv4_endpoints_reach_a_bridge() -> None:
    observed = dataclasses.replace(WORLD.observed, endpoints={"default": ("tcp:fd00::5:6653", "tcp:10.96.0.10:6653", "x")})
    compiled = compile_world(dataclasses.replace(WORLD, observed=observed))
    assert compiled.nodes["west-0"]["controllers"] == ["tcp:10.96.0.10:6653"] and compiled.problems == ()


@pytest.mark.parametrize("wan", ["Overlay", "Uplinks"])
def test_host_prefixes_that_contain_tunnel_endpoints_are_refused(wan: str) -> None:
    """Tunnel packets would look like packets of hosts. A site without tunnels may have hosts in the subnet of its nodes."""
    spec = {**OPEN, "wan": {"type": wan, **({"uplinks": [{"name": "wan0", "base": True}]} if wan == "Uplinks" else {})}}
    sites = (site("beside", "192.0.2.0/25", **spec), *((site("west", "10.0.0.0/24"),) if wan == "Overlay" else ()))
    where = {"west": 1} if wan == "Overlay" else {"beside": 1}
    compiled = compile_world(world(*sites, nodes=nodes(**where)))
    found = [(p.name, p.path, p.reason) for p in compiled.problems if not p.warning]
    assert found == ([("beside", "spec.prefixes", Reason.OVERLAPPING_NODES)] if wan == "Overlay" else [])
