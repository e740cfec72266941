"""Large network around an engine: a full mesh of switches at many sites, agents and services, on a clock that follows CPU time.

Switches answer barriers, reads and echoes at once, and wires carry probes in DELAY_S. The clock advances with the CPU time of the engine
so that a slow engine falls behind: its events wait, like bytes in a socket.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from sos_controller.core.commands import Apply, Barrier, Command, Echo, PacketOut, ReadEntries
from sos_controller.core.engine import Engine
from sos_controller.core.events import (
    BarrierReplies,
    ConfigChanged,
    DatapathDown,
    DatapathUp,
    Echoed,
    EntriesRead,
    Event,
    KeysChanged,
    PacketIn,
    PortChanged,
    TablesRead,
    Tick,
)
from sos_controller.core.state import Identity
from sos_controller.core.types import Address, AgentId, DatapathId, Location, MacAddress, Port, PortNo, format_address, parse_mac
from sos_controller.core.wire import beacon, keys
from sos_controller.core.wire.beacon import Beacon
from sos_controller.core.wire.packets import UdpTemplate
from sos_controller.files.config import document_hash, parse

WALL_MS = 1_774_000_000_000
KEY = bytes(range(32))
DISCOVERY = ("198.18.255.254", "02:53:4f:53:00:01")
AGENT_PORT, FIRST_TUNNEL = 2, 35_001
DELAY_S = 0.001
TICK_S = 0.025
READ_EVENTS = 32
"""Maximum number of messages that are handled together, as those of one read."""


def scale_document(sites: int, nodes: int, agents: int, services: int, *, generation: int = 1, declared: bool = False) -> dict[str, Any]:
    """Return a configuration: each site has `nodes` bridges, the first `agents` of them with an agent; services between all pairs of sites
    in turn. `declared`: the tunnels between bridges are declared."""
    made = {
        **{"version": "v1alpha1", "generation": generation, "controller": {"name": "default", "id": 1}},
        "discovery": {
            **{"address": DISCOVERY[0], "mac": DISCOVERY[1], "beaconPort": 9875, "orderPort": 9876, "redirectPort": 9877},
            **{"beaconExpirySeconds": 4, "probeIntervalSeconds": 1, "linkExpirySeconds": 3},
        },
        "sites": [_site(number, nodes, agents, declared) for number in range(sites)],
        "services": [_service(number, sites) for number in range(services)],
        "balances": [],
        "links": [],
    }
    return {**made, "hash": document_hash(made)}


def _dpid(site: int, node: int) -> DatapathId:
    return DatapathId(site + 1 << 48 | node + 1)


def _network(site: int) -> int:
    return (10 << 24) + (site << 12)


def _prefix(site: int) -> str:
    return f"{format_address(Address(_network(site)))}/20"


def _site(site: int, nodes: int, agents: int, declared: bool) -> dict[str, Any]:
    ids = [bytes(8) + site.to_bytes(4, "big") + node.to_bytes(4, "big") for node in range(agents)]
    addresses = [format_address(Address(_network(site) + 4_000 + node)) for node in range(agents)]
    return {
        **{"name": f"s{site}", "id": site + 1, "prefixes": [_prefix(site)], "subnet": _prefix(site), "gateway": None},
        **{"transit": False, "mtu": 1500, "rewrite": "Transparent"},
        "agents": [
            {"id": ids[node].hex(), "pool": "default", "node": f"n{site}-{node}", "address": addresses[node]} for node in range(agents)
        ],
        "datapaths": [
            {
                **{"dpid": f"{_dpid(site, node):016x}", "name": f"n{site}-{node}", "forwarding": "Node"},
                **({"tunnel": site * nodes + node + 1} if declared else {}),
            }
            for node in range(nodes)
        ],
    }


def _service(number: int, sites: int) -> dict[str, Any]:
    one, step = number % sites, 1 + number // sites % (sites - 1)
    other, port = (one + step) % sites, 1_000 + number
    return {
        **{"id": f"tenant{number % 250}/service{number}", "priority": 100, "mode": "Accelerate", "percent": 100, "setup": "Reactive"},
        **{"from": {"site": f"s{one}", "prefixes": [_prefix(one)]}, "to": {"site": f"s{other}", "prefixes": [_prefix(other)]}},
        **{"ports": [{"first": port, "last": port}], "paths": {"mode": "Shortest", "max": 1}},
        "transport": {"streams": 0, "blockBytes": 0, "queueBytes": 0, "congestionControl": "Auto"},
    }


class ScaleAgent:
    """Agent that sends beacons."""

    def __init__(self, site: int, number: int, declared: dict[str, Any], dpid: DatapathId) -> None:
        self.site, self.id, self.where = site, AgentId(bytes.fromhex(declared["id"])), Location(dpid, PortNo(AGENT_PORT))
        self.address = Address(_network(site - 1) + 4_000 + number)
        self.mac = MacAddress(bytes([2, 0x53, 0x80, site >> 8, site & 255, number]))
        self.key = keys.expand(KEY, keys.BEACON + self.id)
        self.frame = UdpTemplate((self.mac, parse_mac(DISCOVERY[1])), (self.address, Address(0xC612FFFE)), (9876, 9875))
        self.sequence, self.flags = 0, beacon.FLAG_WILLING

    def beacon(self, wall_ms: int) -> bytes:
        """Return the frame of the next beacon."""
        self.sequence += 1
        said = Beacon(
            key_id=1, site_id=self.site, flags=self.flags, agent_id=self.id, boot_id=17, sequence=self.sequence, time_ms=wall_ms,
            sessions=0, session_limit=4_096, bytes_per_second=0, cpu_permille=0, streams=8, order_port=9876, first_stream_port=10_000,
            stream_ports=8, address=self.address, mac=self.mac, capacity_bps=0, name="agent", service_types=("tcp-parallel",),
        )  # fmt: skip
        return self.frame.render(beacon.encode(said, self.key))


class ScaleWorld:
    """Engine and its network. Events wait in a queue, each with the time of its arrival."""

    def __init__(self, document: dict[str, Any], *, slowness: float = 1.0) -> None:
        """`slowness`: seconds on the clock for each second of CPU time; 0 = events take no time, so that runs are reproducible."""
        self.now, self.spent, self._slowness = 100.0, 0.0, slowness
        self.delay_s, self.event_s = DELAY_S, 0.0
        """Time after which messages of switches are read, and time that the handling of each takes in any case."""
        self.longest_stop = self.longest_wait = 0.0
        self.engine = Engine(Identity(1, 10**18, 12345, b"probe-key"))
        self.dpids = [DatapathId(int(d["dpid"], 16)) for site in document["sites"] for d in site["datapaths"]]
        self.sites = [DatapathId(int(site["datapaths"][0]["dpid"], 16)) for site in document["sites"]]
        self._number = {dpid: number for number, dpid in enumerate(self.dpids)}
        self.agents = [
            ScaleAgent(site["id"], number, agent, DatapathId(int(site["datapaths"][number]["dpid"], 16)))
            for site in document["sites"]
            for number, agent in enumerate(site["agents"])
        ]
        self.down: set[Location] = set()
        self.unwatched: set[DatapathId] = set()
        """Datapaths that do not watch their tunnels."""
        self.mute: set[DatapathId] = set()
        """Connected datapaths that send nothing."""
        self.connected: set[DatapathId] = set()
        self._queue: deque[tuple[float, Event]] = deque()
        self._next_tick, self._next_beacon = self.now, self.now
        self._do(KeysChanged({site["id"]: {1: KEY} for site in document["sites"]}))
        self._do(Tick(self._wall()))
        self.configure(document)
        self._do(self._queue.popleft()[1])

    def _wall(self) -> int:
        return WALL_MS + int(self.now * 1000)

    # -- running

    def run(self, seconds: float) -> None:
        """Handle all events of this time, in the order of their arrival."""
        end = self.now + seconds
        while self.now < end:
            self._timers()
            if self._queue and self._queue[0][0] <= self.now:
                self.longest_wait = max(self.longest_wait, self.now - self._queue[0][0])
                self._do(*self._arrived())
            else:
                due = [self._next_tick, self._next_beacon, end, *([self._queue[0][0]] if self._queue else [])]
                self.now = max(self.now, min(due))

    def settle(self) -> float:
        """Run until nothing is left to plan; return the CPU seconds of the engine in this time, without ticks."""
        before = self.spent
        while self._queue or self.engine.state.dirty:
            if self._queue:
                self.now = max(self.now, self._queue[0][0])
                self._do(*self._arrived())
            else:
                self.now += TICK_S
                self._do(Tick(self._wall()))
        return self.spent - before

    def _timers(self) -> None:
        if self.now >= self._next_beacon:
            self._next_beacon = self.now + 1.0
            for agent in self.agents:
                if agent.where.dpid in self.connected:
                    self._later(PacketIn(*agent.where, 0, agent.beacon(self._wall())))
        if self.now >= self._next_tick:
            self._next_tick = self.now + TICK_S
            self._do(Tick(self._wall()))

    def _later(self, event: Event) -> None:
        if getattr(event, "dpid", None) in self.mute:
            return
        self._queue.append((self.now + self.delay_s, event))

    def _arrived(self) -> list[Event]:
        """Take the messages of one read."""
        events = [self._queue.popleft()[1]]
        while self._queue and self._queue[0][0] <= self.now and len(events) < READ_EVENTS:
            events.append(self._queue.popleft()[1])
        return events

    def _do(self, *events: Event) -> None:
        began, commands = time.process_time(), list[Command]()
        for event in events:
            commands += self.engine.handle(event, self.now, more=True)
        commands += self.engine.close()
        took = time.process_time() - began
        self.spent += took
        self.longest_stop = max(self.longest_stop, took)
        self.now += took * self._slowness + sum(self.event_s for event in events if not isinstance(event, Tick))
        if self.engine.replan_gap.is_open:
            self.engine.replan_gap.end(self.now)
        for command in commands:
            self._obey(command)

    def _obey(self, command: Command) -> None:
        if isinstance(command, ReadEntries):
            self._later(EntriesRead(command.dpid, ()))
        elif isinstance(command, Apply) and command.barrier:
            self._later(BarrierReplies(command.dpid, (command.token,)))
        elif isinstance(command, Echo):
            self._later(Echoed(command.dpid, command.marker_ms))
        elif isinstance(command, Barrier):
            for dpid in command.dpids:
                self._later(BarrierReplies(dpid, (command.token,)))
        elif isinstance(command, PacketOut) and command.data[12:14] == b"\x88\xcc":
            port_no = getattr(command.actions[0], "port_no", PortNo(0))
            there = self._far_end(Location(command.dpid, port_no))
            if there is not None and there.dpid in self.connected:
                self._later(PacketIn(*there, 0, command.data))

    def _far_end(self, location: Location) -> Location | None:
        number = location.port_no - FIRST_TUNNEL
        if not 0 <= number < len(self.dpids) or location in self.down:
            return None
        return Location(self.dpids[number], PortNo(FIRST_TUNNEL + self._number[location.dpid]))

    # -- changes; each returns the function that restores the network

    def hear(self, event: Event) -> None:
        """Receive a message of a switch."""
        self._later(event)

    def connect(self, dpids: list[DatapathId] | None = None) -> None:
        """Connect switches, by default all."""
        for dpid in self.dpids if dpids is None else dpids:
            self.connected.add(dpid)
            self._later(DatapathUp(dpid, tuple(self._ports(dpid))))

    def _ports(self, dpid: DatapathId) -> list[Port]:
        tunnels = [FIRST_TUNNEL + number for number, other in enumerate(self.dpids) if other != dpid]
        return [self._port(Location(dpid, PortNo(number))) for number in (1, AGENT_PORT, *tunnels)]

    def _port(self, location: Location) -> Port:
        number = location.port_no
        mac = MacAddress(bytes([2, 0, *self._number[location.dpid].to_bytes(2, "big"), number >> 8, number & 255]))
        up, tunnel = location not in self.down, number - FIRST_TUNNEL + 1
        if tunnel < 1:
            return Port(number, f"p{number}", mac, up)
        return Port(number, f"sosvx{tunnel}", mac, up, location.dpid not in self.unwatched, up)

    def configure(self, document: dict[str, Any]) -> None:
        """Apply another configuration with the same sites."""
        self._later(ConfigChanged(parse(json.dumps(document).encode())))

    def cut_link(self, number: int) -> Callable[[], None]:
        """Cut the tunnel between the first switches of two sites."""
        one, other = self.sites[number % len(self.sites)], self.sites[(number + 1) % len(self.sites)]
        ends = [Location(a, PortNo(FIRST_TUNNEL + self._number[b])) for a, b in ((one, other), (other, one))]

        def change() -> None:
            self.down.symmetric_difference_update(ends)
            for end in ends:
                self._later(PortChanged(end.dpid, self._port(end), False))

        change()
        return change

    def turn_agent(self, number: int) -> Callable[[], None]:
        """Make an agent unwilling."""
        agent = self.agents[number % len(self.agents)]

        def change(flags: int) -> None:
            agent.flags = flags
            self._later(PacketIn(*agent.where, 0, agent.beacon(self._wall())))

        change(0)
        return lambda: change(beacon.FLAG_WILLING)

    def lose_switch(self, number: int) -> Callable[[], None]:
        """End the connection of the last switch of a site."""
        per_site = len(self.dpids) // len(self.sites)
        dpid = self.dpids[(number % len(self.sites) + 1) * per_site - 1]
        self.connected.discard(dpid)
        self._later(DatapathDown(dpid))
        return lambda: self.connect([dpid])

    def limit_table(self, dpid: DatapathId, size: int) -> None:
        """Announce a size of a switch's first table."""
        self._later(TablesRead(dpid, {0: size}))

    def is_programmed(self) -> bool:
        """Return whether all services are Programmed."""
        return all(service.state == "Programmed" for service in self.engine.plan.status())
