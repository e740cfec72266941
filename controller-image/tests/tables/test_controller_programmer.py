"""An entry for several datapaths is installed once all of them have acknowledged it, and failed if one of them refuses it."""

from __future__ import annotations

import itertools

import pytest
from sos_controller.core.commands import Barrier, Command, Install, Withdraw
from sos_controller.core.openflow.flow_entries import FlowEntry, Goto, Match
from sos_controller.core.tables.programmer import Programmer
from sos_controller.core.types import DatapathId, PortNo

ALL = tuple(DatapathId(number) for number in (1, 2, 3))
ENTRY = FlowEntry(0, 100, Match(in_port=PortNo(1)), (Goto(1),), cookie=5)


class Going:
    """An entry on its way to three datapaths."""

    def __init__(self) -> None:
        self.programmer, self.heard, self.out = Programmer(), list[bool](), list[Command]()
        for dpid in ALL:
            self.programmer.sync(dpid, (), [])
        self.programmer.install(ALL, ENTRY, self.heard.append, self.out)
        self.programmer.close(self.out)
        install, barrier = self.out
        assert isinstance(install, Install) and install.dpids == ALL and install.entry == ENTRY
        assert isinstance(barrier, Barrier) and barrier.dpids == ALL
        self.entry, self.token = install.token, barrier.token


@pytest.fixture
def going() -> Going:
    return Going()


@pytest.mark.parametrize("answers", list(itertools.permutations(ALL)))
def test_all_of_them_have_to_answer_in_whatever_order(answers: tuple[DatapathId, ...]) -> None:
    going = Going()
    for dpid in answers[:-1]:
        for _ in range(2):
            assert not going.programmer.acknowledge(dpid, going.token)
    assert not going.heard
    going.programmer.acknowledge(answers[-1], going.token)
    going.programmer.acknowledge(answers[-1], going.token)
    assert going.heard == [True]


def test_a_datapath_that_was_not_asked_says_nothing(going: Going) -> None:
    for token in (going.entry, going.token, going.token + 9):
        going.programmer.acknowledge(DatapathId(9), token)
        going.programmer.reject(DatapathId(9), token)
    assert not going.heard


@pytest.mark.parametrize("what", ["entry", "token"])
def test_one_that_refuses_is_enough(going: Going, what: str) -> None:
    going.programmer.acknowledge(ALL[0], going.token)
    assert not going.programmer.reject(ALL[1], getattr(going, what)), "an entry of a session is no reason to read the datapath again"
    going.programmer.acknowledge(ALL[2], going.token)
    going.programmer.disconnect(ALL[2])
    assert going.heard == [False]


def test_one_that_goes_is_enough_unless_it_had_answered(going: Going) -> None:
    going.programmer.acknowledge(ALL[0], going.token)
    going.programmer.disconnect(ALL[0])
    assert not going.heard
    going.programmer.disconnect(ALL[1])
    assert going.heard == [False]


def test_it_goes_from_where_it_is_and_nothing_has_taken_its_place(going: Going) -> None:
    other = FlowEntry(0, 100, Match(in_port=PortNo(1)), (Goto(1),), cookie=6)
    going.programmer.install(ALL[:1], other, going.heard.append, [])
    going.programmer.disconnect(ALL[1])
    out: list[Command] = []
    going.programmer.remove(ALL, ENTRY, out)
    assert out == [Withdraw(ALL[2:], ENTRY)]
    assert [going.programmer.wants(dpid, ENTRY) for dpid in ALL] == [True, False, False]
    going.programmer.remove(ALL, ENTRY, out)
    assert len(out) == 1


def test_what_is_unanswered_is_bounded(going: Going, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sos_controller.core.tables.programmer.MAX_PENDING", 8)
    base = len(going.programmer._pending)
    assert base == len(ALL), "a barrier for each datapath that was compared"
    assert going.programmer.busy
    for dpid in ALL:
        going.programmer.acknowledge(dpid, going.token)
    assert not going.programmer.busy
