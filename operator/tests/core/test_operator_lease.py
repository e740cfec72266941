"""Leader election: the decisions, a candidate with a misbehaving Lease, and the watchdog that always ends the process."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_operator import loop
from sos_operator.cluster import lease_watchdog
from sos_operator.cluster.lease import EXIT_LOST, Candidate, held
from sos_operator.cluster.work_queue import WorkQueue
from sos_operator.core.model.errors import NotReady, OperatorError
from sos_operator.core.model.kinds import DEPLOYMENT, Kind
from sos_operator.core.model.options import Images, Settings
from sos_operator.core.scheduling.backoff import Outcome
from sos_operator.core.scheduling.lease import Record, Sight, Terms, claim, free_in, look, read, release
from sos_operator.process.health import Health
from sos_operator.process.metrics import Metrics

TERMS = Terms(15)
SETTINGS = Settings(namespace="sos-system", images=Images(controller="c", agent="a", node="n", ovs="o"), lease="turn", lease_seconds=2)


def record(holder: str = "other", renewed: str = "t1", **other: Any) -> Record:
    return Record(**{"holder": holder, "renewed": renewed, "duration": 15, "transitions": 3, "version": "7", **other})


@pytest.mark.parametrize("duration", [3, 5, 15, 60])
def test_a_holder_has_ended_before_anybody_else_may_take_its_lease(duration: int) -> None:
    terms = Terms(duration)
    # Two renewals may fail, each with all its patience, before it gives up; the kernel has the last word, and that is early enough.
    assert 2 * (terms.pace + terms.patience) <= terms.give_up < terms.fence < terms.duration


@given(sent=st.floats(0, 1e6), travel=st.floats(0, 5), seen=st.floats(0, 60), paused=st.floats(0, 1e4))
def test_a_candidates_wait_ends_after_the_holders_time_for_any_delay(sent: float, travel: float, seen: float, paused: float) -> None:
    """The holder counts from when it sends, the candidate from when it sees what has arrived."""
    sight = look(None, record(), sent + travel + seen)
    claimed_at = sight.since + paused
    if free_in(sight, "me", claimed_at) == 0:
        assert claimed_at >= sent + TERMS.fence


def test_conditions_for_claiming_the_lease() -> None:
    assert free_in(None, "me", 100.0) == 0, "nobody has made it yet"
    assert free_in(Sight(record(holder=""), 100.0), "me", 100.0) == 0, "given up"
    assert free_in(Sight(record(holder="me"), 100.0), "me", 100.0) == 0
    assert free_in(Sight(record(), 100.0), "me", 104.0) == 11
    assert free_in(Sight(record(), 100.0), "me", 115.0) == 0
    assert free_in(Sight(record(duration=60), 100.0), "me", 115.0) == 45, "the holder's own word for how long it lasts"


def test_only_a_renewal_or_another_holder_is_news() -> None:
    first = look(None, record(), 100.0)
    assert look(first, record(version="8"), 110.0) == Sight(record(version="8"), 100.0), "a label that somebody put on it"
    assert look(first, record(renewed="t2"), 110.0).since == 110.0
    assert look(first, record(holder="third"), 110.0).since == 110.0


def test_a_claim_names_the_version_it_was_based_on() -> None:
    assert claim(None, "me", "now", TERMS)["spec"]["acquireTime"] == "now"
    taken = claim(record(), "me", "now", TERMS)
    assert taken["metadata"] == {"resourceVersion": "7"}
    assert taken["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "renewTime": "now",
        "acquireTime": "now",
        "leaseTransitions": 4,
    }
    renewed = claim(record(holder="me"), "me", "now", TERMS)["spec"]
    assert set(renewed) == {"holderIdentity", "leaseDurationSeconds", "renewTime"}
    assert release(record(holder="me")) == {"metadata": {"resourceVersion": "7"}, "spec": {"holderIdentity": None}}


def test_valid_fields_of_a_foreign_lease_are_read() -> None:
    bare = read({"metadata": {"resourceVersion": "1"}}, TERMS)
    assert (bare.holder, bare.renewed, bare.duration, bare.transitions) == ("", "", 15, 0)
    odd = {"holderIdentity": "x", "leaseDurationSeconds": -4, "leaseTransitions": "many", "renewTime": "2026-01-01T00:00:00.000000Z"}
    found = read({"metadata": {"resourceVersion": "1"}, "spec": odd}, TERMS)
    assert (found.holder, found.duration, found.transitions) == ("x", 15, 0)


class Ended(BaseException):
    """Instead of the end of the process."""


@dataclass
class Shelf:
    """One Lease, as an API server keeps it, and what goes wrong with it."""

    lease: dict[str, Any] | None = None
    away: bool = False
    hangs: bool = False
    writes: int = 0
    asked: int = 0
    made: list[dict[str, Any]] = field(default_factory=list)

    async def get(self, kind: Kind, name: str, namespace: str) -> dict[str, Any] | None:
        await self._answer()
        if kind is DEPLOYMENT:
            return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "uid": "u1"}}
        return self.lease and {**self.lease, "metadata": dict(self.lease["metadata"]), "spec": dict(self.lease["spec"])}

    async def create(self, obj: dict[str, Any]) -> dict[str, Any]:
        await self._answer()
        if self.lease is not None:
            raise NotReady("exists")
        self.made.append(obj)
        return self._store(obj["spec"])

    async def merge(self, obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
        await self._answer()
        if self.lease is None or patch["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise NotReady("409")
        return self._store({**self.lease["spec"], **patch["spec"]})

    def _store(self, spec: dict[str, Any]) -> dict[str, Any]:
        self.writes += 1
        self.lease = {"metadata": {"resourceVersion": str(self.writes)}, "spec": spec}
        return self.lease

    async def _answer(self) -> None:
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(3600)
        if self.away:
            raise NotReady("cannot be reached")


async def until(what: str, look: Callable[[], Any], within_s: float = 10.0) -> None:
    """Let the event loop turn until `look` gives something true."""
    try:
        async with asyncio.timeout(within_s):
            while not look():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s: {what}") from None


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why a candidate ended its process; here nobody's process ends."""
    reasons: list[str] = []

    def end(_: Candidate, why: str) -> None:
        reasons.append(why)
        raise Ended

    monkeypatch.setattr(Candidate, "_end", end)
    monkeypatch.setattr(lease_watchdog, "arm", lambda seconds: None)
    monkeypatch.setattr(lease_watchdog, "disarm", lambda: None)
    return reasons


def candidate(shelf: Shelf, turns: list[bool] | None = None) -> Candidate:
    return Candidate(shelf, SETTINGS, (turns if turns is not None else []).append)  # type: ignore[arg-type]


def test_the_first_makes_it_the_second_waits_and_is_next(ended: list[str]) -> None:
    async def body() -> None:
        shelf, turns, stop = Shelf(), list[bool](), asyncio.Event()
        first, second = candidate(shelf), candidate(shelf, turns)
        assert await first.acquire(stop)
        assert shelf.made[0]["metadata"]["ownerReferences"] == [
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "sos-operator", "uid": "u1"}
        ]
        keeping, waiting = asyncio.create_task(first.keep()), asyncio.create_task(second.acquire(stop))
        await asyncio.sleep(2.5)  # longer than the lease lasts, but it is renewed
        assert not waiting.done()
        assert turns and all(turns), "another's turn, each time it looked"
        keeping.cancel()
        await first.release()
        assert await asyncio.wait_for(waiting, 1.9), "sooner than the lease would have run out"
        assert shelf.lease and shelf.lease["spec"]["holderIdentity"] == second.me
        assert shelf.lease["spec"]["leaseTransitions"] == 1
        await first.release()
        assert shelf.lease["spec"]["holderIdentity"] == second.me, "what is another's is not given up"

    asyncio.run(body())
    assert ended == []


@pytest.mark.parametrize("trouble", ["away", "hangs"])
def test_a_holder_that_cannot_renew_ends(ended: list[str], trouble: str) -> None:
    async def body() -> None:
        shelf = Shelf()
        holder = candidate(shelf)
        assert await holder.acquire(asyncio.Event())
        setattr(shelf, trouble, True)
        with pytest.raises(Ended):
            await holder.keep()

    asyncio.run(body())
    assert ended == ["no renewal in time"]


def test_another_holder_ends_the_process_and_a_changed_label_does_not(ended: list[str]) -> None:
    async def body() -> None:
        shelf = Shelf()
        holder = candidate(shelf)
        assert await holder.acquire(asyncio.Event())
        keeping = asyncio.create_task(holder.keep())
        assert shelf.lease
        shelf._store(dict(shelf.lease["spec"]))  # a new version with the same content
        seen = shelf.writes
        await until("it is renewed all the same", lambda: shelf.writes > seen)
        assert not keeping.done()
        shelf._store({**shelf.lease["spec"], "holderIdentity": "somebody else"})
        with pytest.raises(Ended):
            await keeping

    asyncio.run(body())
    assert ended == ["it is somebody else's"]


def test_a_waiting_candidate_stops_when_asked(ended: list[str]) -> None:
    async def body() -> None:
        shelf, stop = Shelf(), asyncio.Event()
        assert await candidate(shelf).acquire(stop)
        asked = shelf.asked
        waiting = asyncio.create_task(candidate(shelf).acquire(stop))
        await until("it has looked", lambda: shelf.asked > asked)
        stop.set()
        assert await waiting is False
        shelf.away, stop = True, asyncio.Event()
        asked = shelf.asked
        waiting = asyncio.create_task(candidate(shelf).acquire(stop))
        await until("it has looked", lambda: shelf.asked > asked)
        stop.set()
        assert await waiting is False

    asyncio.run(body())


def test_the_fence_is_up_before_a_claim_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim may arrive although its answer does not."""
    order: list[str] = []
    monkeypatch.setattr(lease_watchdog, "arm", lambda seconds: order.append("up"))
    monkeypatch.setattr(lease_watchdog, "disarm", lambda: order.append("down"))

    async def body() -> None:
        shelf = Shelf()

        async def lost(obj: dict[str, Any]) -> dict[str, Any]:
            order.append("sent")
            shelf._store(obj["spec"])
            await asyncio.sleep(3600)
            return {}

        monkeypatch.setattr(shelf, "create", lost)
        one = candidate(shelf)
        assert await one.acquire(asyncio.Event()), "it finds out that its claim has arrived"

    asyncio.run(body())
    assert order == ["up", "sent", "down", "up"]


@asynccontextmanager
async def opened(shelf: Shelf) -> AsyncIterator[Candidate]:
    yield candidate(shelf)


def test_it_is_given_up_after_the_work_however_that_ends(ended: list[str]) -> None:
    async def body() -> None:
        shelf, stop = Shelf(), asyncio.Event()
        with pytest.raises(ZeroDivisionError):
            async with held(lambda: opened(shelf), stop) as mine:
                assert mine
                stop.set()
                await asyncio.sleep(0.5)  # its own way to an orderly end
                assert shelf.lease
                assert shelf.lease["spec"]["holderIdentity"]
                raise ZeroDivisionError
        assert shelf.lease["spec"]["holderIdentity"] is None
        async with held(lambda: opened(shelf), stop) as mine:
            assert not mine, "told to stop before"
        assert shelf.lease["spec"]["holderIdentity"] is None

    asyncio.run(body())
    assert ended == []


def test_a_candidate_waiting_in_its_thread_stops_when_asked(ended: list[str]) -> None:
    async def body() -> None:
        shelf, stop = Shelf(away=True), asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, stop.set)
        async with asyncio.timeout(5), held(lambda: opened(shelf), stop) as mine:
            assert not mine

    asyncio.run(body())


def test_an_error_in_creating_a_candidate_is_reported(ended: list[str]) -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[Candidate]:
        raise NotReady("no kubeconfig")
        yield

    async def body() -> None:
        with pytest.raises(NotReady, match="no kubeconfig"):
            async with held(broken, asyncio.Event()) as mine:
                assert not mine

    asyncio.run(body())


def sleep_on(seconds: float) -> None:
    time.sleep(seconds)


def compute_on(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


def work_without_a_pause(how: Callable[[float], None], goes_away: bool) -> None:
    """A process of its own, with a real fence, whose event loop does not turn for longer than its lease lasts."""

    async def body() -> None:
        shelf = Shelf()
        async with held(lambda: opened(shelf), asyncio.Event()) as mine:
            assert mine
            shelf.away, taken = goes_away, shelf.writes
            how(1.75 * SETTINGS.lease_seconds)
            assert shelf.writes > taken + 5, "renewed all the while"

    asyncio.run(body())


@pytest.mark.parametrize("goes_away", [False, True])
@pytest.mark.parametrize("how", [sleep_on, compute_on])
def test_work_that_keeps_the_event_loop_busy_keeps_no_renewal_waiting(how: Callable[[float], None], goes_away: bool) -> None:
    process = multiprocessing.get_context("spawn").Process(target=work_without_a_pause, args=(how, goes_away))
    process.start()
    process.join(60)
    assert process.exitcode == (EXIT_LOST if goes_away else 0), "without renewals it ends, also in the middle of work"


FENCE_S = 0.5
PAST_FENCE_S = 2 * FENCE_S  # that a fence does not end a process can only be seen once its time is over
FENCED = f"""
import sys, threading, time
from sos_operator.cluster import lease_watchdog
if "aside" in sys.argv:
    arming = threading.Thread(target=lease_watchdog.arm, args=({FENCE_S},))
    arming.start()
    arming.join()
else:
    lease_watchdog.arm({FENCE_S})
print("armed", flush=True)
while True:
    sum(range(1_000_000))  # no system call, no wait
    if "renewed" in sys.argv:
        lease_watchdog.arm({FENCE_S})
    if "disarmed" in sys.argv:
        lease_watchdog.disarm()
        time.sleep({PAST_FENCE_S})
        break
"""


def fenced(*words: str, first: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    environment = {name: os.environ[name] for name in ("PATH",)}
    return subprocess.Popen([*first, sys.executable, "-c", FENCED, *words], stdout=subprocess.PIPE, text=True, env=environment)


def test_the_fence_ends_a_process_that_computes_also_the_first_of_a_container() -> None:
    with fenced() as process:
        assert process.wait(60) == lease_watchdog.EXIT_STATUS
    with fenced("aside") as process:
        assert process.wait(60) == lease_watchdog.EXIT_STATUS, "armed in another thread"
    with fenced(first=("unshare", "--pid", "--fork")) as process:
        assert process.wait(60) == lease_watchdog.EXIT_STATUS
    with fenced("disarmed") as process:
        assert process.wait(60) == 0


def test_the_fence_ends_a_process_that_was_stopped_before_it_does_anything() -> None:
    with fenced("renewed") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(PAST_FENCE_S)
        assert process.poll() is None
        process.send_signal(signal.SIGCONT)
        # Had it gone on, it would have armed the fence again, for ever.
        assert process.wait(60) == lease_watchdog.EXIT_STATUS


def test_no_answer_is_said_in_words(caplog: pytest.LogCaptureFixture, ended: list[str]) -> None:
    async def body() -> None:
        shelf, stop = Shelf(hangs=True), asyncio.Event()
        waiting = asyncio.create_task(candidate(shelf).acquire(stop))
        await until("it is told that there is no answer", lambda: caplog.records)
        stop.set()
        assert await waiting is False

    asyncio.run(body())
    assert any("no answer in time" in line.getMessage() for line in caplog.records)


@pytest.mark.parametrize("how", [Outcome(failed=True, pending=True), NotReady("refused")])
def test_an_active_operator_is_ready_even_if_passes_fail(how: Outcome | OperatorError) -> None:
    """Else one object that is refused for ever keeps an old operator, which may know no Lease, at work beside the new one."""
    health, stop = Health(), asyncio.Event()

    class Work:
        async def reconcile(self, woken: object) -> Outcome:
            assert not health.ready, "no pass has ended yet"
            stop.set()
            if isinstance(how, Exception):
                raise how
            return how

    async def body() -> None:
        await loop._loop(Work(), WorkQueue(), health, Metrics(), stop)  # type: ignore[arg-type]

    asyncio.run(body())
    assert health.ready
