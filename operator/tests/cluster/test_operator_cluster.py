"""Kubernetes client of the operator against a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from operator_kube import Kube
from sos_operator.cluster.client import Cluster, connect
from sos_operator.core.model.errors import KindMissing, NotReady, Refused
from sos_operator.core.model.kinds import CONFIG_MAP, NAD, NODE, SECRET


def connected(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test with an administrator's client as first argument, and the API server as second."""

    def run(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
        async def body() -> None:
            async with connect(kube.admin) as cluster:
                await test(cluster, kube, monkeypatch)

        asyncio.run(body())

    run.__name__ = test.__name__
    return run


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": data}


@connected
async def test_applying_twice_changes_nothing(cluster: Cluster, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await cluster.apply(config_map("twice", a="1"))
    second = await cluster.apply(config_map("twice", a="1"))
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
    assert second["kind"] == "ConfigMap"


@connected
async def test_applying_without_a_field_removes_the_field(cluster: Cluster, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.apply(config_map("less", a="1", b="2"))
    assert (await cluster.apply(config_map("less", a="1")))["data"] == {"a": "1"}


@connected
async def test_fields_of_other_clients_are_overwritten(cluster: Cluster, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.apply(config_map("theirs", a="1"))
    kube.kubectl("patch", "configmap", "theirs", "--type=merge", "-p", '{"data":{"a":"edited"}}')
    assert (await cluster.apply(config_map("theirs", a="1")))["data"]["a"] == "1"


@connected
async def test_create_never_overwrites(cluster: Cluster, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "once", "namespace": "default"}, "stringData": {"k": "first"}}
    await cluster.create(secret)
    with pytest.raises(NotReady):
        await cluster.create({**secret, "stringData": {"k": "second"}})
    found = await cluster.get(SECRET, "once", "default")
    assert found is not None
    assert found["data"] == {"k": "Zmlyc3Q="}


@connected
async def test_delete_spares_a_new_object_with_the_same_name(cluster: Cluster, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    old = await cluster.apply(config_map("again"))
    await cluster.delete(old)
    await cluster.delete(old)  # an absent object is no error
    new = await cluster.apply(config_map("again"))
    with pytest.raises(NotReady):
        await cluster.delete(old)
    found = await cluster.get(CONFIG_MAP, "again", "default")
    assert found is not None
    assert found["metadata"]["uid"] == new["metadata"]["uid"]


@connected
async def test_lists_by_label_over_several_pages(cluster: Cluster, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sos_operator.cluster.client.LIST_PAGE", 2)
    for number in range(5):
        labelled = config_map(f"page-{number}")
        labelled["metadata"]["labels"] = {"test": "pages"}
        await cluster.apply(labelled)
    found = await cluster.list(CONFIG_MAP, "default", "test=pages")
    assert sorted(o["metadata"]["name"] for o in found) == [f"page-{n}" for n in range(5)]
    assert all(o["kind"] == "ConfigMap" and o["apiVersion"] == "v1" for o in found)
    assert await cluster.list(NODE) == []


@connected
async def test_errors_are_distinguished_by_type(cluster: Cluster, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not await cluster.serves(NAD)
    assert await cluster.serves(CONFIG_MAP)
    with pytest.raises(KindMissing):
        await cluster.list(NAD, "default")
    with pytest.raises(Refused, match=r"metadata\.name"):
        await cluster.apply(config_map("Not_A_Name"))


def test_an_unreachable_api_server_is_retried(kube: Kube) -> None:
    lost = Kube(kube.folder, "https://127.0.0.1:1", kube.admin).config_for("lost", "token")

    async def attempt() -> None:
        async with connect(lost) as cluster:
            with pytest.raises(NotReady, match="cannot be reached"):
                await cluster.list(NODE)

    asyncio.run(attempt())
