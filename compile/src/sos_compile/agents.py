"""Where agents run, and which address each has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv4Address

from sos_compile import keys
from sos_compile.allocate import highest_free, numbers, usable
from sos_compile.model import Pool, selects
from sos_compile.network import MAX_SLOTS, AgentPlace, NodePlace, PlacedSite
from sos_compile.problem import Reason
from sos_compile.verdicts import Verdicts
from sos_compile.world import AgentAllocation

Place = tuple[str, str]
"""(pool, node)"""


def accept(pools: Iterable[Pool], verdicts: Verdicts) -> list[Pool]:
    """Return the pools this version can run."""
    kept = []
    for pool in pools:
        if pool.external:
            verdicts.reject(pool.origin, "spec.external", Reason.UNSUPPORTED, "external agents are not built in this version", "remove spec.external")
        elif pool.attach == "Multus":
            verdicts.reject(pool.origin, "spec.attach", Reason.UNSUPPORTED, "attach Multus is not built in this version", "use Host")
        else:
            kept.append(pool)
    return kept


def serves(pool: Pool, placed: PlacedSite) -> bool:
    """Return whether the pool has agents at the site: one on each of its nodes."""
    site = placed.site
    return not site.transit and not site.remote and selects(pool.selector, dict(site.origin.labels))


def place(sites: list[PlacedSite], pools: list[Pool], previous: Iterable[AgentAllocation], verdicts: Verdicts) -> list[PlacedSite]:
    """Return the sites with their agents."""
    before = {(each.pool, each.node): each for each in sorted(previous)}
    slots = _slots(sites, pools, before)
    taken: set[IPv4Address] = {placed.site.gateway.ip for placed in sites if placed.site.gateway}
    return [_place_site(placed, pools, slots, before, taken, verdicts) for placed in sites]


def _wanted(placed: PlacedSite, pools: list[Pool]) -> list[tuple[Pool, NodePlace]]:
    return [(pool, node) for pool in pools if serves(pool, placed) for node in placed.nodes]


def _slots(sites: list[PlacedSite], pools: list[Pool], before: dict[Place, AgentAllocation]) -> dict[Place, int]:
    """Give each agent its place on the node, which its port's name and number follow from."""
    by_node: dict[str, list[str]] = {}
    for placed in sites:
        for pool, node in _wanted(placed, pools):
            by_node.setdefault(node.node.name, []).append(pool.name)
    found: dict[Place, int] = {}
    for node_name, names in by_node.items():
        kept = {name: before[name, node_name].slot for name in names if (name, node_name) in before}
        found |= {(name, node_name): slot for name, slot in numbers(names, kept, (), (0, MAX_SLOTS - 1)).items()}
    return found


def _place_site(
    placed: PlacedSite,
    pools: list[Pool],
    slots: dict[Place, int],
    before: dict[Place, AgentAllocation],
    taken: set[IPv4Address],
    verdicts: Verdicts,
) -> PlacedSite:
    wanted = _wanted(placed, pools)
    given = _kept_addresses(placed, wanted, before, taken)
    agents: list[AgentPlace] = []
    for pool, node in wanted:
        place_key = (pool.name, node.node.name)
        if place_key not in slots:
            message = f"no agent on node {node.node.name}: {MAX_SLOTS} older pools have one there"
            verdicts.reject(pool.origin, "spec.siteSelector", Reason.LIMIT_EXCEEDED, message, "narrow the selectors")
            continue
        address = given.get(place_key) or _fresh_address(placed, taken)
        if address is None:
            message = f"no address left in {placed.site.agent_range} for the agent of pool {pool.name} on node {node.node.name}"
            verdicts.reject(placed.site.origin, "spec.network.agentAddresses", Reason.NO_ADDRESSES, message, "give a larger prefix")
            continue
        taken.add(address)
        agent_id = keys.agent_id(placed.site.name, pool.name, node.node.name).hex()
        agents.append(AgentPlace(pool.name, node.node.name, placed.site.name, agent_id, address, slots[place_key]))
    return replace(placed, agents=tuple(sorted(_distinct(placed, agents, verdicts), key=lambda agent: (agent.pool, agent.node))))


def _kept_addresses(
    placed: PlacedSite, wanted: list[tuple[Pool, NodePlace]], before: dict[Place, AgentAllocation], taken: set[IPv4Address]
) -> dict[Place, IPv4Address]:
    site = placed.site
    kept: dict[Place, IPv4Address] = {}
    for pool, node in wanted:
        old = before.get((pool.name, node.node.name))
        if old is None or site.agent_range is None or site.subnet is None:
            continue
        address = IPv4Address(old.address)
        if usable(address, site.agent_range, site.subnet) and address not in taken:
            kept[pool.name, node.node.name] = address
            taken.add(address)
    return kept


def _fresh_address(placed: PlacedSite, taken: set[IPv4Address]) -> IPv4Address | None:
    site = placed.site
    return None if site.agent_range is None or site.subnet is None else highest_free(site.agent_range, site.subnet, taken)


def _distinct(placed: PlacedSite, agents: list[AgentPlace], verdicts: Verdicts) -> list[AgentPlace]:
    """Leave out agents whose MAC another of the site has: 31 bits of a hash, so this is for correctness, not for every day."""
    seen: dict[str, AgentPlace] = {}
    for agent in agents:
        if agent.mac in seen:
            message = f"the agent on node {agent.node} would have the MAC address of that on node {seen[agent.mac].node}"
            verdicts.reject(placed.site.origin, "spec.nodeSelector", Reason.DUPLICATE, message, "rename one of the nodes")
        seen.setdefault(agent.mac, agent)
    return list(seen.values())
