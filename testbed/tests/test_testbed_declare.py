"""Examples compile to documents for the nodes of a topology."""

import json
from pathlib import Path, PurePosixPath

import pytest
from sos_compile import Allocations
from sos_testbed.core import controllers
from sos_testbed.core.model import LabError, Topology
from sos_testbed.core.topology import BUILDERS
from sos_testbed.lifecycle import declare
from sos_testbed.lifecycle.lab import Options

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TWO_SITES = EXAMPLES / "01-two-sites"


def topology(name: str = "figure8") -> Topology:
    chosen = BUILDERS[name]
    return chosen.build(chosen.path1, chosen.path2)


@pytest.mark.parametrize("name", [name for name in sorted(BUILDERS) if BUILDERS[name].example == TWO_SITES.name])
def test_the_default_example_fits_every_topology(name: str) -> None:
    of = topology(name)
    documents = declare.compile_lab(declare.load(Options(topology=name).files()), of, 1, Allocations())
    assert set(documents.nodes) == {switch.name for switch in of.switches}
    assert [link.address for link in declare.agent_links(of, documents)] == ["10.0.0.126/24", "10.0.0.254/24"]
    assert len(documents.agent_ids("default")) == 2
    assert documents.switches("default").keys() == {switch.name for switch in of.switches}


def test_each_controller_of_a_lab_has_its_document_and_file() -> None:
    documents = declare.compile_lab(declare.load([EXAMPLES / "05-slices"]), topology(), 1, Allocations())
    assert list(documents.controllers) == ["default", "research"]
    assert documents.switches("research") == documents.switches("default") and len(documents.agent_ids("research")) == 2
    assert {tuple(node["controllers"]) for node in documents.nodes.values()} == {("tcp:172.31.255.1:6653", "tcp:172.31.255.2:6653")}
    written = declare.files(documents, PurePosixPath("/lab"))
    assert json.loads(written["/lab/controller-research-config.json"])["controller"]["name"] == "research"


def test_lab_requires_the_default_controller_and_allows_eight() -> None:
    with pytest.raises(LabError, match="no SosController 'default'"):
        controllers.in_order(["research"])
    with pytest.raises(LabError, match="10 SosControllers; a lab runs 8 at most"):
        controllers.addresses(["default", *(f"c{number}" for number in range(9))])


def test_example_of_the_balance_topology_has_no_agents() -> None:
    documents = declare.compile_lab(declare.load([EXAMPLES / BUILDERS["balance"].example]), topology("balance"), 1, Allocations())
    assert documents.agent_ids("default") == set()
    assert documents.rewriting() == {"edge1"}
    shown = {wire.a.port for wire in topology("balance").wires}
    assert {uplink["name"] for entry in documents.controller["balances"] for uplink in entry["uplinks"]} == shown


def test_documents_and_keys_are_written_to_the_programs_folders() -> None:
    documents = declare.compile_lab(declare.load([TWO_SITES]), topology(), 7, Allocations())
    written = declare.files(documents, PurePosixPath("/lab"))
    assert json.loads(written["/lab/agent-config/edge1.json"])["node"] == "edge1"
    assert json.loads(written["/lab/controller-config.json"])["generation"] == 7 == documents.generation
    keys = declare.key_files(documents, bytes(32), PurePosixPath("/lab"))
    sites = {site["name"]: site["id"] for site in documents.controller["sites"]}
    assert f"/lab/keys/controller/site-{sites['west']}-1" in keys
    assert f"/lab/keys/edge1/pair-{sites['east']}-1" in keys
    assert f"/lab/keys/edge1/pair-{sites['west']}-1" not in keys
    assert keys["/lab/keys/edge1/site-1"] == keys[f"/lab/keys/controller/site-{sites['west']}-1"]
    assert keys[f"/lab/keys/edge1/pair-{sites['east']}-1"] == keys[f"/lab/keys/edge2/pair-{sites['west']}-1"]


def test_without_services_nothing_is_accelerated() -> None:
    documents = declare.compile_lab(declare.load([TWO_SITES], services=False), topology(), 1, Allocations())
    assert documents.controller["services"] == []


def test_apply_replaces_objects_and_delete_removes_them() -> None:
    objects = declare.load([TWO_SITES])
    assert declare.merge(objects, objects) == objects
    less = declare.without_service(objects, "bulk")
    assert len(less) == len(objects) - 1
    assert {json.dumps(loaded.obj, sort_keys=True) for loaded in declare.merge(less, objects)} == {
        json.dumps(loaded.obj, sort_keys=True) for loaded in objects
    }
    with pytest.raises(LabError, match="no SosService default/bulk; there are none"):
        declare.without_service(less, "default/bulk")


def test_allocations_survive_encoding_in_the_labs_folder() -> None:
    documents = declare.compile_lab(declare.load([TWO_SITES]), topology(), 1, Allocations())
    kept = declare.parse_allocations(json.loads(json.dumps(declare.encode_allocations(documents.allocations))))
    again = declare.compile_lab(declare.load([TWO_SITES]), topology(), 1, kept)
    assert again.controller == documents.controller
    assert again.agents == documents.agents


def test_compile_error_is_one_line_with_file_object_and_field() -> None:
    objects = declare.load([TWO_SITES, EXAMPLES / "bad" / "unknown-field.yaml"])
    with pytest.raises(LabError) as caught:
        declare.compile_lab(objects, topology(), 1, Allocations())
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{EXAMPLES / 'bad' / 'unknown-field.yaml'}: SosService default/typo: spec.transprt: ")


def test_error_names_a_missing_folder() -> None:
    with pytest.raises(LabError, match="nowhere"):
        declare.load([Path("nowhere")])


def test_an_example_for_other_sites_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(
        "apiVersion: sos.network/v1alpha1\nkind: SosController\nmetadata: {name: default}\nspec: {type: Managed}\n"
    )
    with pytest.raises(LabError, match="no SosSite selects the nodes of core1, core2, edge1, edge2"):
        declare.compile_lab(declare.load([tmp_path]), topology(), 1, Allocations())


def test_tunnels_of_an_overlay_lab_connect_the_nodes_addresses() -> None:
    of = topology("overlay")
    documents = declare.compile_lab(declare.load(Options(topology="overlay").files()), of, 1, Allocations())
    remotes = {name: [tunnel["remote"] for tunnel in document["tunnels"]] for name, document in documents.nodes.items()}
    assert remotes == {"edge1": ["192.0.2.2"], "edge2": ["192.0.2.1"]}
    assert not any(document["uplinks"] for document in documents.nodes.values())
    assert {document["bridge"]["mtu"] for document in documents.nodes.values()} == {host.mtu for host in of.hosts}
