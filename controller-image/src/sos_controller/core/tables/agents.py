"""Live agents: checks of their beacons (spec/beacon.md 3), expiry, replay windows, load."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sos_controller.core.tables.order_rto import OrderRto
from sos_controller.core.types import AgentId, DatapathId, Location, Prefix
from sos_controller.core.wire import beacon as wire
from sos_controller.core.wire import keys
from sos_controller.core.wire.beacon import Beacon, BeaconError
from sos_controller.core.wire.replay import CLOCK_WINDOW_MS, Replay

MAX_AGENTS = 4_096
"""Maximum number of agents known at once, and of senders whose replay windows are kept."""
RELAY = "tcp-parallel"
ASSUMED_BUSY = 0.01
"""Assumed cost, as a share of a core or of the agent's capacity, of each session assigned since the agent's last beacon. Without it, one of
two agents would get all sessions that begin within one second, and the other all sessions of the next second."""


class Agent:
    """One live agent. `assigned` counts sessions assigned since its last beacon, which that beacon could not include."""

    __slots__ = ("assigned", "beacon", "location", "order_rto", "seen_at", "silent")

    def __init__(self, beacon: Beacon, location: Location, now: float) -> None:
        self.beacon = beacon
        self.location = location
        self.seen_at = now
        self.silent = False  # no beacon for too long, for any cause
        self.assigned = 0
        self.order_rto = OrderRto()

    @property
    def agent_id(self) -> AgentId:
        """Return its id."""
        return self.beacon.agent_id

    @property
    def draining(self) -> bool:
        """Return whether it finishes its sessions and accepts no more."""
        return bool(self.beacon.flags & wire.FLAG_DRAINING)

    @property
    def willing(self) -> bool:
        """Return whether it is healthy and below its limits."""
        return bool(self.beacon.flags & wire.FLAG_WILLING)

    @property
    def usable(self) -> bool:
        """Return whether new sessions may be assigned to it."""
        b = self.beacon
        return (
            self.willing
            and not self.draining
            and not self.silent
            and RELAY in b.service_types
            and b.sessions + self.assigned < b.session_limit
        )

    @property
    def load(self) -> float:
        """Return the share of its session limit in use."""
        return (self.beacon.sessions + self.assigned) / max(self.beacon.session_limit, 1)

    @property
    def busy(self) -> float:
        """Return its busyness: cores in use or share of its capacity in use, whichever is more."""
        b = self.beacon
        carried = 8 * b.bytes_per_second / b.capacity_bps if b.capacity_bps else 0.0
        return max(b.cpu_permille / 1000, carried) + self.assigned * ASSUMED_BUSY


class Surroundings(NamedTuple):
    """Lookups for the location at which a beacon arrived."""

    site_of: Callable[[DatapathId], tuple[int, tuple[Prefix, ...]] | None]
    """Site id, and the prefixes that may contain its agents' addresses."""
    is_inter_switch: Callable[[Location], bool]


class Heard(NamedTuple):
    """Changes by a beacon. `restarted`: the agent's boot id, addresses or location have changed, so its earlier sessions are gone."""

    agent: Agent
    appeared: bool
    restarted: bool
    turned: bool
    """The agent became usable or unusable, or changed a value that selection or entries depend on."""


class Agents:
    """All known agents, by id."""

    def __init__(self, ring: keys.KeyRing) -> None:
        self.ring = ring
        self._agents: dict[AgentId, Agent] = {}
        self._places: dict[Location, AgentId] = {}
        self._beacons: dict[AgentId, Replay] = {}
        self._orders: dict[AgentId, Replay] = {}

    def get(self, agent_id: AgentId) -> Agent | None:
        """Return a live agent."""
        return self._agents.get(agent_id)

    def all(self) -> list[Agent]:
        """Return every live agent, by id."""
        return [self._agents[i] for i in sorted(self._agents)]

    def at(self, location: Location) -> Agent | None:
        """Return the agent behind a port."""
        return self._agents.get(self._places.get(location, AgentId(b"")))

    def hear(self, data: bytes, location: Location, around: Surroundings, clock: tuple[int, float]) -> Heard:
        """Check a beacon in the order of spec/beacon.md 3 and accept it, or raise BeaconError with the reason to count. `clock` = (wall ms,
        now)."""
        said = wire.decode(data)
        self._authenticate(said, data, clock[0])
        site = around.site_of(location.dpid)
        if site is None or site[0] != said.site_id:
            raise BeaconError("site")
        if around.is_inter_switch(location):
            raise BeaconError("port")
        if not any(p.holds(said.address) for p in site[1]):
            raise BeaconError("subnet")
        return self._take(said, location, clock[1])

    def expire(self, now: float, max_age: float) -> list[Agent]:
        """Forget and return the agents without a beacon for longer than `max_age` seconds."""
        return self.forget(lambda agent: now - agent.seen_at > max_age)

    def forget(self, gone: Callable[[Agent], bool]) -> list[Agent]:
        """Forget and return the agents for which `gone` is true."""
        forgotten = [agent for agent in self.all() if gone(agent)]
        for agent in forgotten:
            del self._agents[agent.agent_id]
            self._leave(agent)
        return forgotten

    def accept_order(self, agent_id: AgentId, boot_id: int, sequence: int, time_ms: int, wall_ms: int) -> bool:
        """Return whether an agent's order, whose tag is valid, is not a replay."""
        window = self._window(self._orders, agent_id, wall_ms)
        return window is not None and window.accept(boot_id, sequence, time_ms, wall_ms)

    def _authenticate(self, said: Beacon, data: bytes, wall_ms: int) -> None:
        key = self.ring.derive(keys.BEACON, said.site_id, said.key_id, said.agent_id)
        if key is None:
            raise BeaconError("key")
        if not wire.signed_by(data, key):
            raise BeaconError("tag")
        window = self._window(self._beacons, said.agent_id, wall_ms)
        if window is None:
            raise BeaconError("limit")
        if not window.accept(said.boot_id, said.sequence, said.time_ms, wall_ms):
            raise BeaconError("replay")

    def _take(self, said: Beacon, location: Location, now: float) -> Heard:
        before = self._agents.get(said.agent_id)
        if before is None:
            if len(self._agents) >= MAX_AGENTS:
                raise BeaconError("limit")
            agent = self._agents[said.agent_id] = Agent(said, location, now)
            self._places[location] = said.agent_id
            return Heard(agent, True, False, True)
        was, usable = before.beacon, before.usable
        moved = (was.boot_id, was.address, was.mac, before.location) != (said.boot_id, said.address, said.mac, location)
        if said.boot_id == was.boot_id and said.sequence < was.sequence:
            return Heard(before, False, False, False)
        self._leave(before)
        self._places[location] = said.agent_id
        before.beacon, before.location, before.seen_at, before.assigned = said, location, now, 0
        before.silent = False
        turned = before.usable != usable or (was.first_stream_port, was.stream_ports) != (said.first_stream_port, said.stream_ports)
        return Heard(before, False, moved, turned or moved)

    def _leave(self, agent: Agent) -> None:
        if self._places.get(agent.location) == agent.agent_id:
            del self._places[agent.location]

    @staticmethod
    def _window(windows: dict[AgentId, Replay], agent_id: AgentId, wall_ms: int) -> Replay | None:
        """Return the replay window of a sender. If the table is full, drop windows of senders whose messages would all be too old by
        now."""
        found = windows.get(agent_id)
        if found is None and len(windows) >= MAX_AGENTS:
            for gone in [i for i, window in windows.items() if wall_ms - window.used_ms > 2 * CLOCK_WINDOW_MS]:
                del windows[gone]
        if found is None and len(windows) < MAX_AGENTS:
            found = windows[agent_id] = Replay()
        return found
