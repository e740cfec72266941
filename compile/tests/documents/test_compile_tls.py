"""TLS between switches and controllers: the fields of SosController and SosSite in the documents."""

from __future__ import annotations

from typing import Any

import pytest
from sos_compile import Compiled, Loaded, Node, Observed, World, compile_world

ENDPOINT = "tcp:10.96.0.10:6653"


def controller(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosController", "metadata": {"name": name}, "spec": spec}


def site(name: str, prefix: str, **spec: Any) -> dict[str, Any]:
    wan = {"type": "Uplinks", "uplinks": [{"name": "wan0", "base": True}]}
    made = {"nodeSelector": {"matchLabels": {"site": name}}, "prefixes": [prefix], "network": {"subnet": "10.0.0.0/24"}, "wan": wan, **spec}
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosSite", "metadata": {"name": name}, "spec": made}


def loaded(*objects: dict[str, Any]) -> tuple[Loaded, ...]:
    return tuple(Loaded("objects.yaml", i, obj) for i, obj in enumerate(objects))


def compiled(*objects: dict[str, Any]) -> Compiled:
    nodes = tuple(Node(name=name, labels={"site": name}, address="192.0.2.1") for name in ("west", "east"))
    endpoints = {"default": (ENDPOINT,), "research": ("tcp:10.96.0.11:6653",)}
    made = compile_world(World(objects=loaded(*objects), nodes=nodes, observed=Observed(endpoints=endpoints)))
    assert [problem.line() for problem in made.problems if not problem.warning] == []
    return made


@pytest.mark.parametrize(
    ("openflow", "tls", "target"), [({}, None, ENDPOINT), ({"openflow": {"tls": "Required"}}, "Required", "ssl:10.96.0.10:6653")]
)
def test_requirement_is_in_the_documents_of_controller_and_nodes(openflow: dict[str, Any], tls: str | None, target: str) -> None:
    made = compiled(controller("default", **openflow), site("west", "10.0.0.0/25"))
    assert made.controllers["default"]["controller"].get("tls") == tls
    assert made.nodes["west"]["controllers"] == [target]


def test_each_controller_of_a_site_decides_for_itself() -> None:
    both = site("west", "10.0.0.0/25", controllers=[{"name": "default"}, {"name": "research"}])
    made = compiled(controller("default", openflow={"tls": "Required"}), controller("research"), both)
    assert made.nodes["west"]["controllers"] == ["ssl:10.96.0.10:6653", "tcp:10.96.0.11:6653"]


def test_external_controller_with_tls_is_reached_by_tls() -> None:
    external = controller("default", type="External", external={"endpoints": ["tcp:192.0.2.9:6653"]}, openflow={"tls": "Required"})
    world = World(objects=loaded(external, site("west", "10.0.0.0/25")), nodes=(Node(name="west", labels={"site": "west"}),))
    assert compile_world(world).nodes["west"]["controllers"] == ["ssl:192.0.2.9:6653"]


def test_only_a_switch_that_cannot_use_tls_is_an_exception() -> None:
    switches = [{"dpid": "00000000000000ab", "name": "tor", "tls": "Disabled"}, {"dpid": "00000000000000ac"}]
    made = compiled(controller("default", openflow={"tls": "Required"}), site("west", "10.0.0.0/25", datapaths=switches))
    (entry,) = made.controllers["default"]["sites"]
    assert [datapath["dpid"] for datapath in entry["datapaths"] if datapath.get("tls") == "Disabled"] == ["00000000000000ab"]
