"""Services that the agents of their clients' site cannot arm, because their nftables sets are full (docs/adr/0050).

An agent leaves such a service plain. A service that no agent of the site can arm is rejected, so that its status says so before anything is
sent; if only some agents can arm it, which happens where services select pods, it gets a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network

from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.classifier import MAX_REGIONS, Range, Rule, TooLargeError, count, fitting
from sos_compile.model.memo import ByIdentity, Memo
from sos_compile.model.network import PlacedService, PlacedSite
from sos_compile.model.problem import Reason

REMEDY = "name fewer or wider prefixes and port ranges, or let fewer services of the site overlap"

Fitting = tuple[int, list[int]]


def limited(services: Sequence[PlacedService], sites: Mapping[str, PlacedSite], verdicts: Verdicts, memo: Memo) -> list[PlacedService]:
    """Return the services, except those that no agent of their clients' site can arm."""
    refused: set[str] = set()
    for name in sorted({each.source for each in services}):
        armed = [each for each in services if each.source == name and each.service.mode == "Accelerate" and not each.unencrypted]
        refused |= _at(sites[name], armed, verdicts, memo)
    return [each for each in services if each.service.id not in refused]


def _at(placed: PlacedSite, services: Sequence[PlacedService], verdicts: Verdicts, memo: Memo) -> set[str]:
    """Return the ids of the services that no agent of a site can arm; warn about those that some cannot."""
    nodes = [agent.node for agent in placed.agents] or ([placed.machine.node] if placed.machine else [])
    if any(each.client_pods is not None for each in services):
        views = {node: tuple(each for each in services if each.clients_at(node)) for node in sorted(set(nodes))}
    else:
        views = {node: tuple(services) for node in sorted(set(nodes))[:1]}
    left_out: dict[str, list[str]] = {}
    taken: dict[str, int] = {}
    for node, armed in views.items():
        taken[node], indices = _fitting(placed, node, armed, memo)
        for index in indices:
            left_out.setdefault(armed[index].service.id, []).append(node)
    refused: set[str] = set()
    for each in (each for each in services if each.service.id in left_out):
        without = left_out[each.service.id]
        with_clients = [node for node, armed in views.items() if each in armed]
        message = _message(each, placed, without[0], taken[without[0]])
        if without == with_clients:
            verdicts.reject(each.service.origin, "spec", Reason.LIMIT_EXCEEDED, message, REMEDY)
            refused.add(each.service.id)
        else:
            names = ", ".join(without[:3]) + (", ..." if len(without) > 3 else "")
            verdicts.warn(each.service.origin, "spec", Reason.LIMIT_EXCEEDED, f"{message}, on {len(without)} nodes ({names})", REMEDY)
    return refused


def _fitting(placed: PlacedSite, node: str, services: Sequence[PlacedService], memo: Memo) -> Fitting:
    key = (
        node,
        placed.site.routed,
        tuple((ByIdentity(each.service), each.clients_at(node), each.target_prefixes, each.ports) for each in services),
    )
    return memo.arming.get(key, lambda: fitting([_rule(placed, node, each) for each in services]))


def _message(each: PlacedService, placed: PlacedSite, node: str, taken: int) -> str:
    try:
        own = str(count([_rule(placed, node, each)]))
    except TooLargeError:
        own = f"more than {MAX_REGIONS}"
    site, others = placed.site.name, f", where other services take {taken}" if taken else ""
    return f"it takes {own} of {MAX_REGIONS} nftables elements of an agent of SosSite {site}{others}: its connections would be plain"


def _rule(placed: PlacedSite, node: str, each: PlacedService) -> Rule:
    """Return the connections of a service as its agents arm them: they hold the SYNs of proactive services, as all are at a site without a
    bridge."""
    held = placed.site.routed or each.service.setup == "Proactive"
    return Rule(_ranges(each.clients_at(node)), _ranges(each.target_prefixes), each.ports, held)


def _ranges(prefixes: Iterable[IPv4Network]) -> tuple[Range, ...]:
    return tuple((int(prefix.network_address), int(prefix.broadcast_address)) for prefix in prefixes)
