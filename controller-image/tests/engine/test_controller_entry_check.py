"""Tests of the check of external switches: one that does not have the entries that it acknowledges is named, and forwards plain traffic."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from controller_fake import C1, C2, E1, E2, FakeNetwork
from controller_lab import document
from controller_views import AT_CLIENT, AT_SERVER
from controller_world import World, syn_frame
from sos_controller.core import snapshot
from sos_controller.core.commands import Apply
from sos_controller.core.entry_check import AGAIN_S
from sos_controller.core.openflow.flow_entries import FlowEntry
from sos_controller.core.openflow.pipeline import PRIORITY_HOST, PRIORITY_TEST
from sos_controller.core.types import DatapathId

LATE_S = 2.0


class Proxied(FakeNetwork):
    """Network with a proxy in front of one switch that changes flow-mods."""

    def __init__(self, dpid: DatapathId, kind: str) -> None:
        super().__init__()
        self.dpid, self.kind, self.now = dpid, kind, 0.0
        self.waiting: list[tuple[float, Apply]] = []
        self.barriers: list[float] = []

    def apply(self, command: Apply, now: float) -> list[FlowEntry]:
        if command.dpid != self.dpid or self.kind == "honest":
            return super().apply(command, now)
        if self.kind == "late":
            self.waiting.append((now + LATE_S, command))
            return []
        adds, deletes = (tuple(map(self.stripped, entries)) for entries in (command.adds, command.deletes))
        return super().apply(msgspec.structs.replace(command, adds=adds, deletes=deletes), now)

    @staticmethod
    def stripped(entry: FlowEntry) -> FlowEntry:
        return msgspec.structs.replace(entry, match=msgspec.structs.replace(entry.match, eth_src=None, eth_dst=None))

    def catch_up(self, now: float) -> None:
        due, self.waiting = [w for w in self.waiting if w[0] <= now], [w for w in self.waiting if w[0] > now]
        for at, command in due:
            super().apply(command, at)


def world_with(kind: str, dpid: DatapathId) -> tuple[World, Proxied]:
    network = Proxied(dpid, kind)
    world = World(document(forwarding="Controller"), network=network)
    world.connect()
    pass_time(world, 8.0)
    return world, network


def pass_time(world: World, seconds: float) -> None:
    for _ in range(round(seconds / 0.1)):
        world.network.catch_up(world.now)  # type: ignore[attr-defined]
        world.tick(0.1, step=0.1)


def row(world: World) -> dict[str, Any]:
    (found,) = snapshot.status(world.engine, "", "")["services"]
    return dict(found)


@pytest.mark.parametrize("dpid", [E1, E2])
@pytest.mark.parametrize(("kind", "text"), [("no-macs", "ignores MAC addresses"), ("late", "acknowledges entries before it applies them")])
def test_switch_that_lacks_acknowledged_entries_is_named(kind: str, text: str, dpid: DatapathId) -> None:
    world, _ = world_with(kind, dpid)
    assert row(world)["reason"] == "EntriesNotApplied"
    assert row(world)["message"].startswith(f"datapath {'edge1' if dpid == E1 else 'edge2'}: {text}")
    pass_time(world, AGAIN_S + 5)
    assert row(world)["reason"] == "EntriesNotApplied", "an entry that has become effective meanwhile does not count"


@pytest.mark.parametrize("kind", ["no-macs", "late"])
def test_plain_traffic_passes_a_switch_that_lacks_acknowledged_entries(kind: str) -> None:
    world, network = world_with(kind, E1)
    frame = syn_frame(10 << 24 | 11, 10 << 24 | 139, 40_000, 5001, 1)
    assert [where for where, _ in network.walk(AT_CLIENT, frame)].count(AT_SERVER) == 1
    assert not any(entry.priority == PRIORITY_HOST for dpid in (E1, E2, C1, C2) for entry in network.entries(dpid))
    world.syn(40_000)
    assert not world.engine.state.sessions, "no session begins at the switch"


def test_transit_switch_that_lacks_entries_is_not_part_of_paths() -> None:
    world, _ = world_with("late", C1)
    assert row(world)["reason"] == "Programmed", "the path over the other core is used"
    (pair,) = world.engine.plan.pairs.values()
    assert C1 not in pair.dpids


def test_switch_that_is_repaired_is_used_after_the_next_check() -> None:
    world, network = world_with("no-macs", E1)
    network.kind = "honest"
    pass_time(world, AGAIN_S + 5)
    assert row(world)["reason"] == "Programmed" and not world.engine.state.inaccurate
    world.syn(40_000)
    assert world.engine.state.sessions


def test_accurate_switch_is_checked_once_and_used_again_after_a_restart() -> None:
    world, network = world_with("honest", E1)
    assert row(world)["reason"] == "Programmed"
    tests = [entry for entry in network.entries(E1) if entry.priority == PRIORITY_TEST]
    assert len(tests) == 1
    reads = world.reads[E1]
    pass_time(world, 30)
    assert world.reads[E1] == reads
    again = World(document(forwarding="Controller"), network=network, epoch=2, now=world.now + 10)
    again.connect()
    assert again.engine.state.accurate == {E1, E2, C1, C2}, "the entry of the earlier run is sufficient"


def test_failed_switch_keeps_no_test_entry_that_the_next_run_could_find() -> None:
    world, network = world_with("late", E1)
    pass_time(world, 5)
    assert not any(entry.priority == PRIORITY_TEST for entry in network.entries(E1)) and world.engine.state.inaccurate
    again = World(document(forwarding="Controller"), network=network, epoch=2, now=world.now + 10)
    again.connect()
    pass_time(again, 8)
    assert row(again)["reason"] == "EntriesNotApplied"
