"""NetworkPolicies of controllers and of agents that have a pod network of their own; PodDisruptionBudgets of agents.

Pods on the host's network (nodes, other agents) have no NetworkPolicy: Kubernetes applies none to them.
"""

from __future__ import annotations

from sos_compile.manifests.common import build_selector
from sos_compile.model.world import Json, NetworkPolicies, Settings

OWN_CLIENTS = ("operator", "test")  # component labels of the chart's pods that use a controller's API


def build_network_policy(metadata: Json, selector: dict[str, str], openflow: int, api: int, settings: Settings) -> list[Json]:
    """Return the NetworkPolicy of one controller; empty if policies are disabled.

    OpenFlow connections come from nodes, whose source address at the pod depends on the network plugin, and from switches outside the
    cluster. No static peer covers all these sources in every cluster, so only the installation may narrow the rule. A controller opens no
    connection of its own, so the policy denies all egress, even from a compromised controller.
    """
    policies = settings.network_policies
    if policies is None:
        return []
    return [_answers_only(metadata, selector, [_rule(openflow, list(policies.openflow)), _rule(api, _api_peers(policies, settings))])]


def build_agent_policy(metadata: Json, selector: dict[str, str], metrics: int, settings: Settings) -> list[Json]:
    """Return the NetworkPolicy of agents that are pods of the cluster (attach Multus); empty if policies are disabled.

    Their first interface is for probes and metrics. Relayed traffic passes the second interface, on the site's bridge, to which network
    plugins apply no policies.
    """
    return [_answers_only(metadata, selector, [_rule(metrics, [])])] if settings.network_policies else []


def _answers_only(metadata: Json, selector: dict[str, str], rules: list[Json]) -> Json:
    """Return a policy with these ingress rules and no egress: the type Egress without a rule.

    An empty list of rules would mean the same, but no API server stores an empty list, so each apply would be a change.
    """
    spec = {"podSelector": {"matchLabels": selector}, "policyTypes": ["Ingress", "Egress"], "ingress": rules}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def _api_peers(policies: NetworkPolicies, settings: Settings) -> list[Json]:
    if not policies.api:
        return []
    return [*({"podSelector": {"matchLabels": build_selector(settings, own, {})}} for own in OWN_CLIENTS), *policies.api]


def _rule(port: int, peers: list[Json]) -> Json:
    """Return a rule for one port; without `peers`, for all clients (an empty list would mean the same, but is easily misread)."""
    return {"ports": [{"protocol": "TCP", "port": port}], **({"from": peers} if peers else {})}


def build_disruption_budget(metadata: Json, selector: dict[str, str], agents: int) -> list[Json]:
    """Return the budget of a site's agents: one eviction at a time, as in the DaemonSet's rolling update.

    A single agent gets no budget: with a budget it could never be evicted, and a node that cannot be drained is worse than plain
    connections. The budget states the number of agents that must remain, because a budget cannot use a percentage of a DaemonSet's pods.
    """
    if agents < 2:
        return []
    spec = {
        "minAvailable": agents - 1,
        "selector": {"matchLabels": selector},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",  # an agent that does not run has no sessions
    }
    return [{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}]
