"""Renewals of leases: the same tuple of entries until a group changes, and encoded once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.commands import Apply, Command
from sos_controller.core.flow_tables.programmer import Programmer
from sos_controller.core.openflow.flow_entries import FlowEntry, Goto, Match
from sos_controller.core.openflow.pipeline import LEASE_S, Kind, cookie
from sos_controller.core.types import DatapathId, PortNo
from sos_controller.openflow import flow_mods

DPIDS = (DatapathId(1), DatapathId(2))


def entry(port: int, kind: Kind = Kind.PUNT) -> FlowEntry:
    return FlowEntry(1, 100, Match(in_port=PortNo(port)), (Goto(2),), cookie(1, kind, 1), LEASE_S)


def renewed(programmer: Programmer) -> dict[DatapathId, tuple[FlowEntry, ...]]:
    out: list[Command] = []
    programmer.renew("punts", out)
    assert all(isinstance(c, Apply) and c.deletes == () and c.token == 0 and not c.barrier for c in out)
    return {c.dpid: c.adds for c in out if isinstance(c, Apply)}


def test_renewal_resends_the_same_tuple_until_the_group_changes() -> None:
    programmer = Programmer()
    for dpid in DPIDS:
        programmer.sync(dpid, (), [])
    programmer.set_group("punts", {dpid: [entry(1), entry(2)] for dpid in DPIDS}, [])
    first = renewed(programmer)
    assert first == dict.fromkeys(DPIDS, (entry(1), entry(2)))
    programmer.set_group("punts", {dpid: [entry(1), entry(2)] for dpid in DPIDS}, [])
    assert all(renewed(programmer)[dpid] is first[dpid] for dpid in DPIDS)
    programmer.set_group("punts", {DPIDS[0]: [entry(3)]}, [])
    assert renewed(programmer) == {DPIDS[0]: (entry(3),)}
    programmer.disconnect(DPIDS[0])
    assert renewed(programmer) == {}
    programmer.set_group("punts", {}, [])
    programmer.sync(DPIDS[0], (), [])
    assert renewed(programmer) == {}


TUPLES = [tuple(entry(port, kind) for port in range(1, count)) for kind in (Kind.PUNT, Kind.MEASURE) for count in (1, 2, 4)]
commands = st.builds(
    Apply, st.sampled_from(DPIDS), st.sampled_from(TUPLES), st.sampled_from(((), (entry(9),))), st.sampled_from((0, 7)), st.booleans()
)


@given(st.lists(st.one_of(commands, st.sampled_from(DPIDS)), max_size=30))
def test_remembered_encodings_equal_fresh_encodings(steps: list[Apply | DatapathId]) -> None:
    renewals = flow_mods.Renewals()
    for step in steps:
        if isinstance(step, Apply):
            assert renewals.encode(step) == flow_mods.apply(step)
        else:
            renewals.forget(step)


def test_renewal_is_encoded_once_for_each_datapath_and_kind() -> None:
    renewals = flow_mods.Renewals()
    punts, copies = (entry(1), entry(2)), (entry(1, Kind.MEASURE),)
    before = {(dpid, e): renewals.encode(Apply(dpid, e, (), 0, False)) for dpid in DPIDS for e in (punts, copies)}
    for (dpid, entries), encoded in before.items():
        assert renewals.encode(Apply(dpid, entries, (), 0, False)) is encoded
    renewals.forget(DPIDS[0])
    assert renewals.encode(Apply(DPIDS[0], punts, (), 0, False)) is not before[DPIDS[0], punts]
    assert renewals.encode(Apply(DPIDS[1], punts, (), 0, False)) is before[DPIDS[1], punts]
