"""Steps that build a lab, without their execution."""

import json
import re
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sos_testbed.core.model import AgentPlace, Topology
from sos_testbed.core.realise import (
    AgentLink,
    LabPlan,
    Programs,
    build_agent_links,
    build_agents,
    build_controllers,
    build_emulator,
    build_hosts,
    build_network,
    build_switches,
    build_web,
)
from sos_testbed.core.steps import DeleteNamespace, Run, Spawn, Step, Stop, encode_undo, essential, parse_undo
from sos_testbed.core.topology import BUILDERS, POOLS

GOLDEN = Path(__file__).parent / "golden"
PROGRAMS = Programs(
    python="/x/python",
    controller="/x/sos-controller",
    node="/x/sos-node",
    agent="/x/sos-agent",
    linkemu="/x/sos-linkemu",
    buffers="/x/libsos_ovs_buffers.so",
)


def plan(lab_id: str = "abc123") -> LabPlan:
    return LabPlan(lab_id=lab_id, root=PurePosixPath("/run/sos-lab") / lab_id, programs=PROGRAMS)


def topology(name: str) -> Topology:
    chosen = BUILDERS[name]
    return chosen.build(chosen.path1, chosen.path2)


def links(of: Topology) -> tuple[AgentLink, ...]:
    def link(place: AgentPlace, number: int) -> AgentLink:
        return AgentLink(
            place=place,
            interface="net0",
            address=f"10.0.0.{number}/24",
            mac=f"02:53:00:00:00:{number:02x}",
            mtu=1500,
            host_name=f"sosag{list(POOLS.values()).index(place.pool)}",
        )

    return tuple(link(place, 126 + 64 * index) for index, place in enumerate(of.agents))


def everything(of: Topology, where: LabPlan) -> list[Step]:
    return [
        *build_network(of, where),
        *build_emulator(of, where),
        *build_controllers(where),
        *build_switches(of, where),
        *build_hosts(of, where),
        *build_agent_links(links(of), where),
        *build_agents(of, where),
        *build_web(of, where),
    ]


def rendered(step: Step) -> str:
    do = step.do
    what = " ".join(do.argv) if isinstance(do, Run) else f"start {do.name}: {' '.join(do.argv)}" if isinstance(do, Spawn) else str(do)
    return f"{what}\n    undo {json.dumps(encode_undo(step.undo))}"


def test_steps_of_the_line_topology_equal_the_golden_file() -> None:
    steps = [step for step in everything(topology("line"), plan()) if type(step.do).__name__ != "WriteFile"]
    want = (GOLDEN / "line.txt").read_text(encoding="utf-8")
    assert "\n".join(map(rendered, steps)) + "\n" == want


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_every_step_has_an_undo_that_survives_the_journal(name: str) -> None:
    for step in everything(topology(name), plan()):
        assert parse_undo(json.loads(json.dumps(encode_undo(step.undo)))) == step.undo


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_namespaces_are_deleted_after_their_content(name: str) -> None:
    """Create each namespace before all steps inside it: undo runs in reverse order, so the namespace is deleted last."""
    steps = everything(topology(name), plan())
    made = {}
    for place, step in enumerate(steps):
        if isinstance(step.do, Run) and step.do.argv[:3] == ("ip", "netns", "add"):
            made[step.do.argv[3]] = place
            assert step.undo == DeleteNamespace(name=step.do.argv[3])
    for place, step in enumerate(steps):
        words = [] if not isinstance(step.do, Run | Spawn) else step.do.argv
        for word in words:
            if word in made:
                assert made[word] <= place


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_only_commands_inside_deleted_namespaces_need_no_undo(name: str) -> None:
    undos = [step.undo for step in everything(topology(name), plan())]
    kept = essential(undos)
    assert [undo for undo in undos if not isinstance(undo, Run)] == [undo for undo in kept if not isinstance(undo, Run)]
    left_out = [undo.argv for undo in undos if undo not in kept and isinstance(undo, Run)]
    assert left_out and all("sos-abc123-" in f"{argv[2]} {argv[3]}" for argv in left_out)
    without_deletion = [undo for undo in undos if not isinstance(undo, DeleteNamespace)]
    assert essential(without_deletion) == without_deletion


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_every_program_is_stopped_by_its_name(name: str) -> None:
    started = [step for step in everything(topology(name), plan()) if isinstance(step.do, Spawn)]
    names = [step.do.name for step in started if isinstance(step.do, Spawn)]
    assert len(set(names)) == len(names)
    assert [step.undo for step in started] == [Stop(name=name) for name in names]


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_no_command_acts_outside_the_labs_namespaces(name: str) -> None:
    """Check that every ip and OVS command names a namespace of this lab or a file in its folder."""
    for step in everything(topology(name), plan()):
        for argv in [part.argv for part in (step.do, step.undo) if isinstance(part, Run | Spawn)]:
            assert any("abc123" in word for word in argv), argv
            if argv[0] == "ip" and argv[1] != "netns":
                assert "netns" in argv or "-n" in argv


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_interface_names_are_short_enough_and_unique_per_namespace(name: str) -> None:
    seen: set[tuple[str, str]] = set()
    for step in everything(topology(name), plan()):
        argv = step.do.argv if isinstance(step.do, Run) else ()
        for place, word in enumerate(argv):
            if word == "netns" and argv[:3] == ("ip", "link", "add"):
                key = (argv[place + 1], argv[place - 1])
                assert key not in seen
                assert len(key[1]) <= 15
                seen.add(key)
    assert seen


@settings(deadline=None)
@given(st.sampled_from(sorted(BUILDERS)), st.from_regex(r"[a-z0-9]{6}", fullmatch=True), st.from_regex(r"[a-z0-9]{6}", fullmatch=True))
def test_two_labs_share_no_name(name: str, one: str, other: str) -> None:
    if one == other:
        return

    def names(lab_id: str) -> set[str]:
        words = {word for step in everything(topology(name), plan(lab_id)) if isinstance(step.do, Run | Spawn) for word in step.do.argv}
        return {word for word in words if re.match(r"sos-|/run/", word)}

    assert not names(one) & names(other)


def test_hosts_are_configured_only_with_address_and_congestion_control() -> None:
    commands = [step.do.argv for step in everything(topology("figure8"), plan()) if isinstance(step.do, Run)]
    configured = {" ".join(argv[3:]) for argv in commands if argv[:3] == ("ip", "-n", "sos-abc123-client")}
    assert configured == {
        "link set lo up",
        "link set eth0 addrgenmode none up",
        "address replace 10.0.0.11/24 dev eth0",
        "route change 10.0.0.0/24 dev eth0 proto kernel scope link src 10.0.0.11 congctl cubic",
    }
    assert not [argv for argv in commands if "sysctl" in argv or argv[:1] == ("tc",)]


def test_emulator_halves_the_round_trip_time_and_numbers_the_links() -> None:
    (step,) = build_emulator(topology("geni"), plan())
    assert isinstance(step.do, Spawn)
    given_links = [word for word in step.do.argv if word.startswith("A=")]
    assert given_links == [
        "A=w0a,B=w0b,name=edge1-core1,rate=1000000000bit,delay=27000000ns,loss=0.000000000,queue=6750000",
        "A=w2a,B=w2b,name=edge1-core2,rate=1000000000bit,delay=80000000ns,loss=0.000000000,queue=20000000",
    ]


def test_offload_is_set_before_the_switch_starts() -> None:
    order = []
    for step in build_switches(topology("line"), plan()):
        words = " ".join(step.do.argv) if isinstance(step.do, Run | Spawn) else ""
        order += [mark for mark in ("userspace-tso-enable=true", "ovs-vswitchd unix:") if mark in words]
    assert order == ["userspace-tso-enable=true", "ovs-vswitchd unix:"] * 3


def test_rewriting_switches_have_no_segmentation_offload() -> None:
    """Disable segmentation offload at switches that rewrite and at their hosts."""
    of = topology("figure8")
    for rewriting in (frozenset[str](), frozenset({"edge1"}), frozenset({"edge1", "edge2"})):
        where = replace(plan(), rewriting=rewriting)
        words = [" ".join(step.do.argv) for step in everything(of, where) if isinstance(step.do, Run | Spawn)]
        for each in ("userspace-tso-enable=false", "ethtool -K eth0 tx off"):
            assert sum(each in line for line in words) == len(rewriting)
        assert sum("sos-linkemu" in line and "--no-coalesce" in line for line in words) == bool(rewriting)


def test_router_has_an_address_per_leg_and_the_host_a_default_route() -> None:
    words = [" ".join(step.do.argv) for step in build_hosts(topology("balance"), plan()) if isinstance(step.do, Run)]
    assert sum("address replace 192.0.2." in each and "dev leg" in each for each in words) == 5
    assert any("address replace 198.51.100.10/32 dev lo" in each for each in words)
    assert any("sos-abc123-client route add default via 10.0.0.1" in each for each in words)
