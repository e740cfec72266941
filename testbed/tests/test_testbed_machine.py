"""Options of a lab that come from the machine: the switches' datapath and the factor of all time limits."""

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from sos_compile import Allocations
from sos_testbed.core.model import LabError, Topology
from sos_testbed.core.realise import LabPlan, Programs, ovs
from sos_testbed.core.topology import BUILDERS
from sos_testbed.lifecycle import declare
from sos_testbed.lifecycle.lab import REWRITE, Options
from sos_testbed.lifecycle.time_factor import limit_s, parse_factor

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TWO_SITES = EXAMPLES / "01-two-sites"
PROGRAMS = Programs(python="/x/python", controller="/x/c", node="/x/n", agent="/x/a", linkemu="/x/l")


def topology(name: str) -> Topology:
    chosen = BUILDERS[name]
    return chosen.build(chosen.path1, chosen.path2)


def datapaths(objects: tuple[declare.Loaded, ...], kind: str | None) -> set[str]:
    documents = declare.compile_lab(objects, topology("figure8"), 1, Allocations(), kind)
    return {document["bridge"]["datapathType"] for document in documents.nodes.values()}


def test_option_replaces_the_datapath_of_all_switches_and_nothing_else() -> None:
    objects = declare.load([TWO_SITES, REWRITE])
    assert datapaths(objects, None) == {"Auto"}
    assert datapaths(objects, "System") == {"system"}
    assert datapaths(declare.on_datapath(objects, "Netdev"), None) == {"netdev"}
    rewriting = declare.compile_lab(objects, topology("figure8"), 1, Allocations(), "System").rewriting()
    assert rewriting == {"edge1", "edge2"}
    changed = declare.on_datapath(objects, "System")
    assert [loaded.obj for loaded in changed if loaded.obj["kind"] != "SosSite"] == [o.obj for o in objects if o.obj["kind"] != "SosSite"]


def test_sites_without_a_bridge_have_no_datapath() -> None:
    objects = declare.load([EXAMPLES / "08-routed-wan"])
    assert declare.on_datapath(objects, "System") == objects


def test_malformed_sites_are_left_to_the_compiler() -> None:
    (site, *_) = [loaded for loaded in declare.load([TWO_SITES]) if loaded.obj["kind"] == "SosSite"]
    broken = replace(site, obj={"kind": "SosSite", "spec": ["not", "a", "map"]})
    odd = replace(site, obj={**site.obj, "spec": {**site.obj["spec"], "datapath": "kernel"}})
    assert declare.on_datapath([broken, odd], "System") == (broken, odd)


def test_datapath_is_chosen_by_the_option_before_the_environment() -> None:
    assert Options().chosen_datapath({}) is None
    assert Options().chosen_datapath({"SOS_DATAPATH": ""}) is None
    assert Options().chosen_datapath({"SOS_DATAPATH": "system"}) == "System"
    assert Options(datapath="netdev").chosen_datapath({"SOS_DATAPATH": "System"}) == "Netdev"
    with pytest.raises(LabError, match="no datapath 'dpdk'; there are Auto, System, Netdev"):
        Options().chosen_datapath({"SOS_DATAPATH": "dpdk"})


def test_time_factor_multiplies_every_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOS_TIME_FACTOR", raising=False)
    assert limit_s(30) == 30
    monkeypatch.setenv("SOS_TIME_FACTOR", "2.5")
    assert limit_s(30) == 75
    plan = LabPlan(lab_id="abc123", root=PurePosixPath("/lab"), programs=PROGRAMS, time_factor=2.5)
    assert "--timeout=50" in ovs(plan, "edge1", "ovs-vsctl", "show")


@pytest.mark.parametrize("text", ["0.5", "0", "-1", "101", "inf", "nan", "fast"])
def test_time_factors_outside_their_range_are_refused(text: str) -> None:
    with pytest.raises(LabError, match=r"SOS_TIME_FACTOR: .* is not a number from 1 to 100"):
        parse_factor({"SOS_TIME_FACTOR": text})
