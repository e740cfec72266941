"""Leader election: the decisions, a candidate with a failing Lease, and the watchdog that always ends the process."""

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
def test_a_holder_ends_before_another_candidate_may_claim(duration: int) -> None:
    terms = Terms(duration)
    # Two renewals may time out before the holder gives up. The watchdog ends the process later, but before the lease runs out.
    assert 2 * (terms.pace + terms.patience) <= terms.give_up < terms.fence < terms.duration


@given(sent=st.floats(0, 1e6), travel=st.floats(0, 5), seen=st.floats(0, 60), paused=st.floats(0, 1e4))
def test_a_candidates_wait_ends_after_the_holders_time_for_any_delay(sent: float, travel: float, seen: float, paused: float) -> None:
    """The holder measures the lease duration from the time of sending, the candidate from the time at which it sees the renewal."""
    sight = look(None, record(), sent + travel + seen)
    claimed_at = sight.since + paused
    if free_in(sight, "me", claimed_at) == 0:
        assert claimed_at >= sent + TERMS.fence


def test_conditions_for_claiming_the_lease() -> None:
    assert free_in(None, "me", 100.0) == 0, "the Lease does not exist yet"
    assert free_in(Sight(record(holder=""), 100.0), "me", 100.0) == 0, "the holder has released it"
    assert free_in(Sight(record(holder="me"), 100.0), "me", 100.0) == 0
    assert free_in(Sight(record(), 100.0), "me", 104.0) == 11
    assert free_in(Sight(record(), 100.0), "me", 115.0) == 0
    assert free_in(Sight(record(duration=60), 100.0), "me", 115.0) == 45, "the holder's own duration counts"


def test_only_a_renewal_or_a_new_holder_restarts_the_wait() -> None:
    first = look(None, record(), 100.0)
    assert look(first, record(version="8"), 110.0) == Sight(record(version="8"), 100.0), "only a label has changed"
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
    """Raised instead of ending the process."""


@dataclass
class Shelf:
    """API server with one Lease, and its injected failures."""

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
    """Run the event loop until `look` returns a true value."""
    try:
        async with asyncio.timeout(within_s):
            while not look():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s: {what}") from None


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Reasons for which candidates would end their process; here the process continues."""
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


def test_the_second_candidate_waits_until_the_first_releases(ended: list[str]) -> None:
    async def body() -> None:
        shelf, turns, stop = Shelf(), list[bool](), asyncio.Event()
        first, second = candidate(shelf), candidate(shelf, turns)
        assert await first.acquire(stop)
        assert shelf.made[0]["metadata"]["ownerReferences"] == [
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "sos-operator", "uid": "u1"}
        ]
        keeping, waiting = asyncio.create_task(first.keep()), asyncio.create_task(second.acquire(stop))
        await asyncio.sleep(2.5)  # longer than the lease's duration, but the lease is renewed
        assert not waiting.done()
        assert turns and all(turns), "the second candidate saw another holder at each look"
        keeping.cancel()
        await first.release()
        assert await asyncio.wait_for(waiting, 1.9), "a released lease is claimed before it would have run out"
        assert shelf.lease and shelf.lease["spec"]["holderIdentity"] == second.me
        assert shelf.lease["spec"]["leaseTransitions"] == 1
        await first.release()
        assert shelf.lease["spec"]["holderIdentity"] == second.me, "a candidate does not release another holder's lease"

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


def test_another_holder_ends_the_process_but_a_new_version_does_not(ended: list[str]) -> None:
    async def body() -> None:
        shelf = Shelf()
        holder = candidate(shelf)
        assert await holder.acquire(asyncio.Event())
        keeping = asyncio.create_task(holder.keep())
        assert shelf.lease
        shelf._store(dict(shelf.lease["spec"]))  # a new version with the same content
        seen = shelf.writes
        await until("the changed Lease is renewed", lambda: shelf.writes > seen)
        assert not keeping.done()
        shelf._store({**shelf.lease["spec"], "holderIdentity": "somebody else"})
        with pytest.raises(Ended):
            await keeping

    asyncio.run(body())
    assert ended == ["it is somebody else's"]


def test_a_waiting_candidate_stops_on_request(ended: list[str]) -> None:
    async def body() -> None:
        shelf, stop = Shelf(), asyncio.Event()
        assert await candidate(shelf).acquire(stop)
        asked = shelf.asked
        waiting = asyncio.create_task(candidate(shelf).acquire(stop))
        await until("the candidate has read the Lease", lambda: shelf.asked > asked)
        stop.set()
        assert await waiting is False
        shelf.away, stop = True, asyncio.Event()
        asked = shelf.asked
        waiting = asyncio.create_task(candidate(shelf).acquire(stop))
        await until("the candidate has tried to read the Lease", lambda: shelf.asked > asked)
        stop.set()
        assert await waiting is False

    asyncio.run(body())


def test_the_watchdog_is_armed_before_a_claim_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server may accept a claim although its answer is lost."""
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
        assert await one.acquire(asyncio.Event()), "the candidate detects that its claim was accepted"

    asyncio.run(body())
    assert order == ["up", "sent", "down", "up"]


@asynccontextmanager
async def opened(shelf: Shelf) -> AsyncIterator[Candidate]:
    yield candidate(shelf)


def test_the_lease_is_released_after_work_ends_or_fails(ended: list[str]) -> None:
    async def body() -> None:
        shelf, stop = Shelf(), asyncio.Event()
        with pytest.raises(ZeroDivisionError):
            async with held(lambda: opened(shelf), stop) as mine:
                assert mine
                stop.set()
                await asyncio.sleep(0.5)  # the time of an orderly shutdown
                assert shelf.lease
                assert shelf.lease["spec"]["holderIdentity"]
                raise ZeroDivisionError
        assert shelf.lease["spec"]["holderIdentity"] is None
        async with held(lambda: opened(shelf), stop) as mine:
            assert not mine, "stopped before it could claim the Lease"
        assert shelf.lease["spec"]["holderIdentity"] is None

    asyncio.run(body())
    assert ended == []


def test_a_candidate_waiting_in_its_thread_stops_on_request(ended: list[str]) -> None:
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
    """Body of a separate process with a real watchdog: block its event loop for longer than the lease's duration."""

    async def body() -> None:
        shelf = Shelf()
        async with held(lambda: opened(shelf), asyncio.Event()) as mine:
            assert mine
            shelf.away, taken = goes_away, shelf.writes
            how(1.75 * SETTINGS.lease_seconds)
            assert shelf.writes > taken + 5, "the lease was renewed during the work"

    asyncio.run(body())


@pytest.mark.parametrize("goes_away", [False, True])
@pytest.mark.parametrize("how", [sleep_on, compute_on])
def test_renewals_continue_while_work_blocks_the_event_loop(how: Callable[[float], None], goes_away: bool) -> None:
    process = multiprocessing.get_context("spawn").Process(target=work_without_a_pause, args=(how, goes_away))
    process.start()
    process.join(60)
    assert process.exitcode == (EXIT_LOST if goes_away else 0), "without renewals the process ends, even during work"


FENCE_S = 0.5
PAST_FENCE_S = 2 * FENCE_S  # after this time, it is certain that the watchdog did not end the process
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


def test_the_watchdog_ends_a_computing_process_even_as_pid_one() -> None:
    with fenced() as process:
        assert process.wait(60) == lease_watchdog.EXIT_STATUS
    with fenced("aside") as process:
        assert process.wait(60) == lease_watchdog.EXIT_STATUS, "the watchdog works if another thread has armed it"
    with fenced(first=("unshare", "--pid", "--fork")) as process:
        assert process.wait(60) == lease_watchdog.EXIT_STATUS
    with fenced("disarmed") as process:
        assert process.wait(60) == 0


def test_the_watchdog_ends_a_resumed_process_before_it_continues() -> None:
    with fenced("renewed") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(PAST_FENCE_S)
        assert process.poll() is None
        process.send_signal(signal.SIGCONT)
        # A process that continued would rearm the watchdog forever.
        assert process.wait(60) == lease_watchdog.EXIT_STATUS


def test_a_missing_answer_is_logged(caplog: pytest.LogCaptureFixture, ended: list[str]) -> None:
    async def body() -> None:
        shelf, stop = Shelf(hangs=True), asyncio.Event()
        waiting = asyncio.create_task(candidate(shelf).acquire(stop))
        await until("the candidate logs that there is no answer", lambda: caplog.records)
        stop.set()
        assert await waiting is False

    asyncio.run(body())
    assert any("no answer in time" in line.getMessage() for line in caplog.records)


@pytest.mark.parametrize("how", [Outcome(failed=True, pending=True), NotReady("refused")])
def test_an_active_operator_is_ready_even_if_passes_fail(how: Outcome | OperatorError) -> None:
    """If readiness required a successful pass, one refused object would block a rolling update: the old operator, possibly without a Lease,
    would keep running beside the new one."""
    health, stop = Health(), asyncio.Event()

    class Work:
        async def reconcile(self, woken: object) -> Outcome:
            assert not health.ready, "not ready before the first pass has ended"
            stop.set()
            if isinstance(how, Exception):
                raise how
            return how

    async def body() -> None:
        await loop._loop(Work(), WorkQueue(), health, Metrics(), stop)  # type: ignore[arg-type]

    asyncio.run(body())
    assert health.ready
