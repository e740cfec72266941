"""Requests of a pass: bounded wait, at most one request per peer in flight, no answer lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from sos_operator.remote import bounded_requests
from sos_operator.remote.bounded_requests import BoundedRequests, in_batches


def no_bug(name: str, error: BaseException) -> None:
    raise AssertionError(name) from error


def test_a_slow_peer_delays_no_pass_and_its_late_answer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_requests, "ANSWER_WAIT_S", 0.05)

    async def body() -> None:
        calls, heard, late = BoundedRequests(no_bug), list[str](), list[float]()
        gate = asyncio.Event()

        async def slow() -> None:
            heard.append("asked")
            await gate.wait()
            heard.append("answered")

        async def quick() -> None:
            heard.append("quick")

        for _ in range(2):  # the gate is closed, so a run that waits for the slow request would not return
            await calls.run({"slow": slow, "quick": quick}, lambda: late.append(time.monotonic()))
        assert heard == ["asked", "quick", "quick"], "one request at a time to a peer that does not answer"
        assert calls.names == {"slow"}
        gate.set()
        await asyncio.sleep(0.01)
        assert heard[-1] == "answered"
        assert late, "a late answer wakes the loop"
        assert calls.names == frozenset()

    asyncio.run(body())


def test_close_leaves_no_task_and_bugs_are_reported() -> None:
    """A bug in one call is reported with the call's name, and other calls continue."""

    async def body() -> None:
        bugs: list[tuple[str, str]] = []
        calls = BoundedRequests(lambda name, error: bugs.append((name, str(error))))

        async def never() -> None:
            await asyncio.Event().wait()

        async def broken() -> None:
            raise LookupError("a bug")

        await calls.run({"broken": broken}, lambda: None)
        await calls.run({}, lambda: None)
        assert bugs == [("broken", "a bug")]
        waiting = asyncio.create_task(calls.run({"never": never}, lambda: None))
        await asyncio.sleep(0)
        await calls.close()
        await waiting
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(body())


def test_calls_run_in_batches_until_the_first_error() -> None:
    under_way, most, made = set[int](), list[int](), list[int]()

    def call(number: int, *, fails: bool = False) -> Callable[[], Awaitable[None]]:
        async def made_call() -> None:
            under_way.add(number)
            most.append(len(under_way))
            await asyncio.sleep(0)
            under_way.discard(number)
            if fails:
                raise ConnectionError(str(number))
            made.append(number)

        return made_call

    asyncio.run(in_batches((call(number) for number in range(10)), 4))
    assert (sorted(made), max(most), under_way) == (list(range(10)), 4, set())
    made.clear()
    with pytest.raises(ConnectionError, match="1"):
        asyncio.run(in_batches((call(number, fails=number == 1) for number in range(10)), 4))
    assert sorted(made) == [0, 2, 3], "the batch finishes, the next batch does not start"
    asyncio.run(in_batches((), 4))
