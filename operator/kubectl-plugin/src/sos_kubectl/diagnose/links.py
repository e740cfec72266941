"""Findings for links that are down or silent, between the switches of two sites and of transit sites. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any, TypeVar

from sos_kubectl.diagnose.facts import Facts
from sos_kubectl.diagnose.findings import Finding

Json = dict[str, Any]
Two = frozenset[str]
T = TypeVar("T")

PAIR = 2
NAMED_MAX = 8
"""Maximum number of silent tunnels named; the rest are counted, as there may be hundreds of nodes."""


def concerned(facts: Facts, site: str) -> bool:
    """True for the two sites and the sites between them."""
    return near(facts, site) or site in {s["name"] for s in facts.config.get("sites", ()) if s["transit"]}


def near(facts: Facts, *sites: str) -> bool:
    """True if all these sites are among the two requested sites, not between them."""
    return set(sites) <= {facts.asked.from_site, facts.asked.to_site}


def findings(facts: Facts) -> Iterator[Finding]:
    """Findings for declared uplinks that are down or silent, and for silent tunnels."""
    datapaths = [datapath for datapath in facts.topology.get("datapaths", ()) if concerned(facts, datapath["site"])]
    yield from _uplinks(facts, datapaths)
    yield from _tunnels(facts, datapaths)


def _uplinks(facts: Facts, datapaths: list[Json]) -> Iterator[Finding]:
    """Findings for declared uplinks that are down or silent. While a switch is disconnected, silent uplinks are not reported: another
    finding reports the switch."""
    away = any(not datapath["connected"] for datapath in datapaths)
    heard = {(end["dpid"], end["name"]) for link in facts.topology.get("links", ()) for end in (link["a"], link["b"])}
    for datapath in datapaths:
        known = {port["name"]: port["up"] for port in datapath["ports"]}
        for uplink in _declared(facts, datapath["site"]) if datapath["connected"] else ():
            where, close = f"{datapath['name']} {uplink}", near(facts, datapath["site"])
            if not known.get(uplink, False):
                state = "has no carrier" if uplink in known else "is not on the switch"
                yield Finding("LinkDown", where, f"Uplink {uplink} of {datapath['name']} (site {datapath['site']}) {state}.", near=close)
            elif not away and (datapath["dpid"], uplink) not in heard:
                what = f"Uplink {uplink} of {datapath['name']} (site {datapath['site']}) is up, but receives no probes."
                yield Finding("LinkSilent", where, what, near=close)


def _declared(facts: Facts, site: str) -> list[str]:
    """The uplinks of a site that lead to other switches (an uplink with a gateway leads to a router)."""
    wan = (_spec(facts, site) or {}).get("wan") or {}
    return [uplink["name"] for uplink in wan.get("uplinks") or () if not uplink.get("gateway")]


def _spec(facts: Facts, site: str) -> Json | None:
    return next((obj.get("spec") or {} for obj in facts.objects if obj["kind"] == "SosSite" and obj["metadata"]["name"] == site), None)


def _tunnels(facts: Facts, datapaths: list[Json]) -> Iterator[Finding]:
    """Findings for silent tunnels; each pair of nodes of overlay sites has a tunnel. If all tunnels of a switch are silent, report the
    switch once instead of each tunnel."""
    if facts.topology.get("truncated"):
        return  # the list of links is incomplete: a link that is not listed may exist
    meshed = _meshed(facts)
    mesh = {datapath["dpid"]: datapath for datapath in datapaths if datapath["connected"] and datapath["dpid"] in meshed}
    joined = {frozenset((link["a"]["dpid"], link["b"]["dpid"])) for link in facts.topology.get("links", ())}
    silent = [two for two in map(frozenset, combinations(mesh, 2)) if two not in joined]
    deaf = [dpid for dpid in mesh if sum(dpid in two for two in silent) == len(mesh) - 1] if len(mesh) > PAIR else []
    alone = sorted((mesh[dpid] for dpid in deaf), key=lambda one: (not near(facts, one["site"]), one["name"]))
    for one, more in bounded(alone):
        others = f"any of {len(mesh) - 1} other switches"
        what = f"No probe passes between {one['name']} (site {one['site']}) and {others}: its tunnels are silent."
        yield Finding("LinkSilent", one["name"], what + more, near=near(facts, one["site"]))
    yield from _pairs(facts, mesh, [two for two in silent if not two & set(deaf)])


def _pairs(facts: Facts, mesh: dict[str, Json], silent: Iterable[Two]) -> Iterator[Finding]:
    """Findings for silent tunnels, those between the two sites first."""
    ends = [sorted((mesh[dpid] for dpid in two), key=lambda datapath: str(datapath["name"])) for two in silent]
    ends.sort(key=lambda two: (not near(facts, two[0]["site"], two[1]["site"]), two[0]["name"], two[1]["name"]))
    for (one, other), more in bounded(ends):
        what = (
            f"No probe passes between {one['name']} (site {one['site']}) and {other['name']} (site {other['site']}): the tunnel is silent."
        )
        yield Finding("LinkSilent", f"{one['name']} - {other['name']}", what + more, near=near(facts, one["site"], other["site"]))


def bounded(found: list[T]) -> Iterator[tuple[T, str]]:
    """The first NAMED_MAX items; the last one with a text that counts the rest."""
    for number, one in enumerate(found[:NAMED_MAX], 1):
        yield one, f" And {len(found) - NAMED_MAX} more like it." if number == NAMED_MAX < len(found) else ""


def _meshed(facts: Facts) -> set[str]:
    """The datapaths that have tunnels: nodes of sites with `wan.type: Overlay`, the default."""
    found = set[str]()
    for site in facts.config.get("sites", ()):
        spec = _spec(facts, site["name"])
        if spec is not None and not spec.get("remote") and (spec.get("wan") or {}).get("type", "Overlay") == "Overlay":
            found |= {datapath["dpid"] for datapath in site["datapaths"] if datapath["forwarding"] == "Node"}
    return found
