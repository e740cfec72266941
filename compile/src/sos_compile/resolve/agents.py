"""Place agents on nodes and allocate their addresses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from ipaddress import IPv4Address

from sos_compile import keys
from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.addresses import is_ipv4
from sos_compile.model.label_selectors import selects
from sos_compile.model.network import MAX_SLOTS, AgentPlace, NodePlace, PlacedSite
from sos_compile.model.problem import Reason
from sos_compile.model.resources import Pool
from sos_compile.model.world import AgentAllocation
from sos_compile.resolve.allocate import highest_free, numbers, usable

Place = tuple[str, str]
"""(pool, node)"""


def serves(pool: Pool, placed: PlacedSite) -> bool:
    """Return whether the pool has agents at the site."""
    site = placed.site
    return not site.transit and not site.remote and selects(pool.selector, dict(site.origin.labels))


def runs_on(pool: Pool, node: NodePlace) -> bool:
    """Return whether the pool has an agent on a node of a site that it serves."""
    return selects(pool.node_selector, dict(node.node.labels))


def place(sites: list[PlacedSite], pools: Sequence[Pool], previous: Iterable[AgentAllocation], verdicts: Verdicts) -> list[PlacedSite]:
    """Return the sites with their agents."""
    before = {(each.pool, each.node): each for each in sorted(previous)}
    placer = _Placer(before, _slots(pools, before, verdicts), verdicts)
    placer.taken |= {placed.site.gateway.ip for placed in sites if placed.site.gateway}
    named = [(node.node.address, node.node.name) for placed in sites for node in placed.nodes]
    placer.nodes_at |= {IPv4Address(address): name for address, name in named if is_ipv4(address)}
    serving = [(placed, [pool for pool in pools if pool.name in placer.slots and serves(pool, placed)]) for placed in sites]
    return [placer.place_routed(placed, own) if placed.site.routed else placer.place(placed, own) for placed, own in serving]


def _slots(pools: Sequence[Pool], before: dict[Place, AgentAllocation], verdicts: Verdicts) -> dict[str, int]:
    """Give each pool its slot: the same number on every node, which determines port names, port numbers and metrics port of its agents."""
    previous: dict[str, int] = {}
    for (name, _), allocation in before.items():
        previous.setdefault(name, allocation.slot)
    given = numbers([pool.name for pool in pools], previous, (), (0, MAX_SLOTS - 1))
    for pool in pools:
        if pool.name not in given:
            verdicts.reject(pool.origin, "", Reason.LIMIT_EXCEEDED, f"there are {MAX_SLOTS} older pools", "remove some")
    return given


@dataclass
class _Placer:
    before: dict[Place, AgentAllocation]
    slots: dict[str, int]
    verdicts: Verdicts
    taken: set[IPv4Address] = field(default_factory=set)
    nodes_at: dict[IPv4Address, str] = field(default_factory=dict)
    """Nodes by their InternalIP addresses, and by the addresses of spec.wan.addresses."""

    @cached_property
    def had(self) -> set[IPv4Address]:
        """Addresses allocated before, including those of agents that no longer exist."""
        return {IPv4Address(old.address) for old in self.before.values() if is_ipv4(old.address)}

    def place(self, placed: PlacedSite, pools: list[Pool]) -> PlacedSite:
        wanted = [(pool.name, node.node.name) for pool in pools for node in placed.nodes if runs_on(pool, node)]
        given = self._kept(placed, wanted)
        agents: list[AgentPlace] = []
        for pool, node in wanted:
            address = given.get((pool, node)) or self._fresh(placed)
            if address is None:
                message = f"no address left in {placed.site.agent_range} for the agent of pool {pool} on node {node}"
                path = "spec.network.agentAddresses"
                self.verdicts.reject(placed.site.origin, path, Reason.NO_ADDRESSES, message, "give a larger prefix")
                continue
            self.taken.add(address)
            agent_id = keys.agent_id(placed.site.name, pool, node).hex()
            agents.append(AgentPlace(pool, node, placed.site.name, agent_id, address, self.slots[pool]))
        # The first agent of a site serves proactive services (docs/adr/0012). Sort by slot, not by name: a pool added later must not come
        # first, because packets of running connections would then reach another agent.
        ordered = sorted(_distinct(placed, agents, self.verdicts), key=lambda agent: (agent.slot, agent.node))
        return replace(placed, agents=tuple(ordered))

    def place_routed(self, placed: PlacedSite, pools: list[Pool]) -> PlacedSite:
        """Place one agent on each selected node of a site without a bridge, at the node's own addresses.

        Two agents would intercept the same connections, so the pool with the lowest slot serves the site.
        """
        ordered = sorted(pools, key=lambda pool: self.slots[pool.name])
        for pool in ordered[1:]:
            message = f"SosAgent {ordered[0].name} serves SosSite {placed.site.name}, which has no bridge: a node has one agent there"
            self.verdicts.warn(
                pool.origin, "spec.siteSelector", Reason.DUPLICATE, message, "exclude the site from one of the two selectors"
            )
        for pool in ordered[:1]:
            if pool.attach != "Host":
                message = f"SosSite {placed.site.name} has no bridge: its agents use their nodes' network"
                self.verdicts.warn(pool.origin, "spec.attach", Reason.INVALID, message, "set attach: Host for its pool")
        addresses, nodes = self._wan_addresses(placed), {node.node.name: node for node in placed.nodes}
        agents = [
            AgentPlace(
                pool.name,
                node,
                placed.site.name,
                keys.agent_id(placed.site.name, pool.name, node).hex(),
                own[0],
                self.slots[pool.name],
                own[1:],
            )
            for pool in ordered[:1]
            for node, own in addresses.items()
            if runs_on(pool, nodes[node])
        ]
        # Leave out nodes without an agent when the DaemonSet selects its nodes: an agent's pod there would find no agent-config.
        without = nodes.keys() - addresses.keys()
        left_out = tuple(sorted({*placed.left_out, *without}))
        return replace(placed, agents=tuple(_distinct(placed, agents, self.verdicts)), left_out=left_out)

    def _wan_addresses(self, placed: PlacedSite) -> dict[str, tuple[IPv4Address, ...]]:
        """Return the addresses of each node that can have an agent: those of spec.wan.addresses, or else the node's InternalIP."""
        declared = placed.site.wan_addresses
        names = {node.node.name for node in placed.nodes}
        for name in sorted(declared.keys() - names):
            message = f"the site has no node {name}"
            self.verdicts.warn(placed.site.origin, "spec.wan.addresses", Reason.NO_NODE_ADDRESS, message, "correct the name, or remove it")
        found = {}
        for node in placed.nodes:
            name, own = node.node.name, declared.get(node.node.name, ())
            # An address that another node reports as its own stays with that node.
            clash = next((each for each in own if self.nodes_at.setdefault(each, name) != name), None)
            if clash is not None:
                message = f"node {name} has no agent: its address {clash} is that of node {self.nodes_at[clash]}, too"
                self.verdicts.warn(placed.site.origin, "spec.wan.addresses", Reason.NO_NODE_ADDRESS, message, "correct one of the two")
            elif own:
                found[name] = own
            elif node.node.address:
                found[name] = (IPv4Address(node.node.address),)
        return found

    def _kept(self, placed: PlacedSite, wanted: list[Place]) -> dict[Place, IPv4Address]:
        site = placed.site
        kept: dict[Place, IPv4Address] = {}
        for place in wanted:
            old = self.before.get(place)
            if old is None or site.agent_range is None or site.subnet is None or not is_ipv4(old.address):
                continue
            address = IPv4Address(old.address)
            if usable(address, site.agent_range, site.subnet) and address not in self.taken:
                kept[place] = address
                self.taken.add(address)
        return kept

    def _fresh(self, placed: PlacedSite) -> IPv4Address | None:
        """Return an address without an earlier allocation, or else a released address. Released addresses come last because a departing
        agent uses its address until its sessions have ended."""
        site = placed.site
        if site.agent_range is None or site.subnet is None:
            return None
        fresh = highest_free(site.agent_range, site.subnet, self.taken | self.had)
        return fresh or highest_free(site.agent_range, site.subnet, self.taken)


def _distinct(placed: PlacedSite, agents: list[AgentPlace], verdicts: Verdicts) -> list[AgentPlace]:
    """Leave out agents whose MAC address another agent of the site already has. Such collisions are rare: a MAC address has 31 bits of a
    hash."""
    seen: dict[str, AgentPlace] = {}
    for agent in agents:
        if agent.mac in seen:
            message = f"the agent on node {agent.node} would have the MAC address of that on node {seen[agent.mac].node}"
            verdicts.reject(placed.site.origin, "spec.nodeSelector", Reason.DUPLICATE, message, "rename one of the nodes")
        seen.setdefault(agent.mac, agent)
    return list(seen.values())
