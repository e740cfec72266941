"""Test NetworkPolicies and PodDisruptionBudgets: they protect their pods without blocking required traffic and evictions."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from sos_compile import NetworkPolicies, Settings, World, compile_world
from worlds import nodes, obj, site, world, worlds

NODES_NETWORK = {"ipBlock": {"cidr": "192.0.2.0/24"}}
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


def of_kind(given_world: World, kind: str) -> dict[str, dict[str, Any]]:
    return {m["metadata"]["name"]: m for m in compile_world(given_world).manifests if m["kind"] == kind}


def ports_of(policy: dict[str, Any]) -> dict[int, list[dict[str, Any]] | None]:
    """Return the permitted peers of each port. None permits all peers."""
    return {port["port"]: rule.get("from") for rule in policy["spec"]["ingress"] for port in rule["ports"]}


@given(worlds())
def test_each_policy_and_budget_selects_the_pods_of_the_workload_of_the_same_name(given_world: World) -> None:
    manifests = compile_world(given_world).manifests
    pods = {m["metadata"]["name"]: m["spec"]["template"] for m in manifests if m["kind"] in {"DaemonSet", "Deployment"}}
    for guard in (m for m in manifests if m["kind"] in {"NetworkPolicy", "PodDisruptionBudget"}):
        selector = guard["spec"].get("podSelector") or guard["spec"]["selector"]
        wanted = selector["matchLabels"].items()
        assert [name for name, pod in pods.items() if wanted <= pod["metadata"]["labels"].items()] == [guard["metadata"]["name"]]
        if guard["kind"] == "NetworkPolicy":
            assert not pods[guard["metadata"]["name"]]["spec"].get("hostNetwork"), "not applied to pods in the host network"


def test_every_port_of_a_controller_accepts_ingress_and_all_egress_is_denied() -> None:
    made = world()
    (policy,), (deployment,) = (list(of_kind(made, kind).values()) for kind in ("NetworkPolicy", "Deployment"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert ports_of(policy) == {port["containerPort"]: None for port in container["ports"]}
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy["spec"], "the field must be absent: API servers drop an empty list, so each apply would be a change"


def test_peers_restrict_each_port_and_the_api_always_admits_the_operator() -> None:
    def narrowed(**peers: Any) -> dict[int, list[dict[str, Any]] | None]:
        settings = Settings(release="r", network_policies=NetworkPolicies(**peers))
        (policy,) = of_kind(world(settings=settings), "NetworkPolicy").values()
        return ports_of(policy)

    assert narrowed(openflow=(NODES_NETWORK,)) == {6653: [NODES_NETWORK], 8080: None}
    labels = {"app.kubernetes.io/name": "sos", "app.kubernetes.io/instance": "r"}
    own = [{"podSelector": {"matchLabels": {**labels, "app.kubernetes.io/component": each}}} for each in ("operator", "test")]
    assert narrowed(api=(MONITORING,)) == {6653: None, 8080: [*own, MONITORING]}


def test_agents_in_the_pod_network_accept_only_their_metrics_port() -> None:
    pool = obj("SosAgent", "pods", {"attach": "Multus"}, uid="u-pods")
    policies = of_kind(world(site("a", "10.0.0.0/16"), pool, nodes=nodes(a=2)), "NetworkPolicy")
    assert set(policies) == {"sos-controller-default", "sos-agent-pods-a"}, "agents in the host's network have no policy"
    policy = policies["sos-agent-pods-a"]
    (daemon_set,) = [m for n, m in of_kind(world(site("a", "10.0.0.0/16"), pool, nodes=nodes(a=2)), "DaemonSet").items() if "pods" in n]
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    assert ports_of(policy) == {port["containerPort"]: None for port in container["ports"]}
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"] and "egress" not in policy["spec"]
    assert [owner["uid"] for owner in policy["metadata"]["ownerReferences"]] == ["u-pods"]
    without = world(site("a", "10.0.0.0/16"), pool, nodes=nodes(a=2), settings=Settings(network_policies=None))
    assert of_kind(without, "NetworkPolicy") == {}


def test_policies_are_optional_and_absent_for_external_controllers() -> None:
    assert of_kind(world(settings=Settings(network_policies=None)), "NetworkPolicy") == {}
    external = obj("SosController", "default", {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"]}})
    assert of_kind(world(external, obj("SosAgent", "default"), defaults=False), "NetworkPolicy") == {}


def test_policy_is_owned_by_its_controller() -> None:
    other = obj("SosController", "other", uid="u-other")
    policy = of_kind(world(other), "NetworkPolicy")["sos-controller-other"]
    assert [owner["uid"] for owner in policy["metadata"]["ownerReferences"]] == ["u-other"]


def test_budget_allows_evicting_one_agent_of_a_site_or_the_only_agent() -> None:
    sites = [site(name, f"10.{i}.0.0/16") for i, name in enumerate("abc")]
    budgets = of_kind(world(*sites, nodes=nodes(a=1, b=2, c=5)), "PodDisruptionBudget")
    assert {name: budget["spec"]["minAvailable"] for name, budget in budgets.items()} == {
        "sos-agent-default-b": 1,
        "sos-agent-default-c": 4,
    }
    assert {budget["spec"]["unhealthyPodEvictionPolicy"] for budget in budgets.values()} == {"AlwaysAllow"}
