"""`spec.from.pods`: the pods that a service selects as clients (docs/adr/0063)."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import Compiled, Namespace, ObjectKey, Pod, Reason
from sos_compile.model.formats.agent import MAX_PODS
from sos_compile.model.resources import PodSelection
from sos_compile.resolve.services.client_pods import Pods
from test_compile_routed import EAST, POOL, SERVICE, WEST, compiled, problem, site, with_spec

NAMESPACES = (Namespace("default"), Namespace("shop", {"tier": "gold"}))
PODS = (
    Pod("default", "web-0", "a1", "10.1.0.4", {"app": "web"}),
    Pod("default", "web-1", "a1", "10.1.0.5", {"app": "web"}),
    Pod("default", "db-0", "a1", "10.1.0.9", {"app": "db"}),
    Pod("shop", "web-0", "a1", "10.1.0.17", {"app": "web"}),
    Pod("default", "web-2", "b1", "10.2.0.4", {"app": "web"}),
)


def selecting(pods: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return with_spec(SERVICE, **({"from": {"site": "west", "pods": pods}} | changes))


def clients(found: Compiled, node: str = "a1") -> list[str] | None:
    """Clients of the first service of a node's agent; None if the agent has no service."""
    return next((service["from"] for service in found.agents["default", node]["services"]), None)


def selected(*objects: dict[str, Any], pods: tuple[Pod, ...] = PODS) -> Compiled:
    found = compiled(*objects, pods=pods, namespaces=NAMESPACES)
    assert found.problems == ()
    return found


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ({}, ["10.1.0.4/31", "10.1.0.9/32"]),
        ({"selector": {"matchLabels": {"app": "web"}}}, ["10.1.0.4/31"]),
        ({"selector": {"matchLabels": {"app": "web"}}, "namespaceSelector": {}}, ["10.1.0.4/31", "10.1.0.17/32"]),
        ({"namespaceSelector": {"matchLabels": {"tier": "gold"}}}, ["10.1.0.17/32"]),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}, ["10.1.0.17/32"]),
        ({"selector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}}, ["10.1.0.9/32"]),
    ],
)
def test_only_the_selected_pods_are_clients(pods: dict[str, Any], expected: list[str]) -> None:
    assert clients(selected(WEST, EAST, POOL, selecting(pods))) == expected


def test_without_a_selection_all_pods_are_clients() -> None:
    assert clients(selected(WEST, EAST, POOL, SERVICE)) == ["10.1.0.0/16"]


def test_prefixes_and_pods_both_apply() -> None:
    service = selecting({}, **{"from": {"site": "west", "prefixes": ["10.1.0.8/29"], "pods": {}}})
    assert clients(selected(WEST, EAST, POOL, service)) == ["10.1.0.9/32"]


def test_the_servers_agents_permit_the_whole_site() -> None:
    """The server's cluster does not know the pods of the client's cluster; the clients' agents intercept selected pods only."""
    found = selected(WEST, EAST, POOL, selecting({"selector": {"matchLabels": {"app": "db"}}}))
    assert clients(found, "b1") == ["10.1.0.0/16"]


def test_an_agent_without_selected_pods_keeps_its_peers() -> None:
    found = selected(WEST, EAST, POOL, selecting({"selector": {"matchLabels": {"app": "none"}}}))
    document = found.agents["default", "a1"]
    assert document["services"] == []
    assert [peer["site"] for peer in document["peers"]] == ["east"]
    assert found.facts[ObjectKey("SosService", "default", "bulk")].text["from"] == "west, 0 pods"


def test_status_counts_the_pods() -> None:
    found = selected(WEST, EAST, POOL, selecting({}))
    assert found.facts[ObjectKey("SosService", "default", "bulk")].text["from"] == "west, 3 pods"


def test_of_two_pods_with_one_address_the_younger_counts() -> None:
    """An address is assigned again after its pod has ended, perhaps before the operator has seen the end."""
    old = Pod("default", "web-0", "a1", "10.1.0.4", {"app": "web"}, "2026-01-01T00:00:00Z")
    new = Pod("default", "db-7", "a1", "10.1.0.4", {"app": "db"}, "2026-01-02T00:00:00Z")
    service = selecting({"selector": {"matchLabels": {"app": "web"}}})
    for pods in ((old, new), (new, old)):
        assert clients(selected(WEST, EAST, POOL, service, pods=pods)) is None


def test_disjoint_selections_do_not_hide_each_other() -> None:
    web = selecting({"selector": {"matchLabels": {"app": "web"}}})
    db = selecting({"selector": {"matchLabels": {"app": "db"}}})
    db = {**db, "metadata": {**db["metadata"], "name": "backup"}}
    found = selected(WEST, EAST, POOL, web, db)
    assert all(fact.shadow is None for fact in found.facts.values())
    assert [service["from"] for service in found.agents["default", "a1"]["services"]] == [["10.1.0.9/32"], ["10.1.0.4/31"]]


def test_a_pods_change_leaves_the_claim() -> None:
    service = selecting({"selector": {"matchLabels": {"app": "web"}}})
    before, after = (selected(WEST, EAST, POOL, service, pods=pods).allocations.claims for pods in (PODS, PODS[:1]))
    assert before == after


def test_another_selection_is_another_claim() -> None:
    first, second = (selected(WEST, EAST, POOL, selecting(pods)).allocations.claims for pods in ({}, {"namespaceSelector": {}}))
    assert first["default/bulk"].scope != second["default/bulk"].scope


def own_pods_only() -> dict[str, Any]:
    return site("west", "10.1.0.0/16", services={"namespaces": "All", "rules": [{"namespaces": ["default"], "pods": "OwnNamespace"}]})


def test_a_rule_confines_a_namespace_to_its_own_pods() -> None:
    assert clients(selected(own_pods_only(), EAST, POOL, SERVICE)) == ["10.1.0.4/31", "10.1.0.9/32"]
    refused = problem(compiled(own_pods_only(), EAST, POOL, selecting({"namespaceSelector": {}}), pods=PODS))
    assert (refused.path, refused.reason) == ("spec.from.pods.namespaceSelector", Reason.NOT_PERMITTED)


@pytest.mark.parametrize("service", [SERVICE, selecting({})])
def test_services_that_select_pods_are_refused_while_the_pods_are_unknown(service: dict[str, Any]) -> None:
    refused = problem(compiled(own_pods_only(), EAST, POOL, service, pods_problem="the operator may not list pods"))
    assert (refused.path, refused.reason) == ("spec.from.pods", Reason.PODS_UNKNOWN)


def test_other_services_do_not_need_the_pods() -> None:
    assert compiled(WEST, EAST, POOL, SERVICE, pods_problem="the operator may not list pods").problems == ()


def test_hosts_behind_a_router_are_no_pods() -> None:
    routed = site("west", "10.1.0.0/16", intake={"type": "Routed", "interface": "eth1"})
    refused = problem(compiled(routed, EAST, POOL, selecting({}), pods=PODS))
    assert (refused.path, refused.reason) == ("spec.from.pods", Reason.INVALID)
    assert "does not intercept connections inside pods" in refused.message


def test_more_pods_than_an_agent_intercepts_are_left_out_with_a_warning() -> None:
    pods = tuple(Pod("default", f"p{i}", "a1", str(IPv4Address("10.1.0.1") + 2 * i)) for i in range(MAX_PODS + 3))
    found = compiled(WEST, EAST, POOL, selecting({}), pods=pods, namespaces=NAMESPACES)
    assert len(clients(found) or ()) == MAX_PODS
    (warning,) = found.problems
    assert warning.warning and "node a1" in warning.message


LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"))
SOME_PODS = st.lists(
    st.builds(
        Pod,
        namespace=st.sampled_from(["default", "shop"]),
        name=st.text("p", min_size=1, max_size=3),
        node=st.sampled_from(["a1", "a2", ""]),
        address=st.sampled_from(["", "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.9.0.1", "2001:db8::1"]),
        labels=LABELS,
        created=st.sampled_from(["1", "2"]),
    ),
    max_size=12,
)


@given(SOME_PODS, LABELS, st.randoms(use_true_random=False))
def test_selected_addresses_belong_to_matching_pods_in_any_order(pods: list[Pod], labels: dict[str, str], random: Any) -> None:
    pods = [replace(pod, name=f"{pod.name}{i}") for i, pod in enumerate(pods)]
    given_to = (PodSelection({"matchLabels": labels}, None), "default", {}, frozenset({"a1"}), [IPv4Network("10.1.0.0/16")])
    found = Pods(pods).select(*given_to).pods
    addresses = {str(address) for prefix in found.get("a1", ()) for address in prefix}
    assert set(found) <= {"a1"}
    for address in ("10.1.0.1", "10.1.0.2", "10.1.0.3"):
        holder = max((pod for pod in pods if pod.address == address), key=lambda pod: (pod.created, pod.namespace, pod.name), default=None)
        matches = holder and holder.namespace == "default" and holder.node == "a1" and labels.items() <= holder.labels.items()
        assert (address in addresses) == bool(matches)
    shuffled = random.sample(pods, len(pods))
    assert Pods(shuffled).select(*given_to).pods == found
