"""Reactive set-ups per second of CPU time: `python controller-image/bench/syn_rate.py [SYNS [EGRESS [AUDIT]]]`.

Each set-up is a whole session: SYN; two Prepare orders; entries with their barriers on the ingress switch and on EGRESS (1) egress
switches; two Ready orders; release of the SYN; two Ended orders with acknowledgements; deletion of the entries. The measured time covers
all work of the controller, from the bytes of a switch to the bytes sent to it, but no work of switches and agents. AUDIT 1 adds the audit
records, written to standard error as JSON.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from controller_fake import one_by_one
from controller_lab import document, document_hash
from controller_world import World, packet_in, syn_frame
from sos_controller import audit, logs
from sos_controller.app import Controller
from sos_controller.core.commands import Barrier, Install, PacketOut, SessionOver, Withdraw
from sos_controller.core.events import BarrierReplies, DatapathUp, PacketIn, Tick
from sos_controller.core.openflow.pipeline import ETH_IPV4
from sos_controller.core.wire import order
from sos_controller.core.wire.packets import ethertype
from sos_controller.openflow import flow_mods, ofp

STEP_S = 0.0002  # between two SYNs, on the world's clock
BEACONS_EVERY = 2500  # in SYNs: half a second; without beacons the agents would expire


class Meter:
    """Handle events as the receive loop does, and measure only the CPU time of the controller's code."""

    def __init__(self, world: World, egress: int) -> None:
        self.world, self.engine, self.egress, self.spent = world, world.engine, egress, 0.0
        self.setup = 0.0
        self.now = world.now

    def message(self, dpid: int, data: bytes) -> list:
        began = time.process_time()
        cookie, in_port, packet = ofp.parse_packet_in(data)
        commands = self.engine.handle(PacketIn(dpid, in_port, cookie, packet), self.now)
        self._render(commands)
        self.spent += time.process_time() - began
        return commands

    def event(self, event: object) -> list:
        began = time.process_time()
        commands = self.engine.handle(event, self.now)
        self._render(commands)
        self.spent += time.process_time() - began
        return commands

    @staticmethod
    def _render(commands: list) -> None:
        for command in commands:
            if isinstance(command, Install):
                flow_mods.install(command)
            elif isinstance(command, Barrier):
                ofp.barrier_request(command.token)
            elif isinstance(command, Withdraw):
                flow_mods.withdraw(command)
            elif isinstance(command, PacketOut):
                ofp.packet_out(command.in_port, command.actions, command.data)
            elif isinstance(command, SessionOver):
                audit.record(command)


def one(meter: Meter, index: int) -> None:
    """One session from SYN to Ended."""
    world, before = meter.world, meter.spent
    frame = syn_frame(10 << 24 | 11 + index % 97, 10 << 24 | 139, 1024 + index % 60000, 5001, isn=index)
    commands = meter.message(world.west, packet_in(world.punt_cookie, 3, frame))
    # The first SYN also causes an ARP request (server lookup), which is not a Prepare
    prepares = [c for c in commands if isinstance(c, PacketOut) and ethertype(c.data) == ETH_IPV4]
    asked = [apply for c in commands if isinstance(c, Barrier) for apply in one_by_one(c)]
    assert (len(prepares), len(asked)) == (2, 1 + meter.egress), commands
    for apply in asked:
        meter.event(BarrierReplies(apply.dpid, (apply.token,)))
    answers = [world.answer(c) for c in prepares]
    for dpid, port, data in answers:
        commands = meter.message(dpid, packet_in(0, port, data))
    assert any(isinstance(c, PacketOut) for c in commands)
    meter.setup += meter.spent - before
    uuid = order.body(prepares[0].data[42:])[:16]
    for dpid, port, data in world.ended(uuid):
        meter.message(dpid, packet_in(0, port, data))


def wide(egress: int) -> World:
    """Return a world whose eastern site has `egress` datapaths, all of which get the egress entry."""
    made = document()
    more = [0x2000000000100 + number for number in range(1, egress)]
    made["sites"][1]["datapaths"] += [{"dpid": f"{dpid:016x}", "name": f"far{dpid & 0xFF}", "forwarding": "Node"} for dpid in more]
    world = World({**made, "hash": document_hash(made)})
    for dpid in more:
        world.do(DatapathUp(dpid, ()))
    world.converge()
    return world


def main(count: int, egress: int = 1, audited: int = 0) -> None:
    """Warm up, then measure."""
    logs.setup("info", "json", audit=bool(audited))
    world = wide(egress)
    meter = Meter(world, egress)
    Controller.settle()
    for index in range(500):
        one(meter, index)
    meter.spent = meter.setup = 0.0
    began = time.process_time()
    for index in range(500, 500 + count):
        meter.now += STEP_S
        one(meter, index)
        if index % 125 == 0:
            world.now = meter.now
            world.follow(meter.event(Tick(world.wall(meter.now))))
        if index % BEACONS_EVERY == 0:
            world.beacons()
    meter.now += 2
    meter.event(Tick(world.wall(meter.now)))
    assert len(world.engine.state.sessions) == 0, len(world.engine.state.sessions)
    each = meter.spent / count
    print(f"{count / meter.setup:,.0f} set-ups per CPU second ({meter.setup / count * 1e6:.0f} us each)")
    print(f"{1 / each:,.0f} sessions per CPU second ({each * 1e6:.0f} us each; {time.process_time() - began:.1f} s with agents)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:])) if len(sys.argv) > 1 else main(20_000)
