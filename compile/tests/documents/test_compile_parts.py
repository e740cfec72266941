"""Test documents whose common members are in files of their own."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from sos_compile import Compiled, Memo, Node, World, compile_world, draft
from sos_compile.documents import parts
from sos_compile.documents.node_config import vni
from sos_compile.manifests.common import MAX_CONFIG_MAP_BYTES, config_map_bytes
from sos_compile.model.formats.shared import content_hash
from sos_compile.model.network import REJECT_OFPORT
from sos_compile.model.world import Json
from worlds import nodes, service, site, world, worlds


def shared(given_world: World) -> Compiled:
    """Compile with parts, however small the documents are."""
    return compile_world(replace(given_world, settings=replace(given_world.settings, share_from_bytes=0)))


def two_sites(machines: int, services: int) -> World:
    """Two sites with this number of nodes each, an agent on every node, and services from one to the other."""
    made = [service(f"s{i}", "west", "east", 1000 + i) for i in range(services)]
    ends = site("west", "10.0.0.0/16", base=1), site("east", "10.1.0.0/16", base=1)
    return world(*ends, *made, nodes=nodes(west=machines, east=machines))


def config_maps(compiled: Compiled, kind: str) -> list[Json]:
    found = [each for each in compiled.manifests if each["kind"] == "ConfigMap"]
    return [each for each in found if each["metadata"]["labels"]["app.kubernetes.io/component"] == kind]


def expand(document: Json) -> Json:
    """Return the node-config that sos-node derives from a document with a mesh (spec/node-config.md clause 47)."""
    mesh, own = document.get("mesh") or {"nodes": {}}, document.get("number")
    others = {int(number): address for number, address in mesh["nodes"].items() if int(number) != own}
    tunnels = [
        {"name": f"sosvx{n}", "ofport": 35000 + n, "remote": address, "vni": vni(n, own), "udpPort": mesh["udpPort"], "base": True}
        for n, address in others.items()
        if str(own) in mesh["nodes"]
    ]
    flows = [
        {**{key: group[key] for key in ("table", "priority", "actions")}, "match": match}
        for group in document.get("flowGroups", ())
        for match in group["matches"]
    ]
    rest = {key: value for key, value in document.items() if key not in ("mesh", "number", "flowGroups", "hash")}
    return {**rest, "tunnels": [*document["tunnels"], *tunnels], "baseFlows": [*document["baseFlows"], *flows]}


def of_own_ports(document: Json) -> Json:
    """A node-config without the entries for ports that the node does not have, and with its lists in order."""
    lists = ("uplinks", "tunnels", "agentPorts", "lan")
    ports = {port["ofport"] for key in lists for port in document.get(key, ())} | {REJECT_OFPORT}
    there = [flow for flow in document["baseFlows"] if not (found := re.match(r"in_port=(\d+)", flow["match"])) or int(found[1]) in ports]
    ordered = sorted(there, key=lambda flow: json.dumps(flow, sort_keys=True))
    return {**document, "baseFlows": ordered, "tunnels": sorted(document["tunnels"], key=lambda port: port["ofport"])}


def standalone(compiled: Compiled) -> dict[str, dict[str, Json]]:
    return {
        "nodes": {name: parts.standalone(each, compiled.parts) for name, each in compiled.nodes.items()},
        "agents": {"/".join(name): parts.standalone(each, compiled.parts) for name, each in compiled.agents.items()},
    }


@given(worlds())
def test_documents_with_parts_have_the_content_of_documents_without(given_world: World) -> None:
    whole, split = compile_world(given_world), shared(given_world)
    assert standalone(split)["agents"] == {"/".join(name): each for name, each in whole.agents.items()}
    for name, document in standalone(split)["nodes"].items():
        expanded, expected = of_own_ports(expand(document)), of_own_ports(expand(whole.nodes[name]))
        # An agent that a CNI plugin attaches has entries, but no port in the document.
        assert expanded["tunnels"] == expected["tunnels"]
        assert expanded == expected
    for document in (*split.nodes.values(), *split.agents.values()):
        assert document["hash"] == content_hash(document)
        assert all(content_hash(split.parts[part]) == part for part in document.get("include", ()))


def test_files_of_a_folder_are_complete() -> None:
    compiled = shared(two_sites(3, 2))
    for config_map in config_maps(compiled, "agent"):
        files = {name: json.loads(text) for name, text in config_map["data"].items()}
        documents = {name: each for name, each in files.items() if not name.startswith("part-")}
        assert len(documents) == 3
        named = {parts.file_name(part) for each in documents.values() for part in each["include"]}
        assert named == {name for name in files if name.startswith("part-")}, "every part is named by a document, and no other is there"
        assert all(parts.file_name(content_hash(files[name])) == name for name in named)


def test_few_short_documents_have_no_parts() -> None:
    compiled = compile_world(two_sites(3, 2))
    assert not compiled.parts
    assert not any("include" in each for each in compiled.agents.values())


def test_documents_of_a_thousand_services_and_ten_agents_fit() -> None:
    """Without parts, the limit of a ConfigMap ended at four agents."""
    compiled = compile_world(two_sites(10, 1000))
    assert not compiled.problems
    sizes = [config_map_bytes(each) for each in config_maps(compiled, "agent")]
    assert len(sizes) == 2
    assert max(sizes) < MAX_CONFIG_MAP_BYTES / 2


@pytest.mark.parametrize("machines", [200, 1000])
def test_documents_of_an_overlay_site_fit(machines: int) -> None:
    """Each node has a tunnel to every other node: without parts, the limit of a ConfigMap ended at some fifty nodes."""
    names = [f"ip-10-0-{i // 250}-{i % 250 + 1}.internal" for i in range(machines)]
    placed = tuple(Node(name, {"sos.network/site": "west"}, f"192.0.{i // 250}.{i % 250 + 1}") for i, name in enumerate(names))
    compiled = compile_world(
        world(
            site("west", "10.0.0.0/16", wan={"type": "Overlay"}),
            site("east", "10.1.0.0/16", wan={"type": "Overlay"}),
            service("s", "west", "east", 80),
            nodes=(*placed, Node("far", {"sos.network/site": "east"}, "192.0.100.1")),
        )
    )
    assert not compiled.problems
    sizes = {each["metadata"]["name"]: config_map_bytes(each) for each in (*config_maps(compiled, "node"), *config_maps(compiled, "agent"))}
    assert max(sizes.values()) < MAX_CONFIG_MAP_BYTES, sizes
    document = expand(parts.standalone(compiled.nodes[names[0]], compiled.parts))
    assert len(document["tunnels"]) == machines


def test_a_change_of_one_service_changes_the_part_and_each_document_that_names_it() -> None:
    memo = Memo()
    before, after = (draft(two_sites(3, count), memo) for count in (1000, 999))
    assert not set(before.parts) & set(after.parts)
    agents = [name for name in before.documents if name[0] == "agent"]
    assert len(agents) == 6
    assert not any(before.documents[name]["hash"] == after.documents[name]["hash"] for name in agents)
    again = draft(two_sites(3, 999), memo)
    assert {name: again.documents[name] for name in agents} == {name: after.documents[name] for name in agents}


def test_written_documents_stand_beside_their_parts(tmp_path: Path) -> None:
    from sos_compile.__main__ import _write

    compiled = shared(two_sites(2, 1))
    _write(compiled, tmp_path)
    document = json.loads((tmp_path / "agent" / "default" / "west-0.json").read_text())
    assert all((tmp_path / "agent" / "default" / parts.file_name(part)).is_file() for part in document["include"])


def test_a_missing_part_is_an_error() -> None:
    with pytest.raises(KeyError):
        parts.standalone({"include": ["sha256:00"]}, {})
