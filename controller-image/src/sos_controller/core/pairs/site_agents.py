"""Live agents of each site, and the changes of agents that planning depends on."""

from __future__ import annotations

from typing import NamedTuple

from sos_controller.core.state import State
from sos_controller.core.tables.agents import Agent
from sos_controller.core.types import Address, AgentId, DatapathId, Location, MacAddress


class _Stamp(NamedTuple):
    """Values of an agent that pairs, entries and candidates depend on."""

    site: str
    location: Location
    usable: bool
    stream_ports: tuple[int, int]
    address: Address
    mac: MacAddress


class AgentChange(NamedTuple):
    """Difference between two plannings."""

    agents: frozenset[AgentId]
    """Agents that have come, gone or changed."""
    sites: frozenset[str]
    """Their sites."""


class SiteAgents:
    """Agents that the configuration lists, by site, as they were at the last planning."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._by_site: dict[str, list[Agent]] = {}
        self._stamps: dict[AgentId, _Stamp] = {}

    def update(self) -> AgentChange:
        """Take over the live agents."""
        before, self._by_site, self._stamps = self._stamps, {}, {}
        for agent in self._state.agents.all():
            said, site = agent.beacon, self._state.agent_sites.get(agent.agent_id, "")
            self._by_site.setdefault(site, []).append(agent)
            ports = (said.first_stream_port, said.stream_ports)
            self._stamps[agent.agent_id] = _Stamp(site, agent.location, agent.usable, ports, said.address, said.mac)
        after = self._stamps
        changed = frozenset(agent_id for agent_id in before.keys() | after.keys() if before.get(agent_id) != after.get(agent_id))
        stamps = [stamp for agent_id in changed for stamp in (before.get(agent_id), after.get(agent_id)) if stamp is not None]
        return AgentChange(changed, frozenset(stamp.site for stamp in stamps))

    def of(self, site: str) -> list[Agent]:
        """Return the agents of a site, by id."""
        return self._by_site.get(site, []) if site else []

    def usable(self, site: str) -> list[Agent]:
        """Return the agents of a site that accepted new sessions at the last planning."""
        return [agent for agent in self.of(site) if self._stamps[agent.agent_id].usable]

    def places(self) -> set[tuple[str, DatapathId]]:
        """Return the sites and datapaths of all agents."""
        return {(stamp.site, stamp.location.dpid) for stamp in self._stamps.values()}
