"""Validate and compile every file of examples/ with the same schemas and compiler as in a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sos_compile import Compiled, compile_world, load
from sos_compile.artifacts import BALANCE, FIGURE8, OVERLAY, ROOT, example_world
from worlds import nodes, site, world

GOOD = {
    "01-two-sites": FIGURE8,
    "02-overlay": OVERLAY,
    "03-proactive": FIGURE8,
    "04-balance": BALANCE,
    "05-slices": FIGURE8,
    "06-routed": FIGURE8,
    "07-pods": {"a1": "west", "b1": "east"},
    "08-routed-wan": {"agent1": "west", "agent2": "east"},
    "09-two-clusters": {"a1": "a", "b1": "b"},  # both sites in one cluster
}
BAD = {
    "unknown-field": ("SosService default/typo", "spec.transprt", 'unknown field "spec.transprt"'),
    "host-bits": ("SosSite crooked", "spec.prefixes[0]", "network address"),
    "unknown-site": ("SosService default/lost", "spec.to.site", "no SosSite atlantis"),
    "same-site": ("SosService default/circle", "spec", "must differ"),
    "balance-and-transport": ("SosService default/both", "spec.transport", "remove one of the two"),
    "unknown-uplink": ("SosService default/astray", "spec.balance.uplinks[0].name", "has no uplink wan9"),
    "end-before-start": ("SosService default/backwards", "spec.ports[0].endPort", "must not be less than port"),
}


def test_every_example_is_tested_and_explained() -> None:
    folders = {path.name for path in (ROOT / "examples").iterdir() if path.is_dir()}
    assert folders == {*GOOD, "bad"}
    assert {path.stem for path in (ROOT / "examples" / "bad").glob("*.yaml")} == set(BAD)
    for folder in folders:
        explained = (ROOT / "examples" / folder / "README.md").read_text()
        for path in (ROOT / "examples" / folder).glob("*.yaml"):
            assert path.name in explained


@pytest.mark.parametrize("folder", GOOD)
def test_good_examples_have_no_problems(folder: str) -> None:
    compiled = compile_world(example_world(folder, GOOD[folder]))
    assert compiled.problems == ()
    # Nodes of sites without bridges have agents only.
    assert {*compiled.nodes, *(node for _, node in compiled.agents)} == set(GOOD[folder])


def test_encrypted_example_encrypts_every_service() -> None:
    for document in grown(FIGURE8, "encrypted").agents.values():
        assert {each["transport"]["encryption"] for each in document["services"]} == {"TLS"}
    assert grown(FIGURE8, "encrypted").problems == ()


MORE_NODES = {**FIGURE8, "edge3": "west", "edge4": "east"}
THIRD_SITE = {**MORE_NODES, "edge5": "south"}


def grown(nodes: dict[str, str], *folders: str) -> Compiled:
    """Compile example 01 with more folders applied. As with `kubectl apply`, a later object replaces an object with the same name."""
    world = example_world("01-two-sites", nodes)
    later = [loaded for folder in folders for loaded in load([ROOT / "examples" / "01-two-sites" / folder])]
    objects = {(loaded.obj["kind"], loaded.obj["metadata"]["name"]): loaded for loaded in (*world.objects, *later)}
    return compile_world(replace(world, objects=tuple(objects.values())))


GROWN = ((MORE_NODES, "more-nodes"), (THIRD_SITE, "more-nodes", "third-site"), (THIRD_SITE, "more-nodes", "third-site", "external-switch"))


@pytest.mark.parametrize("what", GROWN, ids=lambda what: what[-1])
def test_example_01_grows_by_nodes_a_site_and_a_switch(what: tuple[Any, ...]) -> None:
    nodes, *folders = what
    compiled = grown(nodes, *folders)
    assert compiled.problems == ()
    assert set(compiled.nodes) == set(nodes)
    base = {node: [up["name"] for up in config["uplinks"] if up["base"]] for node, config in compiled.nodes.items()}
    assert [node for node, uplinks in base.items() if len(uplinks) > 1] == ["core1"], "only one hub, so no broadcast loops"


def test_controller_that_forwards_knows_the_ports_for_labelled_paths() -> None:
    def labelled(*folders: str) -> dict[str, Any]:
        sites = grown(THIRD_SITE, *folders).controllers["default"]["sites"]
        return {entry["name"]: entry.get("labelledPorts") for site in sites for entry in site["datapaths"]}

    told = labelled("more-nodes", "third-site", "external-switch")
    assert {name for name, ports in told.items() if ports == ["wan1"]} == {"edge1", "edge2", "edge3", "edge4", "edge5"}
    assert told["core2"] == ["wan0", "wan1", "wan2", "wan3", "wan4"]
    assert (told["core1"], told["tor"]) == (None, None)
    assert set(labelled("more-nodes", "third-site").values()) == {None}, "absent, so that older controllers can read the file"


def test_links_are_discovered_at_uplinks_and_at_declared_ports_of_external_switches() -> None:
    def declared(*folders: str) -> dict[str, Any]:
        sites = grown(THIRD_SITE, *folders).controllers["default"]["sites"]
        return {entry["name"]: entry.get("linkPorts") for site in sites for entry in site["datapaths"]}

    alone = declared("more-nodes", "third-site")
    assert all(ports and all(port.startswith("wan") for port in ports) for ports in alone.values()), alone
    assert declared("more-nodes", "third-site", "external-switch")["tor"] is None, "links of an external switch are discovered at all ports"
    switch = site("far", "10.9.0.0/16", nodeSelector=None, datapaths=[{"dpid": "00000000000000ff", "linkPorts": ["eth2", "eth1"]}])
    del switch["spec"]["nodeSelector"]
    near = site("near", "10.8.0.0/16", network={"lan": [{"name": "eth5"}]}, base=1)
    for others, ports in (((), ["wan0"]), ((switch,), ["eth5", "wan0"])):
        (document,) = compile_world(world(near, *others, nodes=nodes(near=1))).controllers.values()
        found = {entry["dpid"]: entry for each in document["sites"] for entry in each["datapaths"]}
        assert next(entry["linkPorts"] for entry in found.values() if entry["forwarding"] == "Node") == ports
    assert found["00000000000000ff"]["linkPorts"] == ["eth1", "eth2"]


@pytest.mark.parametrize("name", BAD)
def test_bad_examples_yield_one_line_with_file_object_and_field(name: str) -> None:
    path = ROOT / "examples" / "bad" / f"{name}.yaml"
    good = example_world("01-two-sites", FIGURE8)
    before = compile_world(good)
    compiled = compile_world(type(good)(objects=(*good.objects, *load([path])), nodes=good.nodes, observed=good.observed))
    who, where, what = BAD[name]
    assert len(compiled.problems) == 1
    line = compiled.problems[0].line()
    assert line.startswith(f"{path}: {who}: {where}: ")
    assert what in line
    assert "\n" not in line
    assert (compiled.controllers, compiled.nodes, compiled.agents) == (before.controllers, before.nodes, before.agents)


@pytest.fixture(scope="module")
def figure8() -> Compiled:
    return compile_world(example_world("01-two-sites", FIGURE8))


def test_figure8_has_the_documented_addresses(figure8: Compiled) -> None:
    addresses = {node: doc["interface"]["address"] for (_, node), doc in figure8.agents.items()}
    assert addresses == {"edge1": "10.0.0.126/24", "edge2": "10.0.0.254/24"}
    assert {doc["bridge"]["name"] for doc in figure8.nodes.values()} == {"br-sos"}
    entry = figure8.controllers["default"]["services"][0]
    assert entry["id"] == "default/bulk"
    assert [(port["first"], port["last"]) for port in entry["ports"]] == [(22, 22), (80, 80), (443, 443), (5000, 5999)]


def test_slices_share_all_sites_but_have_their_own_services() -> None:
    compiled = compile_world(example_world("05-slices", FIGURE8))
    one, other = (compiled.controllers[name] for name in ("default", "research"))
    assert one["sites"] == other["sites"]
    assert [[entry["id"] for entry in made["services"]] for made in (one, other)] == [["default/bulk"], ["default/archive"]]
    assert {len(doc["controllers"]) for doc in compiled.nodes.values()} == {2}


def test_datapath_id_contains_the_site_id(figure8: Compiled) -> None:
    for doc in figure8.nodes.values():
        assert int(doc["bridge"]["datapathId"], 16) >> 48 == doc["siteID"]


def test_service_file_contains_only_the_service() -> None:
    objects = load([Path(ROOT / "examples" / "01-two-sites" / "sosservice.yaml")])
    assert [item.obj["kind"] for item in objects] == ["SosService"]
