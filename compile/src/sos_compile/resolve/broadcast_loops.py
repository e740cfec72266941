"""Loop freedom of the links that carry broadcasts (design: one uplink per site carries base traffic).

A graph in which at most one vertex has more than one edge has no cycle. So nodes with one base uplink each, around at most one node with
several, are loop-free with any cabling. If several nodes have several base uplinks, the cabling is unknown unless SosLinks declare it; the
declared graph must then be a forest. A node whose base uplinks form a bond forwards no packet from one of them to another, so no cycle
leads through it.
"""

from __future__ import annotations

from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.network import PlacedSite
from sos_compile.model.problem import Reason
from sos_compile.model.resources import Link

Vertex = tuple[str, str]


def without_loops(sites: list[PlacedSite], links: list[Link], verdicts: Verdicts) -> list[PlacedSite]:
    """Return the sites, oldest first, without those that could close a loop with older sites."""
    kept: list[PlacedSite] = []
    for placed in sites:
        if (other := _mixed([*kept, placed], placed)) is not None:
            both = f"a bond and external switches are under one SosController (see SosSite {other.site.name})"
            message = f"{both}, which floods over one link to a node and does not know the active uplink of a bond"
            remedy = "remove spec.wan.bond, or connect the external switches to another SosController"
            verdicts.reject(placed.site.origin, "spec.wan.bond", Reason.BASE_LOOP, message, remedy)
        elif _may_loop([*kept, placed], links):
            message = "its base uplinks could form a ring with those of other sites"
            remedy = "leave base: true on one uplink only, or declare a SosLink for every base uplink of every such site"
            verdicts.reject(placed.site.origin, "spec.wan.uplinks", Reason.BASE_LOOP, message, remedy)
        else:
            kept.append(placed)
    return kept


def _mixed(sites: list[PlacedSite], placed: PlacedSite) -> PlacedSite | None:
    """Return a site whose external switches, or bond, exclude the bond, or external switches, of `placed`."""
    mine, controllers = placed.site, set(placed.site.controllers)
    for other in (each for each in sites if controllers & set(each.site.controllers)):
        if (mine.bond and other.site.switches) or (mine.switches and other.site.bond):
            return other
    return None


def _base(placed: PlacedSite) -> set[str]:
    if placed.site.wan != "Uplinks" or placed.site.bond is not None:
        return set()
    return {uplink.name for uplink in placed.site.uplinks if uplink.base}


def _may_loop(sites: list[PlacedSite], links: list[Link]) -> bool:
    base = {placed.site.name: _base(placed) for placed in sites}
    hubs = [placed for placed in sites if len(base[placed.site.name]) > 1 for _ in placed.nodes]
    if len(hubs) <= 1:
        return False
    if any(len(hub.nodes) > 1 for hub in hubs):
        return True  # the cabling is unknown: a SosLink names the site at an end of the link, but not the node
    wires = [link for link in links if link.a[1] in base.get(link.a[0], ()) and link.b[1] in base.get(link.b[0], ())]
    ends = {end for link in links for end in (link.a, link.b)}
    if any((hub.site.name, uplink) not in ends for hub in hubs for uplink in base[hub.site.name]):
        return True
    many = {placed.site.name for placed in sites if len(placed.nodes) > 1}
    return _has_cycle([tuple((site, "" if site not in many else f"{i}") for site, _ in (link.a, link.b)) for i, link in enumerate(wires)])


def _has_cycle(edges: list[tuple[Vertex, ...]]) -> bool:
    parent: dict[Vertex, Vertex] = {}

    def root(vertex: Vertex) -> Vertex:
        while parent.setdefault(vertex, vertex) != vertex:
            vertex = parent[vertex]
        return vertex

    for a, b in edges:
        if root(a) == root(b):
            return True
        parent[root(a)] = root(b)
    return False
