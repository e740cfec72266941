"""Accept sites; assign their nodes and numbers."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address

from sos_compile.admission.fault_isolation import NODE, REMEDY
from sos_compile.admission.objects import Objects
from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.addresses import is_ipv4, is_reachable
from sos_compile.model.label_selectors import selects
from sos_compile.model.network import MAX_NODE_NUMBER, NodePlace, PlacedSite
from sos_compile.model.problem import Reason
from sos_compile.model.resources import Controller, Site
from sos_compile.model.world import Node, ObjectKey, World
from sos_compile.resolve.allocate import numbers

NEED_ADDRESSES = ("Overlay", "Routed")  # types of wan whose nodes need their InternalIP addresses
MAX_SITES = 1024  # spec/controller-config.md clause 4
MAX_NODES_PER_SITE = 1024
MAX_NODE_NAME = 63  # maximum length in a beacon (spec/beacon.md clause 2)
SITE_IDS = (1, 0xFFFF)
MAX_SHOWN = 64  # maximum number of characters shown of an invalid address


def datapath_id(site_id: int, node: str) -> str:
    """Return the 16 hex digits of a node's datapath id: the site id, then 48 bits of a hash of the node's name, so that the datapath id
    survives restarts."""
    return f"{site_id:04x}{hashlib.sha256(node.encode()).hexdigest()[:12]}"


def accept(objects: Objects, controllers: Mapping[str, Controller], verdicts: Verdicts) -> list[Site]:
    """Return the sites that are valid and do not conflict with older sites, oldest first.

    A site that names a missing controller is accepted without this controller: its base table must continue to forward. So is a site that
    names a second controller with replicas: a switch has one MASTER (OpenFlow 1.3.5, 6.3.5).
    """
    accepted: list[Site] = []
    for site in objects.sites:
        if len(accepted) >= MAX_SITES:
            verdicts.reject(site.origin, "", Reason.LIMIT_EXCEEDED, f"there are {MAX_SITES} older sites", "remove some")
        elif _consistent(site, verdicts) and _apart(site, accepted, verdicts):
            accepted.append(_with_known_controllers(site, controllers, verdicts))
    return accepted


def _consistent(site: Site, verdicts: Verdicts) -> bool:
    if not _uplinks_consistent(site, verdicts):
        return False
    if site.subnet is None or site.agent_range is None:
        return True
    if not site.agent_range.subnet_of(site.subnet):
        message = f"the agents' prefix {site.agent_range} is not inside the subnet {site.subnet}"
        verdicts.reject(site.origin, "spec.network", Reason.INVALID, message, "set network.subnet or network.agentAddresses accordingly")
        return False
    if site.gateway is not None and site.gateway.network != site.subnet:
        message = f"{site.gateway} is not an address of the subnet {site.subnet}"
        verdicts.reject(site.origin, "spec.gateway", Reason.INVALID, message, "give an address of the subnet with the subnet's length")
        return False
    return True


def _uplinks_consistent(site: Site, verdicts: Verdicts) -> bool:
    """Check the addresses of uplinks: a gateway in the address's subnet, and no address twice (answers would be ambiguous)."""
    taken: dict[object, str] = {}
    for i, uplink in enumerate(site.uplinks):
        if uplink.address is None:
            continue
        path = f"spec.wan.uplinks[{i}]"
        if uplink.gateway not in uplink.address.network or uplink.gateway == uplink.address.ip:
            message = f"{uplink.gateway} is not another address of the subnet of {uplink.address}"
            verdicts.reject(site.origin, f"{path}.gateway", Reason.INVALID, message, "give the router's address, or correct address")
            return False
        if uplink.address.ip in taken:
            message = f"{uplink.address.ip} is the address of uplink {taken[uplink.address.ip]}"
            verdicts.reject(site.origin, f"{path}.address", Reason.DUPLICATE, message, "give every uplink an address of its own")
            return False
        taken[uplink.address.ip] = uplink.name
    return True


def _apart(site: Site, older: list[Site], verdicts: Verdicts) -> bool:
    """Check that no older site has any of the site's prefixes: a destination belongs to one site."""
    own = site.prefixes + ((site.agent_range,) if site.agent_range else ())
    for other in older:
        theirs = other.prefixes + ((other.agent_range,) if other.agent_range else ())
        for prefix in own:
            clash = next((each for each in theirs if each.overlaps(prefix)), None)
            if clash is not None:
                message = f"{prefix} overlaps {clash} of SosSite {other.name}"
                verdicts.reject(
                    site.origin,
                    "spec.prefixes",
                    Reason.OVERLAPPING_PREFIXES,
                    message,
                    "an address belongs to one site: narrow one of the two",
                )
                return False
    return True


def _with_known_controllers(site: Site, controllers: Mapping[str, Controller], verdicts: Verdicts) -> Site:
    for i, name in enumerate(site.controllers):
        if name not in controllers:
            message = f"there is no SosController {name}"
            verdicts.reject(site.origin, f"spec.controllers[{i}].name", Reason.CONTROLLER_NOT_FOUND, message, "create it, or name another")
    replicated = [name for name in site.controllers if name in controllers and controllers[name].replicas > 1]
    for name in replicated[1:]:
        message = f"SosControllers {replicated[0]} and {name} both have replicas: 2, and a switch has one MASTER"
        path = f"spec.controllers[{site.controllers.index(name)}].name"
        verdicts.reject(site.origin, path, Reason.INVALID, message, "set replicas: 1 for one of them, or name only one")
    known = tuple(name for name in site.controllers if name in controllers and name not in replicated[1:])
    return site if known == site.controllers else replace(site, controllers=known)


def number(
    sites: list[Site], world: World, objects: Objects, reserved: Collection[int], verdicts: Verdicts
) -> tuple[list[Site], dict[str, int]]:
    """Return the sites with a unique id, and the ids of all sites by name, including ids kept for sites that are rejected at present.

    A site never gets a new id from `reserved`, but keeps a reserved id that it already has.
    """
    previous = world.observed.allocations.sites
    fixed: dict[int, str] = {}
    kept: list[Site] = []
    for site in sites:
        wanted = site.site_id or previous.get(site.name)
        holder = fixed.get(wanted) if wanted else None
        if site.site_id and holder is not None:
            message = f"SosSite {holder} has the id {wanted}"
            verdicts.reject(
                site.origin, "spec.siteID", Reason.DUPLICATE_SITE_ID, message, "delete the site and make it again with another id"
            )
            continue
        kept.append(site)
        if wanted and holder is None:
            fixed[wanted] = site.name
    known = {key.name for key in objects.keys if key.kind == "SosSite"}
    carried = {name: site_id for name, site_id in sorted(previous.items()) if name in known and site_id not in fixed}
    given = {name: site_id for site_id, name in fixed.items()}
    fresh = numbers([site.name for site in kept], given, {*carried.values(), *(set(reserved) - set(fixed))}, SITE_IDS)
    return kept, {**carried, **fresh}


@dataclass(frozen=True)
class Placed:
    """Sites with their nodes, and the numbers of all nodes."""

    sites: list[PlacedSite]
    node_numbers: dict[str, int]


def place(sites: list[Site], ids: Mapping[str, int], world: World, verdicts: Verdicts) -> Placed:
    """Give every site its nodes and every node its number. A node belongs to the oldest site that selects it."""
    claimed: dict[str, Site] = {}
    left_out: dict[str, list[str]] = {}
    verdicts.faults += [fault for key, fault in verdicts.left_out.items() if key.kind == NODE]
    for site in sites:
        for node in _matching(site, world, verdicts):
            holder = claimed.setdefault(node.name, site)
            if holder is not site:
                left_out.setdefault(site.name, []).append(node.name)
                message = f"node {node.name} belongs to SosSite {holder.name}"
                verdicts.warn(
                    site.origin,
                    "spec.nodeSelector",
                    Reason.OVERLAPPING_NODES,
                    message,
                    "a node carries one site: change one of the selectors",
                )
    previous = world.observed.allocations.nodes
    by_name = {node.name: node for node in world.nodes}
    carried = {name: n for name, n in previous.items() if name in by_name and name not in claimed}
    given = numbers(sorted(claimed), previous, carried.values(), (1, MAX_NODE_NUMBER))
    placed = []
    by_name, wrong = with_usable_addresses([by_name[name] for name, site in claimed.items() if site.wan in NEED_ADDRESSES], by_name)
    for site in sites:
        own = [by_name[name] for name in sorted(name for name, holder in claimed.items() if holder is site)]
        nodes = _node_places(site, ids[site.name], own, given, verdicts)
        missing = "no agent" if site.routed else "no tunnels"
        names = [node.node.name for node in nodes if node.node.name not in site.wan_addresses]
        problems = tuple((name, f"{missing}: {wrong[name]}") for name in names if name in wrong)
        left = tuple(sorted(left_out.get(site.name, ())))
        placed.append(PlacedSite(site, ids[site.name], nodes, left_out=left, node_problems=problems))
    return Placed(placed, {**carried, **given})


def with_usable_addresses(nodes: Iterable[Node], by_name: Mapping[str, Node]) -> tuple[dict[str, Node], dict[str, str]]:
    """Return all nodes by name, without the unusable addresses of `nodes` (the nodes of sites in NEED_ADDRESSES), and the problem of each
    removed address by node."""
    found, wrong = dict(by_name), dict[str, str]()
    holder: dict[str, str] = {}
    for node in sorted(nodes, key=lambda each: (each.created, each.name), reverse=True):
        if not node.address:
            continue
        problem = _address_problem(node.address)
        if problem is None and (other := holder.setdefault(node.address, node.name)) != node.name:
            problem = f"its InternalIP {node.address} is that of node {other}, too: remove the node that is gone, or correct the address"
        if problem is not None:
            wrong[node.name] = problem
            found[node.name] = replace(node, address="")
    return found, wrong


def _address_problem(text: str) -> str | None:
    if not is_ipv4(text):
        return f"its only InternalIP {text[:MAX_SHOWN]} is not IPv4, which SOS needs: give the node an IPv4 InternalIP as well"
    if not is_reachable(IPv4Address(text)):
        return f"its InternalIP {text} cannot be reached from other nodes: correct it (kubelet --node-ip)"
    return None


def _matching(site: Site, world: World, verdicts: Verdicts) -> list[Node]:
    if site.selector is None:
        return []
    nodes = sorted((node for node in world.nodes if selects(site.selector, dict(node.labels))), key=lambda node: node.name)
    for node in nodes[MAX_NODES_PER_SITE:]:
        message = f"node {node.name} is left out: a site has at most {MAX_NODES_PER_SITE} nodes"
        verdicts.warn(site.origin, "spec.nodeSelector", Reason.LIMIT_EXCEEDED, message, "split it into several sites")
    for node in [each for each in nodes if len(each.name) > MAX_NODE_NAME]:
        message = f"node {node.name} is left out: its name has more than {MAX_NODE_NAME} characters"
        verdicts.warn(site.origin, "spec.nodeSelector", Reason.LIMIT_EXCEEDED, message, "give it a shorter name")
    faults = {node.name: fault for node in nodes if (fault := verdicts.left_out.get(ObjectKey(NODE, "", node.name)))}
    for name, fault in faults.items():
        message = f"node {name} keeps its configuration: it cannot be compiled: {fault.message}"
        verdicts.warn(site.origin, "spec.nodeSelector", Reason.INTERNAL, message, REMEDY)
    return [node for node in nodes[:MAX_NODES_PER_SITE] if len(node.name) <= MAX_NODE_NAME and node.name not in faults]


def _node_places(site: Site, site_id: int, nodes: list[Node], given: Mapping[str, int], verdicts: Verdicts) -> tuple[NodePlace, ...]:
    places: dict[str, NodePlace] = {}
    for node in nodes:
        dpid = datapath_id(site_id, node.name)
        if node.name not in given:
            message = f"node {node.name} is left out: there are {MAX_NODE_NUMBER} others"
            verdicts.warn(site.origin, "spec.nodeSelector", Reason.LIMIT_EXCEEDED, message, "remove some")
        elif dpid in places:
            message = f"node {node.name} is left out: its datapath id {dpid} is that of node {places[dpid].node.name}"
            verdicts.warn(site.origin, "spec.nodeSelector", Reason.DUPLICATE, message, "rename the node")
        else:
            places[dpid] = NodePlace(node, site.name, given[node.name], dpid)
    return tuple(places.values())


def apart_from_nodes(placed: list[PlacedSite], verdicts: Verdicts) -> list[PlacedSite]:
    """Return the sites whose prefixes contain no tunnel endpoint: the packets of such a tunnel would look like packets of a host, and enter
    the tunnel again."""
    ends = {int(IPv4Address(node.node.address)): node for each in placed for node in _tunnel_ends(each)}
    addresses = sorted(ends)
    kept = []
    for each in placed:
        # Without a bridge no switch puts packets into a tunnel.
        prefixes = () if each.site.routed else each.site.prefixes
        inside = ((prefix, bisect_left(addresses, int(prefix[0]))) for prefix in prefixes)
        clash = next(((prefix, i) for prefix, i in inside if i < len(addresses) and addresses[i] <= int(prefix[-1])), None)
        if clash is None:
            kept.append(each)
            continue
        prefix, node = clash[0], ends[addresses[clash[1]]].node
        message = f"{prefix} holds the InternalIP {node.address} of node {node.name}, an endpoint of overlay tunnels"
        remedy = "give the site's hosts a network of their own, or set spec.wan.type: Uplinks at the sites of these nodes"
        verdicts.reject(each.site.origin, "spec.prefixes", Reason.OVERLAPPING_NODES, message, remedy)
    return kept


def _tunnel_ends(placed: PlacedSite) -> list[NodePlace]:
    return [node for node in placed.nodes if node.node.address] if placed.site.wan == "Overlay" else []
