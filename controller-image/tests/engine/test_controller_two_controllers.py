"""Test two controllers over the same switches and agents: each controller changes only its own entries, also when it stops."""

from __future__ import annotations

from typing import Any

import pytest
from controller_fake import FakeNetwork
from controller_lab import HOSTS, MACS, document, document_hash
from controller_world import CLIENT_PORT, INGRESS_PORT, World, syn_frame
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.openflow import pipeline
from sos_controller.core.openflow.flow_entries import FlowEntry
from sos_controller.core.services.proactive import UNARMED_S
from sos_controller.core.types import DatapathId, Location, PortNo, parse_address, parse_mac

FIRST, SECOND = 1, 2
PORTS = {FIRST: (5000, 5499), SECOND: (5500, 5999)}
STREAM_PORT = 10_000


def config(number: int, setup: str = "Reactive") -> dict[str, Any]:
    made = document(ports=PORTS[number])
    made["controller"] = {"name": f"slice{number}", "id": number}
    made["services"][0] |= {"id": f"default/slice{number}", "setup": setup}
    del made["hash"]
    return {**made, "hash": document_hash(made)}


def pair(setup: str = "Reactive") -> tuple[World, World]:
    """Return two converged controllers in one network."""
    first = up(config(FIRST, setup))
    second = up(config(SECOND, setup), first.network)
    first.tick(1)
    return first, second


def up(made: dict[str, Any], network: FakeNetwork | None = None) -> World:
    world = World(made, network)
    world.converge()
    world.tick(UNARMED_S + 1)
    assert world.service() == "Programmed/Programmed"
    world.punt_cookie = pipeline.cookie(made["controller"]["id"], pipeline.Kind.PUNT, 1)
    return world


def owned(network: FakeNetwork, number: int) -> dict[DatapathId, list[FlowEntry]]:
    value, mask = pipeline.owner(number)
    found = {dpid: [e for e in network.entries(dpid) if e.cookie & mask == value] for dpid in network.tables}
    return {dpid: sorted(entries, key=repr) for dpid, entries in found.items() if entries}


def stream(world: World) -> list[tuple[Location, bytes]]:
    """Return the output port and frame of a segment of the first stream from agent1 to agent2."""
    ingress, egress = (parse_address(HOSTS[name][1]) for name in ("agent1", "agent2"))
    frame = syn_frame(ingress, egress, 40000, STREAM_PORT, flags=0x10, mac="agent1")
    return world.network.walk(Location(world.west, PortNo(INGRESS_PORT)), parse_mac(MACS["agent2"]) + frame[6:])


@pytest.mark.parametrize("setup", ["Reactive", "Proactive"])
def test_each_controller_has_the_entries_that_it_would_have_alone(setup: str) -> None:
    together, _ = pair(setup)
    for number in PORTS:
        alone = up(config(number, setup))
        assert owned(together.network, number) == owned(alone.network, number)


@pytest.mark.parametrize("leaver", [FIRST, SECOND])
def test_paths_remain_when_either_controller_leaves(leaver: int) -> None:
    first, second = pair()
    before = stream(first)
    assert [where for where, _ in before] == [Location(second.east, PortNo(4))]
    value, mask = pipeline.owner(leaver)
    for table in first.network.tables.values():
        for key in [key for key, entry in table.items() if entry.cookie & mask == value]:
            del table[key]
    assert stream(first) == before


def test_each_controller_receives_its_own_connections() -> None:
    first, second = pair()
    for world, dport in ((first, 5001), (second, 5501)):
        client, server = (parse_address(HOSTS[name][1]) for name in ("client", "server"))
        segment = syn_frame(client, server, 40000, dport)
        here = Location(world.west, PortNo(CLIENT_PORT))
        entry = world.network._lookup(here, 0, segment)
        assert entry is not None and entry.cookie >> 32 == world.punt_cookie >> 32
        world.syn(40000, dport=dport)
        world.tick(0.1)
        ((where, _),) = world.network.walk(here, syn_frame(client, server, 40000, dport, flags=0x10))
        assert where == Location(world.west, PortNo(INGRESS_PORT))
    assert not any(world.engine.state.counters["bugs", ""] for world in (first, second))


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_priorities_of_controllers_stay_in_their_bands(one: int, other: int) -> None:
    bands = (pipeline.PRIORITY_PATH, pipeline.PRIORITY_GUARD, pipeline.PRIORITY_SERVICE, pipeline.PRIORITY_UNARMED, pipeline.PRIORITY_PUNT)
    cookies = [pipeline.cookie(number, pipeline.Kind.PATH, 1) for number in (one, other)]
    for band in bands:
        mine, theirs = (pipeline.shared(band, cookie) for cookie in cookies)
        assert band <= mine < band + pipeline.SLICES
        assert (mine == theirs) == (one % pipeline.SLICES == other % pipeline.SLICES)
    ceilings = {pipeline.PRIORITY_TO_CONTROLLER, pipeline.PRIORITY_MEASURE, pipeline.PRIORITY_REDIRECT, pipeline.PRIORITY_OBSERVE}
    for band in bands:
        assert not any(band <= other < band + pipeline.SLICES for other in ceilings | set(bands) - {band})
