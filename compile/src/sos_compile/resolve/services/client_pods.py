"""Select the client pods of services (`spec.from.pods`) among the pods of the cluster (docs/adr/0063)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, collapse_addresses

from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.addresses import is_ipv4
from sos_compile.model.formats.agent import MAX_PODS
from sos_compile.model.label_selectors import selects
from sos_compile.model.network import ClientPods, PlacedSite
from sos_compile.model.problem import Reason
from sos_compile.model.resources import PodSelection, Rule, Service
from sos_compile.model.world import Pod

EVERY_OWN_POD = PodSelection({}, None)


@dataclass(frozen=True)
class Selected:
    """Selected pods by node, and the nodes that have more selected pods than an agent intercepts."""

    pods: ClientPods
    crowded: tuple[str, ...]


@dataclass(frozen=True)
class PodJudge:
    """Checks and resolves the client pods of services; problems go to `verdicts`. `namespaces`: labels of each namespace. `problem`: reason
    why the pods are unknown."""

    pods: Pods
    namespaces: Mapping[str, dict[str, str]]
    problem: str
    verdicts: Verdicts

    def permits(self, service: Service, placed: PlacedSite, rule: Rule) -> bool:
        """Return whether the clients' site and its rule permit the pods that a service selects."""
        found = self._problem(service, placed, rule)
        if found is not None:
            path, reason, message, remedy = found
            self.verdicts.reject(service.origin, path, reason, message, remedy)
        return found is None

    def _problem(self, service: Service, placed: PlacedSite, rule: Rule) -> tuple[str, Reason, str, str] | None:
        wanted, name = service.source.pods, placed.site.name
        if wanted is not None and not _has_pods(placed):
            message = f"SosSite {name} does not intercept connections inside pods"
            return "spec.from.pods", Reason.INVALID, message, "name a site with intake Pods, or select clients by spec.from.prefixes"
        if wanted is not None and wanted.namespace_selector is not None and rule.own_pods:
            namespace = service.origin.key.namespace
            message = f"spec.services.rules of SosSite {name} allow services of namespace {namespace} to select their own pods only"
            return "spec.from.pods.namespaceSelector", Reason.NOT_PERMITTED, message, "remove it, or ask the site's owner"
        if self.problem and _selection(service, placed, rule) is not None:
            return "spec.from.pods", Reason.PODS_UNKNOWN, f"the pods of the cluster are unknown: {self.problem}", ""
        return None

    def select(self, service: Service, placed: PlacedSite, rule: Rule, prefixes: Sequence[IPv4Network]) -> ClientPods | None:
        """Return the client pods of a service by node; None if it has no selection, so that all hosts in `prefixes` are its clients."""
        selection = _selection(service, placed, rule)
        if selection is None:
            return None
        nodes = frozenset(node.node.name for node in placed.nodes)
        found = self.pods.select(selection, service.origin.key.namespace, self.namespaces, nodes, prefixes)
        for node in found.crowded:
            message = f"more than {MAX_PODS} selected pods run on node {node}: the others stay plain"
            self.verdicts.warn(service.origin, "spec.from.pods", Reason.LIMIT_EXCEEDED, message, "select fewer pods")
        return found.pods


def _has_pods(placed: PlacedSite) -> bool:
    """True if the agents of a site may intercept connections inside pods. The pods of a peer cluster's site are selected there."""
    if placed.remote:
        return placed.machine is None
    return placed.site.intake is not None and placed.site.intake.type == "Pods"


def _selection(service: Service, placed: PlacedSite, rule: Rule) -> PodSelection | None:
    if placed.remote or not _has_pods(placed):
        return None
    return service.source.pods or (EVERY_OWN_POD if rule.own_pods else None)


class Pods:
    """Pods of the cluster by namespace, each address once."""

    def __init__(self, pods: Iterable[Pod]) -> None:
        youngest: dict[IPv4Address, Pod] = {}
        for pod in sorted(pods, key=lambda pod: (pod.created, pod.namespace, pod.name)):
            if is_ipv4(pod.address):
                youngest[IPv4Address(pod.address)] = pod
        self._of: dict[str, list[tuple[IPv4Address, Pod]]] = {}
        for address, pod in sorted(youngest.items()):
            self._of.setdefault(pod.namespace, []).append((address, pod))

    def select(
        self,
        selection: PodSelection,
        own_namespace: str,
        namespaces: Mapping[str, dict[str, str]],
        nodes: frozenset[str],
        prefixes: Sequence[IPv4Network],
    ) -> Selected:
        """Select pods with addresses inside `prefixes` on some `nodes`. `namespaces`: labels of each namespace."""
        wanted = selection.namespace_selector
        chosen = [own_namespace] if wanted is None else [name for name in self._of if selects(wanted, namespaces.get(name, {}))]
        found: dict[str, list[IPv4Address]] = {}
        for address, pod in (each for name in chosen for each in self._of.get(name, ())):
            inside = any(address in prefix for prefix in prefixes)
            if inside and pod.node in nodes and selects(selection.selector, dict(pod.labels)):
                found.setdefault(pod.node, []).append(address)
        crowded = tuple(sorted(node for node, addresses in found.items() if len(addresses) > MAX_PODS))
        kept = {node: sorted(addresses)[:MAX_PODS] for node, addresses in sorted(found.items())}
        return Selected({node: _prefixes(addresses) for node, addresses in kept.items()}, crowded)


def _prefixes(addresses: Iterable[IPv4Address]) -> tuple[IPv4Network, ...]:
    return tuple(collapse_addresses(IPv4Network(address) for address in addresses))
