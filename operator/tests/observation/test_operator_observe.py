"""Lists of objects that the operator caches, and re-reads of single objects by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sos_operator.cluster.observe import Observer
from sos_operator.core.model.errors import KindMissing, NotReady
from sos_operator.core.model.kinds import NODE, POD_MONITOR, SERVICE, SITE, Kind
from sos_operator.core.model.objects import Resource
from sos_operator.core.model.world import compiled_from
from sos_operator.core.scheduling.change_queue import NAMED_MAX, Changed

RESYNC_S = 60.0


def made(kind: Kind, name: str, version: int = 1, **more: Any) -> dict[str, Any]:
    meta = {"name": name, "uid": f"u-{name}", "resourceVersion": str(version), "generation": 1}
    meta |= {"namespace": "n"} if kind.namespaced else {}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **more}


class Api:
    """Part of an API server that serves lists: it records requests, and `before` may delay or refuse an answer."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = {(o["kind"], o["metadata"]["name"]): o for o in objects}
        self.asked: list[tuple[str, str | None]] = []
        self.at_once = self.most_at_once = 0
        self.before: Callable[[Kind, str | None], Any] | None = None

    async def list(self, kind: Kind, namespace: str | None, selector: str | None, name: str | None = None) -> list[dict[str, Any]]:
        self.asked.append((kind.plural, name))
        found = [o for (k, n), o in sorted(self.objects.items()) if k == kind.kind and name in (None, n)]
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            if self.before:
                await self.before(kind, name)
        finally:
            self.at_once -= 1
        return found

    def set(self, obj: dict[str, Any]) -> Changed:
        self.objects[obj["kind"], obj["metadata"]["name"]] = obj
        plural = {SERVICE.kind: SERVICE.plural, NODE.kind: NODE.plural}[obj["kind"]]
        return Changed(plural, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])

    def taken(self) -> list[tuple[str, str | None]]:
        asked, self.asked = self.asked, []
        return asked


def observer(api: Api) -> Observer:
    return Observer(api, "n", RESYNC_S)  # type: ignore[arg-type]


def names(objects: tuple[Resource, ...], kind: Kind) -> list[str]:
    return [o.name for o in objects if o.kind == kind.kind]


def test_a_changed_object_is_read_by_name_and_keeps_its_place() -> None:
    async def story() -> None:
        api = Api(*(made(SERVICE, name) for name in "abc"), made(NODE, "x"), made(NODE, "y"))
        seeing = observer(api)
        before = await seeing.see(0)
        api.taken()
        assert await seeing.see(1) is before
        assert api.taken() == [], "nothing was stale"
        seeing.forget([api.set(made(SERVICE, "a", 2, status={"written": True})), api.set(made(NODE, "x", 2, status={"heartbeat": 1}))])
        after = await seeing.see(2)
        assert sorted(api.taken()) == [("nodes", "x"), ("sosservices", "a")]
        assert after.objects[0].status == {"written": True}
        assert names(after.objects, SERVICE) == ["a", "b", "c"]
        assert compiled_from(after) == compiled_from(before), "statuses and heartbeats are no input of the compiler"
        await seeing.see(RESYNC_S + 3)
        assert (SERVICE.plural, None) in api.taken(), "after the resync time everything is listed again"

    asyncio.run(story())


def test_new_and_deleted_objects_are_followed() -> None:
    async def story() -> None:
        api = Api(made(SERVICE, "b"))
        seeing = observer(api)
        await seeing.see(0)
        seeing.forget([api.set(made(SERVICE, "a")), api.set(made(SERVICE, "c"))])
        assert names((await seeing.see(1)).objects, SERVICE) == ["a", "b", "c"]
        del api.objects[SERVICE.kind, "b"]
        seeing.forget([Changed(SERVICE.plural, "n", "b")])
        assert names((await seeing.see(2)).objects, SERVICE) == ["a", "c"]

    asyncio.run(story())


def test_a_failed_read_stays_stale() -> None:
    async def story() -> None:
        api = Api(made(SERVICE, "a"), made(SERVICE, "b"))
        seeing = observer(api)
        await seeing.see(0)
        ended = asyncio.Event()

        async def refuse_a_and_be_slow_with_b(_kind: Kind, name: str | None) -> None:
            if name == "a":
                raise NotReady("503")
            await asyncio.sleep(0.05)
            ended.set()

        api.before = refuse_a_and_be_slow_with_b
        seeing.forget([api.set(made(SERVICE, "a", 2)), api.set(made(SERVICE, "b", 2))])
        with pytest.raises(NotReady):
            await seeing.see(1)
        assert ended.is_set(), "a later answer would replace a newer object by an old one"
        api.before = None
        api.set(made(SERVICE, "b", 3))
        seen = await seeing.see(2)
        assert [o.meta.resource_version for o in seen.objects] == ["2", "3"]

    asyncio.run(story())


def test_many_stale_names_cause_few_requests() -> None:
    async def story() -> None:
        api = Api(*(made(SERVICE, f"s{i:03}") for i in range(200)))
        seeing = observer(api)
        await seeing.see(0)

        async def refuse(_kind: Kind, _name: str | None) -> None:
            raise NotReady("503")

        api.before = refuse
        for number in range(200):
            seeing.forget([api.set(made(SERVICE, f"s{number:03}", 2))])
            with pytest.raises(NotReady):
                await seeing.see(1)
        api.before, _ = None, api.taken()
        seen = await seeing.see(2)
        assert api.taken() == [(SERVICE.plural, None)]
        assert api.most_at_once <= NAMED_MAX
        assert {o.meta.resource_version for o in seen.objects} == {"2"}

    asyncio.run(story())


def test_only_the_version_just_written_is_known() -> None:
    async def story() -> None:
        api = Api(made(SERVICE, "a"))
        seeing = observer(api)
        await seeing.see(0)
        change = Changed(SERVICE.plural, "n", "a")
        assert seeing.knows(change, "u-a", "1") and not seeing.knows(change, "u-a", "2")
        seeing.learn(made(SERVICE, "a", 2, status={"by": "us"}))
        assert seeing.knows(change, "u-a", "2") and not seeing.knows(change, "u-a", "1")
        assert not seeing.knows(change, "another", "2")
        assert not seeing.knows(Changed(SERVICE.plural, "n", "b"), "u-b", "1")
        assert (await seeing.see(1)).objects[0].status == {"by": "us"}

    asyncio.run(story())


def test_a_missing_kind_is_an_error_only_if_required() -> None:
    async def story(missing: Kind) -> None:
        async def not_served(kind: Kind, _name: str | None) -> None:
            if kind == missing:
                raise KindMissing(kind.kind)

        api = Api(made(SERVICE, "a"))
        api.before = not_served
        seeing = observer(api)
        seen = await seeing.see(0)
        assert seeing.missing == {missing} and names(seen.objects, SERVICE) == ["a"]

    asyncio.run(story(POD_MONITOR))
    with pytest.raises(KindMissing):
        asyncio.run(story(SITE))
