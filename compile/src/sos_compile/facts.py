"""Facts about each object, for its conditions and printer columns."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network

from sos_compile.admission.objects import Objects
from sos_compile.admission.verdicts import REFERENCES, Verdicts
from sos_compile.model import addresses
from sos_compile.model.network import Network, PlacedBalance, PlacedService, PlacedSite
from sos_compile.model.world import Facts, ObjectKey
from sos_compile.resolve.agents import serves

WRONG = Facts(False, False)


def build_facts(objects: Objects, network: Network, verdicts: Verdicts) -> dict[ObjectKey, Facts]:
    """Return the facts of every object, sorted by key; including objects that could not be parsed."""
    found: dict[ObjectKey, Facts] = {key: Facts(True, True) for key in objects.keys}
    for placed in network.sites.values():
        if not placed.remote:
            found[placed.site.origin.key] = _site(placed)
    for service in network.services:
        found[service.service.origin.key] = _shown(verdicts.attempt(service.service.origin, _service, service, network), service, network)
    for balance in network.balances:
        found[balance.service.origin.key] = _shown(verdicts.attempt(balance.service.origin, _balance, balance), balance, network)
    for pool in network.pools.values():
        found[pool.origin.key] = _pool([placed for placed in network.sites.values() if serves(pool, placed)], pool.name)
    for name, controller in network.controllers.items():
        sites = network.sites_of(name)
        dpids = tuple(sorted(dpid for placed in sites for dpid in _dpids(placed)))
        names = tuple(placed.site.name for placed in sites)
        agents = tuple(sorted(agent.id for placed in sites for agent in placed.agents))
        found[controller.origin.key] = Facts(
            True, True, number=network.allocations.controllers[name], dpids=dpids, sites=names, agents=agents, controllers=(name,)
        )
    for peer in network.peers.values():
        announced = tuple(sorted(name for name, placed in network.sites.items() if placed.site.peer == peer.name))
        found[peer.origin.key] = Facts(True, True, sites=announced)
    for link in network.links:
        found[link.origin.key] = Facts(True, True, sites=(link.a[0], link.b[0]))
    for pair in network.pairs.values():
        found[pair.origin.key] = Facts(True, True, sites=pair.sites)
    return {key: _judged(found[key], key, verdicts) for key in sorted(found)}


def _shown(facts: Facts | None, placed: PlacedService | PlacedBalance, network: Network) -> Facts:
    return replace(facts or WRONG, shadow=network.shadows.get(placed.service.origin.key))


def _judged(facts: Facts, key: ObjectKey, verdicts: Verdicts) -> Facts:
    problem = verdicts.by_key.get(key)
    if problem is None:
        return facts
    message = f"{problem.path}: {problem.message}" if problem.path else problem.message
    message += f" ({problem.remedy})" if problem.remedy else ""
    reference = problem.reason in REFERENCES
    return replace(facts, accepted=reference, resolved=False, reason=str(problem.reason), message=message)


def _dpids(placed: PlacedSite) -> list[str]:
    own = [] if placed.site.routed else [node.dpid for node in placed.nodes]
    return own + [dpid for dpid, _ in placed.site.switches]


def _site(placed: PlacedSite) -> Facts:
    return Facts(
        True,
        True,
        number=placed.id,
        mtu=None if placed.site.routed else placed.site.mtu,
        nodes=tuple(node.node.name for node in placed.nodes),
        dpids=tuple(sorted(_dpids(placed))),
        agents=tuple(sorted(agent.id for agent in placed.agents)),
        sites=(placed.site.name,),
        controllers=placed.site.controllers,
        text={"prefixes": ",".join(str(prefix) for prefix in placed.site.prefixes), "wan": placed.site.wan},
        node_problems=dict(placed.node_problems),
    )


def _service(placed: PlacedService, network: Network) -> Facts:
    service = placed.service
    ends = {"from": (placed.source, placed.source_prefixes), "to": (placed.target, placed.target_prefixes)}
    shown = {name: _end(site, prefixes, network) for name, (site, prefixes) in ends.items()}
    pods = placed.client_pods
    if service.target.service is not None:
        shown["to"] = f"{placed.target} ({'/'.join(service.target.service)}: {_listed(placed.target_prefixes)})"
    count = None if pods is None else sum(prefix.num_addresses for addresses in pods.values() for prefix in addresses)
    if count is not None:
        shown["from"] += f", {count} {'pod' if count == 1 else 'pods'}"
    return Facts(
        True,
        True,
        sites=(placed.source, placed.target),
        controllers=(placed.controller,) if placed.controller else (),
        text={**shown, **_source(placed, network), "ports": addresses.ports(placed.ports), "mode": service.mode},
        client_pods=count,
    )


def _source(placed: PlacedService, network: Network) -> dict[str, str]:
    """Return the source of connections to a service's servers; nothing if the servers' cluster decides it (docs/adr/0062)."""
    target, service = network.sites[placed.target], placed.service
    if target.remote and not target.machine:
        return {}
    header = f", PROXY protocol {service.proxy_protocol}" if service.proxy_protocol != "None" else ""
    return {"source": service.connect_from + header}


def _balance(placed: PlacedBalance) -> Facts:
    service = placed.service
    shown = {"from": f"{placed.site} ({placed.client})", "to": _listed(service.target.prefixes)}
    return Facts(
        True,
        True,
        sites=(placed.site,),
        controllers=(placed.controller,),
        text={**shown, "ports": addresses.ports(placed.ports), "mode": service.mode},
    )


def _end(site: str, prefixes: tuple[IPv4Network, ...], network: Network) -> str:
    if prefixes == network.sites[site].site.prefixes:
        return site
    return f"{site} ({_listed(prefixes)})"


def _listed(prefixes: tuple[IPv4Network, ...]) -> str:
    return ",".join(str(prefix) for prefix in prefixes[:3]) + (",..." if len(prefixes) > 3 else "")


def _pool(sites: list[PlacedSite], pool: str) -> Facts:
    agents = [agent for placed in sites for agent in placed.agents if agent.pool == pool]
    names = tuple(sorted({agent.site for agent in agents}))
    return Facts(
        True,
        True,
        sites=names,
        nodes=tuple(sorted(agent.node for agent in agents)),
        agents=tuple(sorted(agent.id for agent in agents)),
        text={"sites": ",".join(names)},
    )
