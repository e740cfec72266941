"""Resolve the world into a network: each step receives the objects that the previous step accepted."""

from __future__ import annotations

from collections.abc import Mapping

from sos_compile.admission.objects import Objects
from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.memo import Memo
from sos_compile.model.network import Network, PlacedBalance, PlacedService, PlacedSite
from sos_compile.model.problem import Reason
from sos_compile.model.resources import Controller, Link, Rule, Site
from sos_compile.model.world import AgentAllocation, Allocations, Claim, World
from sos_compile.resolve import agents, broadcast_loops, lan, peers, sites
from sos_compile.resolve.allocate import numbers
from sos_compile.resolve.services import (
    arming,
    balances,
    claims,
    client_pods,
    destinations,
    pair_transport,
    placement,
    rejects,
    session_quotas,
    shadows,
    stream_settings,
)

CONTROLLER_IDS = (1, 0xFEFF)  # a cookie holds the id + 0x100 in 16 bits (spec/node-config.md clause 8)
MAX_LINKS = 4096


def resolve(world: World, objects: Objects, verdicts: Verdicts, memo: Memo) -> Network:
    """Return the network of all accepted objects."""
    controllers = {each.name: each for each in objects.controllers}
    known_peers = peers.accept(objects.peers, verdicts)
    cards = peers.with_machines(known_peers, world.cards, verdicts)
    reserved = peers.site_ids(known_peers, cards)
    accepted, site_ids = sites.number(sites.accept(objects, controllers, verdicts), world, objects, reserved, verdicts)
    placed = sites.place(accepted, site_ids, world, verdicts)
    links = [link for link in objects.links if _link_end_problem(link, {each.site.name: each for each in placed.sites}) is None]
    apart = sites.apart_from_nodes(placed.sites, verdicts)
    kept = broadcast_loops.without_loops(lan.attached_once(_with_own_switches(apart, verdicts), verdicts), links, verdicts)
    before = world.observed.allocations.agents
    with_agents = {each.site.name: each for each in agents.place(kept, objects.pools, before, verdicts)}
    _warn_about_addresses(with_agents, verdicts)
    remote = peers.place(known_peers, cards, list(with_agents.values()), objects, verdicts)
    with_agents |= {each.site.name: each for each in remote}
    controller_ids = _number_controllers(list(controllers.values()), world, objects)
    labels = placement.labels_of(objects.namespaces)
    pods = client_pods.PodJudge(client_pods.Pods(world.pods), labels, world.pods_problem, verdicts)
    known = {(each.namespace, each.name): each for each in world.kubernetes_services}
    servers = destinations.Destinations(known, world.kubernetes_services_problem, destinations.announced(cards), verdicts)
    judge = placement.Judge(objects, with_agents, world.settings.namespace, labels, pods, servers, verdicts)
    transports = pair_transport.Transports(pair_transport.accept(objects.pairs, with_agents, verdicts), known_peers, with_agents)
    placed_services, balanced, kept_claims = _services(world, judge, transports, controller_ids)
    in_force, offered = peers.in_force(placed_services, with_agents, cards, verdicts)
    accelerated = arming.limited(in_force, with_agents, verdicts, memo)

    def percent(namespace: str, site: str) -> int | None:
        return judge.rule(namespace, with_agents[site].site).sessions_percent

    return Network(
        controllers=controllers,
        sites=with_agents,
        pools={pool.name: pool for pool in objects.pools},
        services=tuple(accelerated),
        links=tuple(_accept_links(objects, with_agents, verdicts)),
        balances=tuple(balanced),
        peers=known_peers,
        pairs=transports.pairs,
        offered=offered,
        rejects=rejects.build(accelerated, controller_ids),
        shares=session_quotas.build(accelerated, kept_claims, percent),
        shadows=shadows.find(accelerated, balanced, controller_ids, memo),
        allocations=Allocations(
            sites=dict(sorted(site_ids.items())),
            controllers=dict(sorted(controller_ids.items())),
            nodes=dict(sorted(placed.node_numbers.items())),
            agents=_agent_allocations(with_agents, world, objects),
            claims=kept_claims,
        ),
    )


def _services(
    world: World, judge: placement.Judge, transports: pair_transport.Transports, controllers: Mapping[str, int]
) -> tuple[list[PlacedService], list[PlacedBalance], Mapping[str, Claim]]:
    """Return the accepted services and balances in the order in which they are tried, and their claims."""
    objects, verdicts = judge.objects, judge.verdicts

    def rule(placed: claims.Placed, site: str) -> Rule:
        return judge.rule(claims.namespace(placed), judge.sites[site].site)

    def band(placed: claims.Placed) -> int:
        return rule(placed, claims.client_site(placed)).band

    placed: list[claims.Placed] = [*placement.place(objects, judge), *balances.place(objects, judge)]
    ordered = claims.order(placed, band, world.observed.allocations.claims, objects.services, verdicts)
    apart = [each for each in ordered.services if isinstance(each, PlacedService)]
    declared = {each.pair for each in apart if transports.declared(each)}
    sharing = stream_settings.permitted(apart, ordered.claims, rule, declared, verdicts)
    limited = rejects.limited(placement.limited(sharing, ordered.claims, verdicts), judge.sites, controllers, verdicts)
    accelerated = pair_transport.apply(limited, transports, verdicts)
    balanced = balances.limited((each for each in ordered.services if isinstance(each, PlacedBalance)), verdicts)
    return accelerated, balanced, dict(sorted(ordered.claims.items()))


def _number_controllers(controllers: list[Controller], world: World, objects: Objects) -> dict[str, int]:
    previous = world.observed.allocations.controllers
    known = {key.name for key in objects.keys if key.kind == "SosController"}
    names = [each.name for each in controllers]
    carried = {name: number for name, number in previous.items() if name in known and name not in names}
    return {**carried, **numbers(names, previous, carried.values(), CONTROLLER_IDS)}


def _agent_allocations(placed: dict[str, PlacedSite], world: World, objects: Objects) -> tuple[AgentAllocation, ...]:
    """Return the allocations of agents, and of absent agents while their node and pool exist and their address is free."""
    now = {(a.pool, a.node): AgentAllocation(a.pool, a.node, str(a.address), a.slot) for site in placed.values() for a in site.agents}
    addresses = {each.address for each in now.values()}
    nodes = {node.name for node in world.nodes}
    pools = {key.name for key in objects.keys if key.kind == "SosAgent"}
    for each in sorted(world.observed.allocations.agents):
        if (each.pool, each.node) not in now and each.node in nodes and each.pool in pools and each.address not in addresses:
            now[each.pool, each.node] = each
            addresses.add(each.address)
    return tuple(sorted(now.values()))


def _with_own_switches(placed: list[PlacedSite], verdicts: Verdicts) -> list[PlacedSite]:
    """Give an external switch to the oldest site that claims it; report a problem for the other sites."""
    holder: dict[str, str] = {}
    for each in placed:
        for dpid, _ in each.site.switches:
            first = holder.setdefault(dpid, each.site.name)
            if first != each.site.name:
                message = f"datapath {dpid} belongs to SosSite {first}"
                verdicts.reject(
                    each.site.origin, "spec.datapaths", Reason.DUPLICATE, message, "a datapath has one site: remove it from one of the two"
                )
    rejected = {each.site.name for each in placed for dpid, _ in each.site.switches if holder[dpid] != each.site.name}
    return [each for each in placed if each.site.name not in rejected]


def _warn_about_addresses(placed: dict[str, PlacedSite], verdicts: Verdicts) -> None:
    for each in placed.values():
        _warn_about_rules(each.site, verdicts)
        if each.site.wan not in sites.NEED_ADDRESSES:
            continue
        wrong = dict(each.node_problems)
        for node in each.nodes:
            if node.node.name in each.site.wan_addresses:
                continue
            if node.node.name in wrong:
                message = f"node {node.node.name} has {wrong[node.node.name]}"
                verdicts.warn(each.site.origin, "spec.wan", Reason.NO_NODE_ADDRESS, message)
            elif not node.node.address:
                message = f"node {node.node.name} has no address yet: no {'agent on it' if each.site.routed else 'tunnels to it'}"
                verdicts.warn(each.site.origin, "spec.wan", Reason.NO_NODE_ADDRESS, message, "wait for the node to report its InternalIP")


def _warn_about_rules(site: Site, verdicts: Verdicts) -> None:
    for i, rule in enumerate(site.rules):
        for prefix in rule.prefixes:
            if not any(prefix.subnet_of(own) for own in site.prefixes):
                message = f"{prefix} is not inside spec.prefixes: it grants nothing"
                path = f"spec.services.rules[{i}].prefixes"
                verdicts.warn(site.origin, path, Reason.PREFIX_OUTSIDE_SITE, message, "write prefixes of this site")


def _accept_links(objects: Objects, placed: dict[str, PlacedSite], verdicts: Verdicts) -> list[Link]:
    kept: list[Link] = []
    for link in objects.links:
        problem = _link_end_problem(link, placed)
        if problem is None and len(kept) < MAX_LINKS:
            used = {end for other in kept for end in (other.a, other.b)}
            if link.a in used or link.b in used:
                end = link.a if link.a in used else link.b
                message = f"uplink {end[1]} of SosSite {end[0]} is in another SosLink"
                verdicts.reject(link.origin, "spec", Reason.DUPLICATE, message, "a link has two ends: remove one of the two")
            else:
                kept.append(link)
        elif problem is None:
            verdicts.reject(link.origin, "", Reason.LIMIT_EXCEEDED, f"there are {MAX_LINKS} older links", "remove some")
        else:
            verdicts.reject(link.origin, *problem)
    return kept


def _link_end_problem(link: Link, placed: dict[str, PlacedSite]) -> tuple[str, Reason, str, str] | None:
    for name, (site, uplink) in (("a", link.a), ("b", link.b)):
        if site not in placed:
            return f"spec.{name}.site", Reason.SITE_NOT_FOUND, f"there is no accepted SosSite {site}", "create it, or name another"
        known = [each.name for each in placed[site].site.uplinks]
        if uplink not in known:
            message = f"SosSite {site} has no uplink {uplink}"
            remedy = f"name one of its uplinks: {', '.join(known)}" if known else "it has none: declare them in its spec.wan.uplinks"
            return f"spec.{name}.uplink", Reason.UPLINK_NOT_FOUND, message, remedy
    return None
