"""Test the order of output: each delayed packet leaves after its own delay, and messages to a switch leave in the order of queueing."""

from __future__ import annotations

import time
from types import SimpleNamespace

from sos_controller.app import Controller
from sos_controller.core.commands import PacketOut
from sos_controller.core.engine import Engine
from sos_controller.core.events import DatapathDown, EndLeases
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.state import Identity
from sos_controller.core.types import DatapathId, PortNo
from sos_controller.openflow.framework import eventlet

DPID = DatapathId(1)


class Wire:
    """Connection that records its messages."""

    def __init__(self) -> None:
        self.dpid = DPID
        self.queued: list[bytes] = []
        self.sent: list[bytes] = []

    def queue(self, data: bytes) -> None:
        self.queued.append(data[-1:])

    def kick(self) -> None:
        self.sent += self.queued
        self.queued.clear()


def late(name: bytes, after_s: float) -> PacketOut:
    return PacketOut(DPID, PortNo(1), (Output(PortNo(2)),), name, after_s)


def _controller() -> tuple[Controller, Wire]:
    controller, wire = Controller(Engine(Identity(1, 1, 1, b"key"))), Wire()
    controller._connections[DPID] = wire  # type: ignore[assignment]
    return controller, wire


def test_packet_with_a_shorter_delay_overtakes_an_earlier_packet() -> None:
    controller, wire = _controller()
    for command in (late(b"c", 0.3), late(b"a", 0.05), late(b"b", 0.1), late(b"d", 0.4)):
        controller.carry_out([command])
    assert not wire.sent
    while len(wire.sent) < 4:
        eventlet.sleep(0.01)
    assert wire.sent == [b"a", b"b", b"c", b"d"]
    assert not controller._delayed and controller._delay_timer is None


def test_delayed_packets_of_a_lost_connection_are_dropped() -> None:
    controller, wire = _controller()
    controller.carry_out([late(b"a", 0.02)])
    controller._connections[DPID] = SimpleNamespace(kick=lambda: None)  # type: ignore[assignment]
    while controller._delayed:
        eventlet.sleep(0.01)
    assert not wire.sent and not wire.queued


def test_commands_caused_by_a_broken_connection_do_not_overtake_older_commands() -> None:
    controller, first = _controller()
    second, other = Wire(), DatapathId(2)
    controller._connections[other] = second  # type: ignore[assignment]
    written: list[bytes] = []
    second.queue = written.append  # type: ignore[method-assign]
    first.queue = lambda _: controller.disconnected(first)  # type: ignore[method-assign, assignment, arg-type]
    older, newer = (PacketOut(other, PortNo(1), (Output(PortNo(2)),), name) for name in (b"older", b"newer"))
    controller.engine._handlers[DatapathDown] = lambda _: controller.engine.state.out.append(newer)
    controller.carry_out([late(b"a", 0.0), older])
    controller.flush()
    all_written = b"".join(written)
    assert 0 < all_written.find(b"older") < all_written.find(b"newer")


def test_graceful_shutdown_finishes_set_ups_and_delayed_sends_within_a_bound() -> None:
    for opening_s, waits in ((0.1, True), (1e9, True), (0.0, False)):
        controller, wire = _controller()
        engine = controller.engine
        engine.setup._opening_until = time.monotonic() + opening_s
        still_opening: list[bool] = []
        engine._handlers[EndLeases] = lambda _, setup=engine.setup, seen=still_opening: seen.append(setup.is_opening(time.monotonic()))
        if waits:
            controller.carry_out([late(b"a", 0.05)])
        controller.leave(0.2)
        assert still_opening == [opening_s == 1e9], "shutdown ends before all set-ups are complete"
        assert controller.engine.setup.is_leaving
        assert wire.sent == [b"a"] * waits
