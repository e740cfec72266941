"""Test with a model of the switches that base tables deliver a broadcast to every host exactly once, for any layout of sites."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import compile_world
from sos_compile.artifacts import FIGURE8, OVERLAY, example_world
from sos_compile.documents.base_flows import UNTAGGED
from sos_compile.model.network import LAN_OFPORT
from worlds import nodes, obj, site, world

HOST = 7  # port number of the only host of every node, below the numbers that SOS assigns
BROADCASTS = {"arp": {"arp"}, "ip broadcast": {"ip", "udp"}}
MAX_FRAMES = 10_000

Port = tuple[str, int]


@dataclass
class Switch:
    """Model of Open vSwitch with a node-config: two tables, and NORMAL with protected and no-flood ports."""

    config: Mapping[str, Any]
    ports: set[int] = field(default_factory=set)
    protected: set[int] = field(default_factory=set)
    no_flood: set[int] = field(default_factory=set)
    active: int = 0
    """Position of the active uplink among the base uplinks of a bond."""

    def __post_init__(self) -> None:
        trunks = [*self.config["uplinks"], *self.config["tunnels"]]
        hosts = [*self.config["agentPorts"], *self.config.get("lan", [])]
        self.ports = {HOST, *(port["ofport"] for port in (*trunks, *hosts))}
        self.no_flood = {port["ofport"] for port in trunks if not port["base"]}
        self.protected = {port["ofport"] for port in self.config["tunnels"] if port["base"]}  # node-config.md clause 7
        base = [port["ofport"] for port in self.config["uplinks"] if port["base"]]
        self.standby = set(base) - {base[self.active]} if "bond" in self.config else set()  # node-config.md clause 42

    def forward(self, in_port: int, kinds: set[str]) -> tuple[list[int], bool]:
        """Return the output ports of a broadcast, and whether the controllers receive a copy."""
        table, seen = 0, False
        while True:
            flow = max(
                (f for f in self.config["baseFlows"] if f["table"] == table and self._matches(f["match"], in_port, kinds)), key=_priority
            )
            actions = flow["actions"].split(",")
            seen |= any(action.startswith("CONTROLLER") for action in actions)
            if "NORMAL" in actions:
                return self._flood(in_port), seen
            goto = [action for action in actions if action.startswith("goto_table:")]
            if not goto:
                return [], seen
            table = int(goto[0].split(":")[1])

    def _matches(self, match: str, in_port: int, kinds: set[str]) -> bool:
        terms = [term for term in match.split(",") if term]
        known = kinds if "tagged" in kinds else {*kinds, UNTAGGED}
        return all(term == f"in_port={in_port}" if term.startswith("in_port=") else term in known for term in terms)

    def _flood(self, in_port: int) -> list[int]:
        if in_port in self.standby:
            return []
        out = self.ports - {in_port} - self.no_flood - self.standby
        return sorted(out - self.protected if in_port in self.protected else out)


def _priority(flow: Mapping[str, Any]) -> int:
    return int(flow["priority"])


def walk(switches: Mapping[str, Switch], wires: Mapping[Port, Port], origin: str, kinds: set[str]) -> Counter[str]:
    """Return the number of copies of a broadcast from the host of `origin` that each node's host receives. Fail on a loop."""
    heard: Counter[str] = Counter()
    frames: deque[Port] = deque([(origin, HOST)])
    for _ in range(MAX_FRAMES):
        if not frames:
            return heard
        node, in_port = frames.popleft()
        for port in switches[node].forward(in_port, kinds)[0]:
            if port == HOST:
                heard[node] += 1
            elif (node, port) in wires:
                frames.append(wires[node, port])
    raise AssertionError("the broadcast loops")


def tunnel_wires(configs: Mapping[str, Any]) -> dict[Port, Port]:
    """Return both ends of every tunnel. As in the kernel, network identifier and address identify an end."""
    ends = {(port["vni"], node): port["ofport"] for node, config in configs.items() for port in config["tunnels"]}
    pairs: dict[Port, Port] = {}
    for (vni, node), ofport in ends.items():
        others = [(far, far_port) for (far_vni, far), far_port in ends.items() if far_vni == vni and far != node]
        assert len(others) == 1, "a network identifier must join exactly two nodes"
        pairs[node, ofport] = others[0]
    return pairs


def uplink(configs: Mapping[str, Any], node: str, name: str) -> Port:
    return node, next(port["ofport"] for port in configs[node]["uplinks"] if port["name"] == name)


def both_ways(pairs: list[tuple[Port, Port]]) -> dict[Port, Port]:
    return {**dict(pairs), **{b: a for a, b in pairs}}


def check(configs: Mapping[str, Any], wires: Mapping[Port, Port], reached: set[str]) -> None:
    switches = {node: Switch(config) for node, config in configs.items()}
    for kinds in BROADCASTS.values():
        for origin in sorted(reached):
            assert walk(switches, wires, origin, kinds) == Counter(reached - {origin})


def test_figure8_reaches_every_host_of_the_base_tree_once() -> None:
    configs = compile_world(example_world("01-two-sites", FIGURE8)).nodes
    cables = [
        ("edge1", "wan0", "core1", "wan0"),
        ("core1", "wan1", "edge2", "wan0"),
        ("edge1", "wan1", "core2", "wan0"),
        ("core2", "wan1", "edge2", "wan1"),
    ]
    wires = both_ways([(uplink(configs, a, x), uplink(configs, b, y)) for a, x, b, y in cables])
    check(configs, wires, {"edge1", "core1", "edge2"})
    assert walk({node: Switch(config) for node, config in configs.items()}, wires, "core2", {"arp"}) == Counter()


def test_overlay_example_reaches_every_host_once() -> None:
    configs = compile_world(example_world("02-overlay", OVERLAY)).nodes
    check(configs, tunnel_wires(configs), set(OVERLAY))


def test_model_detects_a_ring_of_base_uplinks() -> None:
    configs = dict(compile_world(example_world("01-two-sites", FIGURE8)).nodes)
    looped = {**configs["core2"], "uplinks": [{**port, "base": True} for port in configs["core2"]["uplinks"]]}
    looped["baseFlows"] = [flow for flow in looped["baseFlows"] if flow["actions"] != "drop"]
    switches = {node: Switch(looped) for node in ("a", "b")}
    wires = both_ways(
        [
            (uplink({"a": looped}, "a", "wan0"), uplink({"b": looped}, "b", "wan0")),
            (uplink({"a": looped}, "a", "wan1"), uplink({"b": looped}, "b", "wan1")),
        ]
    )
    try:
        walk(switches, wires, "a", {"arp"})
    except AssertionError:
        return
    raise AssertionError("the model does not detect loops")


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(0, 2))
def test_any_overlay_reaches_every_host_once(counts: list[int], transit: int) -> None:
    names = [f"s{i}" for i in range(len(counts))]
    made = [site(name, *([f"10.{i}.0.0/16"] if i >= transit else [])) for i, name in enumerate(names)]
    machines = nodes(**dict(zip(names, counts, strict=True)))
    configs = compile_world(world(*made, nodes=machines)).nodes
    check(configs, tunnel_wires(configs), {node.name for node in machines})


@given(st.integers(1, 7), st.integers(0, 3), st.integers(0, 2))
def test_any_star_of_uplinks_reaches_every_host_once(leaves: int, dead: int, extra: int) -> None:
    """A hub has many base uplinks, and each leaf has one. Further wires join non-base uplinks of the leaves."""
    names = [f"leaf{i}" for i in range(leaves)]
    made = [
        site("hub", base=leaves, uplinks=leaves + extra),
        *(site(name, f"10.{i}.0.0/16", base=1, uplinks=1 + dead) for i, name in enumerate(names)),
    ]
    compiled = compile_world(world(*made, nodes=nodes(hub=1, **dict.fromkeys(names, 1))))
    assert compiled.problems == ()
    configs = compiled.nodes
    pairs = [(uplink(configs, "hub-0", f"wan{i}"), uplink(configs, f"{name}-0", "wan0")) for i, name in enumerate(names)]
    for number in range(1, 1 + dead):
        ring = [uplink(configs, f"{name}-0", f"wan{number}") for name in names]
        pairs += list(zip(ring[::2], ring[1::2], strict=False))
    check(configs, both_ways(pairs), set(configs))


def bonded_site(name: str, prefix: str, uplinks: int) -> dict[str, Any]:
    made = site(name, prefix, base=uplinks)
    made["spec"]["wan"]["bond"] = {}
    return made


@pytest.mark.parametrize("active", [0, 1])
def test_two_sites_with_bonds_and_two_cables_reach_every_host_once(active: int) -> None:
    made = [bonded_site("west", "10.1.0.0/16", 2), bonded_site("east", "10.2.0.0/16", 2)]
    compiled = compile_world(world(*made, nodes=nodes(west=1, east=1)))
    assert compiled.problems == ()
    configs = compiled.nodes
    wires = both_ways([(uplink(configs, "west-0", name), uplink(configs, "east-0", name)) for name in ("wan0", "wan1")])
    switches = {node: Switch(config, active=active) for node, config in configs.items()}
    for kinds in BROADCASTS.values():
        assert walk(switches, wires, "west-0", kinds) == Counter(["east-0"])
    unbonded = {node: Switch({key: value for key, value in config.items() if key != "bond"}) for node, config in configs.items()}
    with pytest.raises(AssertionError, match="loops"):
        walk(unbonded, wires, "west-0", {"arp"})


@given(st.integers(1, 4), st.integers(0, 1))
def test_any_star_of_sites_with_bonds_reaches_every_host_once(leaves: int, active: int) -> None:
    """A hub forwards between all its base uplinks; two of them lead to each leaf."""
    names = [f"leaf{i}" for i in range(leaves)]
    made = [site("hub", base=2 * leaves), *(bonded_site(name, f"10.{i}.0.0/16", 2) for i, name in enumerate(names))]
    compiled = compile_world(world(*made, nodes=nodes(hub=1, **dict.fromkeys(names, 1))))
    assert compiled.problems == ()
    configs = compiled.nodes
    ends = [(f"wan{2 * i + j}", name, f"wan{j}") for i, name in enumerate(names) for j in range(2)]
    wires = both_ways([(uplink(configs, "hub-0", hub), uplink(configs, f"{name}-0", leaf)) for hub, name, leaf in ends])
    switches = {node: Switch(config, active=active if "bond" in config else 0) for node, config in configs.items()}
    for origin in sorted(configs):
        assert walk(switches, wires, origin, {"arp"}) == Counter(set(configs) - {origin})


def test_a_bond_closes_no_ring_of_declared_links() -> None:
    """Two transit sites with declared links, and a site with a bond that is connected to both."""
    made = [bonded_site("leaf", "10.1.0.0/16", 2), site("t0", base=2), site("t1", base=2)]
    ends = [("t0", "wan0", "t1", "wan0"), ("leaf", "wan0", "t0", "wan1"), ("leaf", "wan1", "t1", "wan1")]
    links = [obj("SosLink", f"l{i}", {"a": {"site": a, "uplink": x}, "b": {"site": b, "uplink": y}}) for i, (a, x, b, y) in enumerate(ends)]
    compiled = compile_world(world(*made, *links, nodes=nodes(leaf=1, t0=1, t1=1)))
    assert compiled.problems == ()
    assert compiled.nodes["leaf-0"]["bond"] == {"mode": "ActiveBackup", "upDelaySeconds": 10}
    made[0]["spec"]["wan"] = {"type": "Uplinks", "uplinks": [{"name": name, "base": True} for name in ("wan0", "wan1")]}
    del made[0]["spec"]["prefixes"]
    problems = compile_world(world(*made, *links, nodes=nodes(leaf=1, t0=1, t1=1))).problems
    assert "BaseLoop" in {problem.reason for problem in problems}


@pytest.mark.parametrize("bond_first", [True, False])
def test_a_bond_and_external_switches_need_different_controllers(bond_first: bool) -> None:
    days = ("2026-01-01", "2026-01-02") if bond_first else ("2026-01-02", "2026-01-01")
    bond, core = bonded_site("west", "10.1.0.0/16", 2), obj("SosSite", "core", {"datapaths": [{"dpid": "00000000000000ff"}]})
    for made, day in zip((bond, core), days, strict=True):
        made["metadata"]["creationTimestamp"] = day
    objects = (bond, core, obj("SosController", "other"))
    (problem,) = compile_world(world(*objects, nodes=nodes(west=1))).problems
    assert (problem.name, problem.path, problem.reason) == ("core" if bond_first else "west", "spec.wan.bond", "BaseLoop")
    core["spec"]["controllers"] = [{"name": "other"}]
    assert compile_world(world(*objects, nodes=nodes(west=1))).problems == ()
    bond["spec"]["datapaths"] = [{"dpid": "00000000000000fe"}]
    (problem,) = compile_world(world(*objects, nodes=nodes(west=1))).problems
    assert (problem.name, problem.reason) == ("west", "BaseLoop")


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    """Draw the parents of the sites 1, 2, ... of a random tree."""
    size = draw(st.integers(1, 8))
    return [draw(st.integers(0, i)) for i in range(size)]


@given(trees(), st.booleans())
def test_any_tree_of_declared_links_is_accepted_and_reaches_every_host_once(parents: list[int], closed: bool) -> None:
    """Several transit sites with several base uplinks need SosLinks. A link that closes a ring causes a problem at the youngest site."""
    degree: Counter[int] = Counter()
    links = []
    edges = [(parent, child + 1) for child, parent in enumerate(parents)]
    if closed and len(edges) > 1:
        edges.append((0, len(parents)) if parents[-1] != 0 else (0, 1))
    for number, (a, b) in enumerate(edges):
        ends = []
        for each in (a, b):
            ends.append({"site": f"t{each}", "uplink": f"wan{degree[each]}"})
            degree[each] += 1
        links.append(obj("SosLink", f"l{number}", {"a": ends[0], "b": ends[1]}))
    count = len(parents) + 1
    made = [site(f"t{i}", base=degree[i], metadata={"creationTimestamp": f"2026-01-{i + 1:02}"}) for i in range(count)]
    compiled = compile_world(world(*made, *links, nodes=nodes(**{f"t{i}": 1 for i in range(count)})))
    if closed and len(edges) > len(parents):
        assert "BaseLoop" in {problem.reason for problem in compiled.problems}
    else:
        assert compiled.problems == ()
    present = [e for e in links if all(f"{e['spec'][end]['site']}-0" in compiled.nodes for end in ("a", "b"))]
    wires = both_ways(
        [
            (
                uplink(compiled.nodes, f"{e['spec']['a']['site']}-0", e["spec"]["a"]["uplink"]),
                uplink(compiled.nodes, f"{e['spec']['b']['site']}-0", e["spec"]["b"]["uplink"]),
            )
            for e in present
        ]
    )
    switches = {node: Switch(config) for node, config in compiled.nodes.items()}
    for origin in switches:
        heard = walk(switches, wires, origin, {"arp"})
        assert set(heard.values()) <= {1}
        if compiled.problems == ():
            assert heard == Counter(set(switches) - {origin})


def test_beacons_and_probes_reach_only_the_controllers() -> None:
    config = compile_world(example_world("01-two-sites", FIGURE8)).nodes["edge1"]
    switch = Switch(config)
    agent = config["agentPorts"][0]["ofport"]
    assert switch.forward(agent, {"dl_type=0x88cc"}) == ([], True)
    assert switch.forward(agent, {"ip", "udp", "nw_dst=198.18.255.254", "tp_dst=9875"}) == ([], True)
    assert switch.forward(agent, {"ip", "udp", "nw_dst=198.18.255.254", "tp_dst=9876"}) == ([], True)


@pytest.mark.parametrize("kinds", [{"arp"}, {"dl_type=0x88cc"}, {"ip", "udp", "nw_dst=198.18.255.254", "tp_dst=9875"}])
def test_tagged_frames_do_not_reach_controllers(kinds: set[str]) -> None:
    """SOS does not use VLANs. NORMAL forwards tagged frames and keeps VLANs apart."""
    switch = Switch(compile_world(example_world("01-two-sites", FIGURE8)).nodes["edge1"])
    assert switch.forward(HOST, kinds)[1]
    out, seen = switch.forward(HOST, {*kinds, "tagged"})
    assert out == switch.forward(HOST, {"ip"})[0] and not seen


def test_controllers_receive_arp_only_from_host_ports() -> None:
    config = compile_world(example_world("01-two-sites", FIGURE8)).nodes["edge1"] | {"lan": [{"name": "lan0", "ofport": LAN_OFPORT}]}
    switch = Switch(config)
    assert switch.forward(HOST, {"arp"})[1]
    assert switch.forward(LAN_OFPORT, {"arp"}) == (sorted({*switch.forward(HOST, {"arp"})[0], HOST} - {LAN_OFPORT}), True)
    for port in [*config["uplinks"], *config["agentPorts"]]:
        assert not switch.forward(port["ofport"], {"arp"})[1]
