"""Test that each callback runs once with the true outcome, whatever datapaths answer, refuse or drop."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
from hypothesis import given
from sos_controller.core.commands import Barrier, Command
from sos_controller.core.flow_tables.batches import Batches
from sos_controller.core.types import DatapathId

WHERE = [tuple(DatapathId(n) for n in group) for group in ((1,), (2,), (1, 2, 3))]


def test_entries_for_the_same_datapaths_share_a_barrier_until_close() -> None:
    batches, out = Batches(itertools.count(1).__next__), list[Command]()
    tokens = [batches.add(where, lambda _done: None) for where in (WHERE[0], WHERE[2], WHERE[0])]
    batches.close(out)
    assert [barrier.dpids for barrier in out if isinstance(barrier, Barrier)] == [WHERE[0], WHERE[2]]
    assert len({*tokens, *(barrier.token for barrier in out if isinstance(barrier, Barrier))}) == 5
    batches.close(out)
    assert len(out) == 2
    batches.add(WHERE[0], lambda _done: None)
    batches.close(out)
    assert len(out) == 3


def test_refused_entry_does_not_affect_other_entries() -> None:
    batches, out, heard = Batches(itertools.count(1).__next__), list[Command](), dict[str, bool]()
    first = batches.add(WHERE[2], lambda done: heard.update(first=done))
    batches.add(WHERE[2], lambda done: heard.update(second=done))
    batches.close(out)
    (barrier,) = out
    assert isinstance(barrier, Barrier)
    assert batches.reject(WHERE[2][1], first) and heard == {"first": False}
    for dpid in WHERE[2]:
        batches.acknowledge(dpid, barrier.token)
    assert heard == {"first": False, "second": True} and len(batches) == 0


class Watched:
    """Batches with a record of all answers: `answered` has the datapaths per barrier, `behind` the entries that precede a barrier."""

    def __init__(self) -> None:
        self.batches = Batches(itertools.count(1).__next__)
        self.heard: dict[int, list[bool]] = {}
        self.where: dict[int, tuple[DatapathId, ...]] = {}
        self.behind: dict[int, list[int]] = {}
        self.answered: dict[int, set[DatapathId]] = {}
        self.unasked: list[int] = []

    def add(self, which: int) -> None:
        answers: list[bool] = []
        token = self.batches.add(WHERE[which], answers.append)
        self.heard[token], self.where[token] = answers, WHERE[which]
        self.unasked.append(token)

    def close(self) -> None:
        out: list[Command] = []
        self.batches.close(out)
        for barrier in out:
            assert isinstance(barrier, Barrier)
            self.answered[barrier.token] = set()
            self.behind[barrier.token] = [token for token in self.unasked if self.where[token] == barrier.dpids]
        self.unasked.clear()

    def acknowledge(self, dpid: DatapathId, token: int) -> None:
        before = {entry: list(self.heard[entry]) for entry in self.behind.get(token, ())}
        if not self.batches.acknowledge(dpid, token):
            return
        self.answered[token].add(dpid)
        for entry, was in before.items():
            done = self.answered[token].issuperset(self.where[entry])
            assert self.heard[entry] == (was or ([True] if done else [])), "the outcome is True only after all datapaths have answered"

    def fail(self, dpid: DatapathId, token: int | None) -> None:
        """Reject an entry, or disconnect the datapath (no token). The datapath's unanswered entries fail."""
        told = {entry for entry, answers in self.heard.items() if answers}
        gave = {entry for barrier, entries in self.behind.items() if dpid in self.answered[barrier] for entry in entries}
        if token is None:
            self.batches.disconnect(dpid)
        else:
            self.batches.reject(dpid, token)
        for entry, where in self.where.items():
            concerns = (token in (None, entry)) and dpid in where and entry not in gave
            if entry not in told and entry not in self.behind.get(token or 0, ()):
                assert self.heard[entry] == ([False] if concerns else [])


STEPS = st.tuples(st.sampled_from(["add", "close", "acknowledge", "reject", "disconnect"]), st.integers(0, 2), st.integers(0, 20))


@given(st.lists(STEPS, max_size=60))
def test_every_callback_runs_once_with_the_true_outcome(steps: list[tuple[str, int, int]]) -> None:
    watched = Watched()
    for what, which, number in steps:
        dpid = DatapathId(which + 1)
        if what == "add":
            watched.add(which)
        elif what == "close":
            watched.close()
        elif what == "acknowledge":
            watched.acknowledge(dpid, number)
        else:
            watched.fail(dpid, number if what == "reject" else None)
    watched.close()
    for barrier in list(watched.answered):
        for dpid in WHERE[2]:
            watched.acknowledge(dpid, barrier)
    assert all(len(answers) == 1 for answers in watched.heard.values())
    assert len(watched.batches) == 0 and not watched.batches._by_entry and not watched.batches._by_barrier and not watched.batches._open
