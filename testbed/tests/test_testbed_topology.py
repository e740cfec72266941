"""Topologies as data, and the syntax of path options."""

from ipaddress import IPv4Interface

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sos_testbed.core.model import AgentPlace, End, Host, LabError, Shape, Switch, Topology, Wire, bdp_bytes
from sos_testbed.core.topology import BUILDERS, PathOptions, builder, parse_loss, parse_queue, parse_rate, parse_time_us


@pytest.mark.parametrize(
    ("text", "bits"),
    [("500mbit", 500_000_000), ("1gbit", 10**9), ("1.5g", 1_500_000_000), ("64kbit", 64_000), ("1000000", 10**6), ("10Mbps", 10**7)],
)
def test_rates_are_parsed_with_units(text: str, bits: int) -> None:
    assert parse_rate(text) == bits


@pytest.mark.parametrize(("text", "us"), [("59ms", 59_000), ("800us", 800), ("0.2s", 200_000), ("59", 59_000), ("29.5ms", 29_500)])
def test_times_are_parsed_with_units(text: str, us: int) -> None:
    assert parse_time_us(text) == us


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.01", 0.01), ("0", 0.0), ("0.5 %", 0.005)])
def test_losses_are_parsed_as_percentage_or_share(text: str, share: float) -> None:
    assert parse_loss(text) == pytest.approx(share)


@pytest.mark.parametrize(("text", "size"), [("bdp", None), ("1m", 10**6), ("256ki", 262_144), ("1500", 1500), ("1mb", 10**6)])
def test_queue_sizes_are_parsed_with_units(text: str, size: int | None) -> None:
    assert parse_queue(text) == size


@pytest.mark.parametrize(
    ("parse", "text", "option"),
    [
        (parse_rate, "fast", "--rate"),
        (parse_time_us, "59 furlongs", "--rtt"),
        (parse_loss, "1", "--loss"),
        (parse_queue, "long", "--queue"),
    ],
)
def test_errors_name_the_option_and_the_text(parse, text: str, option: str) -> None:
    with pytest.raises(LabError, match=option) as caught:
        parse(text)
    assert repr(text) in str(caught.value)


@settings(deadline=None)
@given(st.integers(10**6, 10**10), st.integers(0, 10**6))
def test_default_queue_is_one_bdp_and_never_less_than_a_burst(rate: int, rtt: int) -> None:
    assert PathOptions(rate_bps=rate, rtt_us=rtt).shape().queue_bytes == max(rate * rtt // 8_000_000, 64 * 1538) == bdp_bytes(rate, rtt)


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_every_topology_connects_all_its_parts(name: str) -> None:
    chosen = BUILDERS[name]
    topology = chosen.build(chosen.path1, chosen.path2)
    reached, left = {topology.wires[0].a.switch}, True
    while left:
        more = {end.switch for wire in topology.wires for end in (wire.a, wire.b) if {wire.a.switch, wire.b.switch} & reached}
        left = not more <= reached
        reached |= more
    assert reached == {part.name for part in (*topology.switches, *topology.nodes, *topology.routers)}
    assert len(topology.hosts) + len(topology.routers) == 2


def test_balance_has_five_distinct_wires_to_one_router() -> None:
    chosen = builder("balance")
    topology = chosen.build(PathOptions(rtt_us=10_000), PathOptions(rtt_us=20_000))
    assert [wire.name for wire in topology.wires] == [f"edge1.wan{i}" for i in range(5)]
    assert [wire.shape.rtt_us for wire in topology.shaped() if wire.shape] == [10_000, 20_000, 10_000, 10_000, 10_000]
    assert topology.wire("edge1.wan3") is topology.wire("router.leg3") is topology.wires[3]
    assert topology.links() == ()
    with pytest.raises(LabError, match=r"edge1\.wan0, edge1\.wan1"):
        topology.wire("edge1-router")


def test_geni_has_the_round_trip_times_of_the_thesis() -> None:
    chosen = builder("geni")
    shapes = [wire.shape for wire in chosen.build(chosen.path1, chosen.path2).shaped()]
    assert [shape.rtt_us for shape in shapes if shape] == [54_000, 160_000]


def test_figure8_has_one_emulated_link_per_path() -> None:
    chosen = builder("figure8")
    topology = chosen.build(PathOptions(rtt_us=10_000), PathOptions(rtt_us=20_000))
    assert [str(wire.a) for wire in topology.shaped()] == ["edge1.wan0", "edge1.wan1"]
    assert topology.wire("edge1-core2") is topology.wire("core2-edge1") is topology.wire("edge1.wan1")


def test_errors_for_unknown_names_list_the_known_names() -> None:
    with pytest.raises(LabError, match="balance, figure8, geni, line"):
        builder("ring")
    chosen = builder("line")
    with pytest.raises(LabError, match="edge1-core1, core1-edge2"):
        chosen.build(chosen.path1, chosen.path2).wire("edge1-edge2")


SWITCHES = (Switch(name="s1", site="west"), Switch(name="s2", site="east"))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hosts": (Host(name="s1", switch="s1", address=IPv4Interface("10.0.0.1/24")),)}, "s1 used twice"),
        ({"agents": (AgentPlace(name="a", switch="s9"),)}, "unknown switch 's9'"),
        ({"wires": (Wire(a=End(switch="s1", port="wan0"), b=End(switch="s9", port="wan0")),)}, "s9.wan0 does not exist"),
        ({"hosts": (Host(name="A Host", switch="s1", address=IPv4Interface("10.0.0.1/24")),)}, "'A Host' is not a name"),
        ({"switches": tuple(Switch(name=f"s{number}", site="x") for number in range(65))}, "more than 64"),
    ],
)
def test_impossible_topologies_are_refused(changes, complaint: str) -> None:
    parts = {"switches": SWITCHES, "hosts": (), "agents": (), "wires": ()} | changes
    with pytest.raises(LabError, match=complaint):
        Topology(name="x", **parts)


@pytest.mark.parametrize("change", [{"rate_bps": 1}, {"rtt_us": -1}, {"loss": 1.0}, {"queue_bytes": 0}])
def test_impossible_shapes_are_refused(change) -> None:
    good = {"rate_bps": 10**8, "rtt_us": 1000, "loss": 0.0, "queue_bytes": 10**6}
    Shape(**good)
    with pytest.raises(LabError):
        Shape(**(good | change))
