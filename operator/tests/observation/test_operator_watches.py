"""Restart of ended watches in a running process: in unit tests, and with a real API server behind a faulty proxy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from operator_fixtures import becomes, populated
from operator_kube import Kube
from operator_proxy import FAULTS, Proxy, faulty_proxy
from operator_run import NAMESPACE, Operator, eventually, operator_running
from sos_operator.cluster import watches
from sos_operator.cluster.watches import watching
from sos_operator.core.scheduling.backoff import WATCH_LAST_S, watch_delay


def test_delay_grows_to_its_limit() -> None:
    assert [watch_delay(ends) for ends in (1, 2, 3, 6, 10**6)] == [1, 2, 4, WATCH_LAST_S, WATCH_LAST_S]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "watch_delay", lambda _: 0.01)


ENDS: list[Callable[[], Any]] = [lambda: 1 / 0, lambda: None, lambda: asyncio.current_task().cancel()]  # type: ignore[union-attr]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("end", ENDS, ids=["raises", "returns", "is cancelled"])
def test_an_ended_watch_restarts_and_other_watches_continue(end: Callable[[], Any]) -> None:
    lives, told = dict.fromkeys(("ending", "steady"), 0), list[tuple[str, int]]()
    home = threading.get_ident()

    async def ending(stop: asyncio.Event) -> None:
        lives["ending"] += 1
        # as kopf does: cancel all other tasks of the loop
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        if lives["ending"] < 4:
            end()
            await asyncio.sleep(0)
        else:
            await stop.wait()

    async def steady(stop: asyncio.Event) -> None:
        lives["steady"] += 1
        await stop.wait()

    async def body() -> None:
        beside = asyncio.create_task(asyncio.sleep(3600))
        async with watching({"ending": ending, "steady": steady}, lambda name: told.append((name, threading.get_ident()))):
            async with asyncio.timeout(10):
                while len(told) < 3 or lives["ending"] < 4:  # the end is reported before the watch restarts
                    await asyncio.sleep(0.01)
        assert not beside.done() and not beside.cancelled()
        beside.cancel()

    asyncio.run(body())
    assert lives == {"ending": 4, "steady": 1}
    assert told == [("ending", home)] * 3, "ends are reported in the loop of the caller"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch-")]


def test_a_watch_that_does_not_end_delays_no_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "END_S", 0.1)
    release = threading.Event()

    async def stubborn(_: asyncio.Event) -> None:
        release.wait(30)

    async def body() -> None:
        async with watching({"stubborn": stubborn}, lambda _: None):
            await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(body(), 10))
    release.set()


@pytest.mark.usefixtures("at_once")
def test_a_task_that_ignores_cancellation_does_not_block_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "TASKS_END_S", 0.05)
    lives = 0

    async def deaf() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    async def watch(stop: asyncio.Event) -> None:
        nonlocal lives
        lives += 1
        tasks.append(asyncio.create_task(deaf()))
        await asyncio.sleep(0.01)
        if lives > 2:
            await stop.wait()

    async def body() -> None:
        async with watching({"watch": watch}, lambda _: None), asyncio.timeout(10):
            while lives < 3:
                await asyncio.sleep(0.01)

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(body())


@pytest.fixture(scope="module")
def behind(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Operator, Proxy]]:
    """An operator that connects to the API server through a proxy."""
    with populated(installed) as kube, faulty_proxy(kube) as proxy:
        token = kube.kubectl("create", "token", "sos-operator", "-n", NAMESPACE, "--duration=2h").stdout.strip()
        config = str(proxy.config(kube, token))
        folder = tmp_path_factory.mktemp("watches")
        with operator_running(kube, folder, KUBECONFIG=config, SOS_CONTROLLER_API_OVERRIDE="default=http://127.0.0.1:1") as running:
            yield running, proxy


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_operator_survives_any_answer_of_an_api_server(behind: tuple[Operator, Proxy], fault: str) -> None:
    """Inject a fault until three requests have met it; afterwards a watch must report a new object before the next regular pass."""
    operator, proxy = behind
    with proxy.fault(fault):
        eventually("the operator meets the fault", lambda: proxy.met >= 3, 60)
        assert operator.process.poll() is None
    name = f"after-{fault}"
    operator.kube.apply({"apiVersion": "sos.network/v1alpha1", "kind": "SosController", "metadata": {"name": name}, "spec": {}})
    becomes(operator.kube, f"soscontroller/{name}", "Accepted", "True", "Accepted", within=60)
    assert operator.process.poll() is None
    assert "sos_operator_bugs_total{" not in operator.http("/metrics")[1]


def test_the_operator_recovers_from_a_temporary_loss_of_rights(behind: tuple[Operator, Proxy]) -> None:
    operator, _ = behind
    kube = operator.kube
    kind, name = "clusterrolebinding", "sos-operator"
    saved = kube.get(kind, name)
    meta = {"name": name, "labels": saved["metadata"].get("labels", {}), "annotations": saved["metadata"].get("annotations", {})}
    kube.kubectl("delete", kind, name)
    try:
        eventually("a pass fails", lambda: 'result="failed"' in operator.http("/metrics")[1], 60)
    finally:
        kube.apply({**{key: saved[key] for key in ("apiVersion", "kind", "roleRef", "subjects")}, "metadata": meta})
    kube.apply({"apiVersion": "sos.network/v1alpha1", "kind": "SosController", "metadata": {"name": "allowed"}, "spec": {}})
    becomes(kube, "soscontroller/allowed", "Accepted", "True", "Accepted", within=60)
    assert operator.process.poll() is None
