"""Settings of the streams between two sites, which the sessions of all services between them share (docs/adr/0049).

Agents keep one set of streams for a pair of sites, so one service's `streams`, `congestionControl`, `encryption` or `protocol` applies to
all services. If the services belong to several namespaces, a service may set these fields if both sites' rules allow it, or if it came
before the other services: later services do not change settings that earlier services rely on. None of this matters where the transport of
the pair is declared (pair_transport): the fields of services then have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.network import PlacedService
from sos_compile.model.problem import Reason
from sos_compile.model.resources import PAIR_FIELDS, Rule, Transport
from sos_compile.model.world import Claim

RuleOf = Callable[[PlacedService, str], Rule]
"""The rule for a service at one of its two sites."""


def permitted(
    services: Iterable[PlacedService],
    claims: Mapping[str, Claim],
    rule: RuleOf,
    declared: Collection[frozenset[str]],
    verdicts: Verdicts,
) -> list[PlacedService]:
    """Return the services, in the order given, without those that would change the settings of streams that another namespace's sessions
    use. `declared`: pairs of sites whose settings no service can change."""
    ordered = list(services)
    between: dict[frozenset[str], list[PlacedService]] = {}
    for each in ordered:
        if each.service.mode == "Accelerate" and each.pair not in declared:
            between.setdefault(each.pair, []).append(each)
    refused: set[str] = set()
    for theirs in between.values():
        if len({_namespace(each) for each in theirs}) > 1:
            refused |= _refused(theirs, claims, rule, verdicts)
    return [each for each in ordered if each.service.id not in refused]


def _refused(theirs: list[PlacedService], claims: Mapping[str, Claim], rule: RuleOf, verdicts: Verdicts) -> set[str]:
    first: dict[str, int] = {}
    for each in theirs:
        number = claims[each.service.id].number
        first[_namespace(each)] = min(number, first.get(_namespace(each), number))
    refused: set[str] = set()
    in_effect: list[Transport] = []
    for each in sorted(theirs, key=lambda each: claims[each.service.id].number):
        others = min(number for namespace, number in first.items() if namespace != _namespace(each))
        earlier = claims[each.service.id].number < others
        field = None if earlier else next((f for f in PAIR_FIELDS if _sets(each, f, in_effect) and not _granted(each, f, rule)), None)
        if field is None:
            in_effect.append(each.service.transport)
            continue
        refused.add(each.service.id)
        message = f"streams between SosSites {each.source} and {each.target} are shared with another namespace's services, which came first"
        remedy = f"leave it out, or ask the sites' owner to list {field} in transport of a rule of both sites"
        verdicts.reject(each.service.origin, f"spec.transport.{field}", Reason.NOT_PERMITTED, message, remedy)
    return refused


def _namespace(placed: PlacedService) -> str:
    return placed.service.origin.key.namespace


def _granted(placed: PlacedService, field: str, rule: RuleOf) -> bool:
    """True if the rules of both sites name the field."""
    rules = [rule(placed, site) for site in (placed.source, placed.target)]
    return all(each.transport is not None and field in each.transport for each in rules)


def _sets(placed: PlacedService, field: str, in_effect: list[Transport]) -> bool:
    """True if a service would change settings of the streams."""
    mine = placed.service.transport
    if field not in mine.named:
        return False
    match field:
        case "streams":
            return mine.streams > max((each.streams for each in in_effect), default=0)
        case "congestionControl":
            named = [each.congestion_control for each in in_effect if each.congestion_control != "Auto"]
            return named[:1] != [mine.congestion_control]
        case "encryption":
            return all(each.encryption != mine.encryption for each in in_effect)
        case _:
            return all(each.protocol != mine.protocol for each in in_effect)
