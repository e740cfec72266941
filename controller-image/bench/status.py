"""Cost of `GET /v1/status`: `python controller-image/bench/status.py [--services N,N,...] [--sessions N]`.

Prints the CPU time of a status, encoded as JSON, for each number of services, and the ratio to the first number. Half of the sessions have
begun by order, the other half is reported by agents. All services have had accelerated and plain connections in the last five minutes.
*changed*: a status after new reports of the agents; *unchanged*: the next status. Rows are measured in turn; medians of ROUNDS.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from controller_lab import AGENTS, document, document_hash
from controller_world import CLIENT_PORT, World, syn_frame
from sos_controller.core import snapshot
from sos_controller.core.events import PacketIn
from sos_controller.core.plain.reason import PlainReason
from sos_controller.core.plain.traffic import SLOT_S, SLOTS
from sos_controller.core.types import AgentId, PortNo, flow_key
from sos_controller.core.wire.order import ReportedFlow, Role

ROUNDS = 15
WEST, EAST = 10 << 24, 10 << 24 | 128
"""Clients and servers are in the lower and the upper half of 10.0.0.0/24."""
FIRST_PORT = 10_000


def services(count: int) -> list[dict[str, Any]]:
    """Return services that differ by prefixes and ports."""
    [one] = document()["services"]

    def block(start: int, number: int) -> list[str]:
        return [f"10.0.0.{start + number % 8 * 16}/28"]

    return [
        {
            **{**one, "id": f"tenant{i % 250}/service{i // 250}", "ports": [{"first": FIRST_PORT + i, "last": FIRST_PORT + i}]},
            **{"from": {"site": "west", "prefixes": block(0, i)}, "to": {"site": "east", "prefixes": block(128, i)}},
        }
        for i in range(count)
    ]


def loaded(count: int, sessions: int) -> World:
    """Return a world with services, sessions of both kinds, and connections in all slots of the window."""
    made = {**document(), "services": services(count)}
    world = World({**made, "hash": document_hash(made)})
    world.converge()
    keys = [(WEST + i % count % 8 * 16 + 1, EAST + i % count % 8 * 16 + 1, 1024 + i, FIRST_PORT + i % count) for i in range(sessions)]
    for key in keys[::2]:
        world.do(PacketIn(world.west, PortNo(CLIENT_PORT), world.punt_cookie, syn_frame(*key)))
    egress = AgentId(AGENTS["agent2"][2])
    accepted = (ReportedFlow(uuid=bytes(14) + key[2].to_bytes(2), key=flow_key(*key), peer=egress, role=Role.INGRESS) for key in keys[1::2])
    world.agents["agent1"].flows = tuple(accepted)
    world.agents["agent1"].watched = True
    world.reports()
    state = world.engine.state
    assert len(state.sessions) + len(state.agent_sessions) == sessions, (len(state.sessions), len(state.agent_sessions))
    for slot in range(SLOTS):
        for service in state.services:
            at = world.now - (SLOTS - 1 - slot) * SLOT_S
            state.plain_traffic.accelerated(service.id, at)
            state.plain_traffic.plain(service.id, PlainReason.SERVER_REFUSED, None, at)
    return world


def cost(world: World) -> tuple[float, int]:
    """Return the CPU milliseconds of a status, and its bytes."""
    began = time.process_time()
    encoded = msgspec.json.encode(snapshot.status(world.engine, "", ""))
    return (time.process_time() - began) * 1e3, len(encoded)


def main() -> None:
    """Measure all rows in turn, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", default="1,1000,4000", metavar="N,N,...", help="numbers of services")
    parser.add_argument("--sessions", type=int, default=5_000, metavar="N", help="number of sessions")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.services.split(",")]
    worlds = [loaded(count, arguments.sessions) for count in counts]
    found: dict[int, list[tuple[float, float, int]]] = {count: [] for count in counts}
    for _ in range(ROUNDS):
        for count, world in zip(counts, worlds, strict=True):
            world.reports()
            changed, size = cost(world)
            found[count].append((changed, cost(world)[0], size))
    first = 0.0
    print(f"{arguments.sessions:,} sessions      changed  unchanged   ratio     bytes")
    for count, runs in found.items():
        changed, unchanged, size = (statistics.median(values) for values in zip(*runs, strict=True))
        first = first or changed
        print(f"{count:7,} services {changed:8.1f} ms {unchanged:7.1f} ms {changed / first:7.1f} {size:9,.0f}")


if __name__ == "__main__":
    main()
