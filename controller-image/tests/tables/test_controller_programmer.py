"""Test entries for several datapaths: installed after all datapaths have acknowledged, failed if one datapath refuses."""

from __future__ import annotations

import itertools

import pytest
from sos_controller.core.commands import Barrier, Command, Install, Withdraw
from sos_controller.core.flow_tables.programmer import Programmer
from sos_controller.core.openflow.flow_entries import FlowEntry, Goto, Match
from sos_controller.core.types import DatapathId, PortNo

ALL = tuple(DatapathId(number) for number in (1, 2, 3))
ENTRY = FlowEntry(0, 100, Match(in_port=PortNo(1)), (Goto(1),), cookie=5)


class Going:
    """Entry that was sent to three datapaths and awaits their answers."""

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
def test_entry_is_installed_after_all_answers_in_any_order(answers: tuple[DatapathId, ...]) -> None:
    going = Going()
    for dpid in answers[:-1]:
        for _ in range(2):
            assert not going.programmer.acknowledge(dpid, going.token)
    assert not going.heard
    going.programmer.acknowledge(answers[-1], going.token)
    going.programmer.acknowledge(answers[-1], going.token)
    assert going.heard == [True]


def test_answers_of_other_datapaths_are_ignored(going: Going) -> None:
    for token in (going.entry, going.token, going.token + 9):
        going.programmer.acknowledge(DatapathId(9), token)
        going.programmer.reject(DatapathId(9), token)
    assert not going.heard


@pytest.mark.parametrize("what", ["entry", "token"])
def test_one_refusal_fails_the_entry(going: Going, what: str) -> None:
    going.programmer.acknowledge(ALL[0], going.token)
    assert not going.programmer.reject(ALL[1], getattr(going, what)), "a refused session entry does not cause a reread of the datapath"
    going.programmer.acknowledge(ALL[2], going.token)
    going.programmer.disconnect(ALL[2])
    assert going.heard == [False]


def test_disconnect_of_an_unanswered_datapath_fails_the_entry(going: Going) -> None:
    going.programmer.acknowledge(ALL[0], going.token)
    going.programmer.disconnect(ALL[0])
    assert not going.heard
    going.programmer.disconnect(ALL[1])
    assert going.heard == [False]


def test_removal_skips_datapaths_where_the_entry_was_replaced(going: Going) -> None:
    other = FlowEntry(0, 100, Match(in_port=PortNo(1)), (Goto(1),), cookie=6)
    going.programmer.install(ALL[:1], other, going.heard.append, [])
    going.programmer.disconnect(ALL[1])
    out: list[Command] = []
    going.programmer.remove(ALL, ENTRY, out)
    assert out == [Withdraw(ALL[2:], ENTRY)]
    assert [going.programmer.wants(dpid, ENTRY) for dpid in ALL] == [True, False, False]
    going.programmer.remove(ALL, ENTRY, out)
    assert len(out) == 1


def test_unanswered_barriers_are_bounded(going: Going, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sos_controller.core.flow_tables.programmer.MAX_PENDING", 8)
    base = len(going.programmer._pending)
    assert base == len(ALL), "one barrier per compared datapath"
    assert going.programmer.busy
    for dpid in ALL:
        going.programmer.acknowledge(dpid, going.token)
    assert not going.programmer.busy
