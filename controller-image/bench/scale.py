"""Cost of planning in large networks: `python controller-image/bench/scale.py [--sites N] [--nodes N] [--agents N] [--services N,N,...]`.

Runs the real engine in this process, with a full mesh of switches, their agents and services between all pairs of sites. Switches answer
at once and wires carry the controller's own packets, so all measured CPU time is the engine's. The tunnels between switches are declared
as in the compiler's documents of Overlay sites; with `--probes`, all links are learned from probes. The clock advances by the CPU time of
each event: an engine that cannot follow falls behind, as in its image. For each number of services:

- *config*: handling of the configuration, without switches
- *start*: from the first connection of a switch until all services are Programmed
- *stop*: longest time for which the engine handled nothing else during the start
- *late*: longest time for which an event waited for earlier ones during the start
- *refused*: probes that the controller sent and did not believe
- *steady*: share of a CPU core in the following STEADY_S seconds
- *memory*: resident memory of the process after that, with the world's own
- *link*, *agent*, *switch*: event and replan after a link has failed, an agent has become unwilling, and a switch has been lost (medians)

The last line has the ratios to the first number of services.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from scale_world import ScaleWorld, scale_document
from sos_controller.app import Controller

STEADY_S = 5.0
CHANGES = 3
"""Number of changes of each kind."""
GIVE_UP_S = 120.0
"""Limit of the start on the world's clock."""


class Row(NamedTuple):
    """Figures of one number of services: seconds, a count, a share, bytes and milliseconds."""

    config: float
    start: float
    stop: float
    late: float
    refused: int
    steady: float
    memory: int
    link: float
    agent: float
    switch: float


def start(world: ScaleWorld) -> tuple[float, float, float]:
    """Connect all switches at once; return the seconds until all services are Programmed, and the longest stop and wait."""
    began, world.longest_stop = world.now, 0.0
    world.connect()
    while world.now - began < GIVE_UP_S:
        world.run(0.1)
        if world.is_programmed():
            break
    return world.now - began, world.longest_stop, world.longest_wait


def steady(world: ScaleWorld) -> float:
    """Return the share of a core without any change, after a pause in which ports and stale entries settle."""
    world.run(8.0)
    before, began = world.spent, world.now
    world.run(STEADY_S)
    return (world.spent - before) / (world.now - began)


def changes(world: ScaleWorld, change: str) -> float:
    """Return the median milliseconds of an event and its replan, each time with the network restored in between."""
    costs = []
    for number in range(CHANGES):
        restore = getattr(world, change)(number)
        costs.append(world.settle() * 1e3)
        restore()
        world.run(2.0)
    return statistics.median(costs)


def memory() -> int:
    """Return the resident memory in bytes (proc(5), /proc/PID/statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(sites: int, nodes: int, agents: int, services: int, declared: bool) -> Row:
    """Measure one number of services."""
    Controller.settle()
    world = ScaleWorld(scale_document(sites, nodes, agents, services, declared=declared))
    if not declared:
        world.unwatched.update(world.dpids)
    config = world.longest_stop
    began, stop, late = start(world)
    share = steady(world)
    refused = world.engine.state.counters["probes", "foreign"]
    return Row(
        config,
        began,
        stop,
        late,
        refused,
        share,
        memory(),
        *(changes(world, change) for change in ("cut_link", "turn_agent", "lose_switch")),
    )


def main() -> None:
    """Measure all numbers of services, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=20, metavar="N", help="number of sites")
    parser.add_argument("--nodes", type=int, default=10, metavar="N", help="switches of each site")
    parser.add_argument("--agents", type=int, default=2, metavar="N", help="agents of each site")
    parser.add_argument("--services", default="1,1000", metavar="N,N,...", help="numbers of services")
    parser.add_argument("--probes", action="store_true", help="learn the tunnels from probes instead of declaring them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    arguments = parser.parse_args()
    rows = {}
    print(f"{arguments.sites} sites x {arguments.nodes} switches, {arguments.agents} agents each")
    print("services   config    start     stop     late  refused  steady  memory      link     agent    switch", flush=True)
    for count in (int(count) for count in arguments.services.split(",")):
        row = rows[count] = measure(arguments.sites, arguments.nodes, arguments.agents, count, not arguments.probes)
        print(
            f"{count:8,} {row.config * 1e3:5.0f} ms {row.start:6.1f} s {row.stop * 1e3:5.0f} ms {row.late:6.2f} s {row.refused:8,}"
            f" {row.steady:6.1%} {row.memory / 2**20:4.0f} MiB {row.link:6.1f} ms {row.agent:6.1f} ms {row.switch:6.1f} ms",
            flush=True,
        )
    first, last = next(iter(rows.values())), list(rows.values())[-1]
    ratios = {
        name: getattr(last, name) / max(getattr(first, name), 1e-9) for name in ("config", "start", "stop", "link", "agent", "switch")
    }
    print("ratio   " + "  ".join(f"{name} {ratio:.1f}" for name, ratio in ratios.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps({str(count): row._asdict() for count, row in rows.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
