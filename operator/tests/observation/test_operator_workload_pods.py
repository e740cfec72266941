"""Pods of users' workloads: parsing, and the cache of a list and a watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_listing import listing
from sos_compile import Pod
from sos_operator.cluster.workload_pods import REFUSED, RELIST_S, PodObserver
from sos_operator.core.model.errors import NotReady, Refused
from sos_operator.core.workloads.client_pods import PodCache, parse_workload_pod, selects_pods


def pod(name: str = "web-0", **changes: Any) -> dict[str, Any]:
    status = {"phase": "Running", "podIP": "10.1.0.4"} | changes.get("status", {})
    spec = {"nodeName": "a1"} | changes.get("spec", {})
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}}, "spec": spec, "status": status}


def test_a_running_pod_is_a_client() -> None:
    assert parse_workload_pod(pod()) == Pod("default", "web-0", "a1", "10.1.0.4", {"app": "web"})


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": {"nodeName": None}},
        {"spec": {"hostNetwork": True}},
        {"status": {"podIP": None}},
        {"status": {"phase": "Succeeded"}},
        {"status": {"phase": "Failed"}},
    ],
)
def test_a_pod_without_a_network_namespace_of_its_own_is_none(changes: dict[str, Any]) -> None:
    assert parse_workload_pod(pod(**changes)) is None


NAMES = st.sampled_from("abc")
EVENTS = st.lists(st.tuples(NAMES, st.one_of(st.none(), st.integers(0, 2))), max_size=12)


def made(name: str, version: int) -> Pod:
    return Pod("default", name, "a1", f"10.1.0.{version}")


@given(before=EVENTS, during=EVENTS, after=EVENTS)
def test_the_cache_is_the_state_after_all_events(
    before: list[tuple[str, int | None]], during: list[tuple[str, int | None]], after: list[tuple[str, int | None]]
) -> None:
    """A list that is older than some of the events that arrive while the list is read does not undo these events."""
    cache, state = PodCache(), dict[str, Pod]()

    def happen(events: list[tuple[str, int | None]]) -> None:
        for name, version in events:
            now = None if version is None else made(name, version)
            state.pop(name, None)
            if now is not None:
                state[name] = now
            known = cache.pods()
            assert cache.note(("default", name), now) == (cache.pods() != known)

    happen(before)
    cache.begin_list()
    listed = list(state.values())
    happen(during)
    cache.end_list(listed)
    happen(after)
    assert cache.pods() == tuple(state[name] for name in sorted(state))


def test_unchanged_pods_are_the_same_object() -> None:
    """A pass compares the pods by identity."""
    cache = PodCache()
    cache.note(("default", "a"), made("a", 1))
    first = cache.pods()
    assert not cache.note(("default", "a"), made("a", 1))
    cache.begin_list()
    cache.end_list([made("a", 1)])
    assert cache.pods() is first


class Api:
    """API server with these pods, which counts lists."""

    def __init__(self, *pods: dict[str, Any], error: Exception | None = None) -> None:
        self.found, self.error, self.lists = list(pods), error, 0

    async def pages(self, _kind: Any) -> AsyncIterator[list[dict[str, Any]]]:
        self.lists += 1
        if self.error:
            raise self.error
        yield self.found


def observer(api: Api, *, permitted: bool = True) -> PodObserver:
    return PodObserver(api, permitted=permitted)  # type: ignore[arg-type]


def test_pods_are_read_only_while_a_service_selects_pods() -> None:
    async def run() -> None:
        api = Api(pod())
        pods = observer(api)
        assert (await pods.see(False, 0)).pods == ()
        assert not pods.is_wanted() and not pods.note(("default", "x"), made("x", 1))
        assert len((await pods.see(True, 0)).pods) == 1
        assert pods.is_wanted()
        assert pods.note(("default", "x"), made("x", 1))
        assert len((await pods.see(True, 1)).pods) == 2
        assert api.lists == 1
        pods.forget()
        assert len((await pods.see(True, 2)).pods) == 1
        await pods.see(True, 2 + RELIST_S)
        assert api.lists == 3
        assert (await pods.see(False, 3)).pods == ()

    asyncio.run(run())


def test_without_the_right_only_services_that_select_pods_are_refused() -> None:
    async def run() -> None:
        forbidden = Api()
        pods = observer(forbidden, permitted=False)
        assert (await pods.see(True, 0)).problem == REFUSED
        assert forbidden.lists == 0
        taken = Api(pod(), error=Refused("403"))
        pods = observer(taken)
        assert (await pods.see(True, 0)).problem == REFUSED
        taken.error = None
        assert await pods.see(True, 1) == await pods.see(True, 2)
        assert (await pods.see(True, 2)).problem == ""

    asyncio.run(run())


def test_a_pass_fails_while_the_api_server_is_away() -> None:
    """A pass with no pods would make all connections plain."""
    with pytest.raises(NotReady):
        asyncio.run(observer(Api(error=NotReady("503"))).see(True, 0))


def service(source: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "sos.network/v1alpha1",
        "kind": "SosService",
        "metadata": {"name": "s", "namespace": "default"},
        "spec": {"from": source, "to": {"site": "b"}},
    }


def test_services_and_rules_that_select_pods() -> None:
    ruled = {"namespaces": "All", "rules": [{"namespaces": ["x"], "pods": "OwnNamespace"}]}
    site = {"apiVersion": "sos.network/v1alpha1", "kind": "SosSite", "metadata": {"name": "a"}, "spec": {"services": ruled}}
    assert selects_pods(listing(objects=[service({"site": "a", "pods": {}})]))
    assert selects_pods(listing(objects=[site]))
    assert not selects_pods(listing(objects=[service({"site": "a"}), {**site, "spec": {}}]))
