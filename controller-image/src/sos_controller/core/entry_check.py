"""Check that external switches have the entries that they acknowledge.

Some switches ignore fields of a match, for example MAC addresses: an entry for one host would then catch all packets. Others answer a
barrier before the entries are in effect: packets of a new session would bypass its agent. Neither is announced. So before an external
switch gets entries that match MAC addresses, or takes part in sessions, it gets a *test entry* that changes no packet's way even if its
match is ignored, and its entries are read right after the barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final

from sos_controller.core.openflow.flow_entries import FlowEntry, Goto, Match
from sos_controller.core.openflow.pipeline import PRIORITY_TEST, TABLE_FORWARD, TABLE_REDIRECT, Kind, cookie_kind
from sos_controller.core.state import State, Switch
from sos_controller.core.types import DatapathId, MacAddress, format_dpid

AGAIN_S: Final = 60.0
"""Delay before a switch that has failed is checked again, with another test entry: the former one may have become effective."""
ANSWER_S: Final = 5.0
"""Delay before an unanswered read is repeated."""
ATTEMPTS: Final = 256
"""Number of different test entries."""
FAILURES: Final = 2
"""Number of consecutive failures after which a switch is reported: a read that was under way may miss the first test entry."""

IGNORES_MACS: Final = "datapath {}: ignores MAC addresses in entries, so it gets entries of plain forwarding only"
APPLIES_LATE: Final = "datapath {}: acknowledges entries before it applies them, so it gets entries of plain forwarding only"


class Phase(IntEnum):
    """Phase of the check of one switch."""

    SENT = 1
    READ = 2
    FAILED = 3


class EntryCheck:
    """External switches that have not passed, by datapath id."""

    def __init__(self, state: State, read: Callable[[Switch], None]) -> None:
        self._state, self._read = state, read
        self._phases: dict[DatapathId, tuple[Phase, float]] = {}
        self._attempts: dict[DatapathId, int] = {}
        self._failures: dict[DatapathId, int] = {}

    def tick(self) -> None:
        """Begin checks, and repeat unanswered reads and failed checks."""
        state = self._state
        state.accurate &= state.claims.keys()
        for dpid, switch in state.switches.items():
            if not switch.is_ours or dpid in state.accurate or not state.programmer.is_synced(dpid):
                continue
            phase, since = self._phases.get(dpid, (None, 0.0))
            if phase is None or (phase is Phase.FAILED and state.now - since >= AGAIN_S):
                self._send(dpid)
            elif phase is Phase.SENT or (phase is Phase.READ and state.now - since >= ANSWER_S):
                self.acknowledged(dpid)

    def acknowledged(self, dpid: DatapathId) -> None:
        """Read a switch that has just acknowledged all its entries."""
        state, switch = self._state, self._state.switches.get(dpid)
        phase, since = self._phases.get(dpid, (Phase.FAILED, 0.0))
        waits = phase is Phase.SENT or (phase is Phase.READ and state.now - since >= ANSWER_S)
        if switch is not None and waits and state.programmer.is_acknowledged(dpid):
            self._phases[dpid] = (Phase.READ, state.now)
            self._read(switch)

    def entries_read(self, dpid: DatapathId, entries: Iterable[FlowEntry]) -> None:
        """Judge a switch by the entries that were read after the barrier. A switch that has the test entry of an earlier run passes."""
        state, switch = self._state, self._state.switches.get(dpid)
        phase, _ = self._phases.get(dpid, (None, 0.0))
        if switch is None or not switch.is_ours or dpid in state.accurate or phase in (Phase.SENT, Phase.FAILED):
            return
        tests = [entry for entry in entries if entry.priority == PRIORITY_TEST and cookie_kind(entry.cookie) == Kind.FORWARD]
        passed = any(entry.match.eth_dst is not None and entry.match.eth_src is not None for entry in tests)
        if phase is Phase.READ and not any(entry.match == self._match(dpid) for entry in tests):
            self._failed(dpid, IGNORES_MACS if tests and not passed else APPLIES_LATE)
        elif passed:
            self._phases.pop(dpid, None)
            self._failures.pop(dpid, None)
            state.inaccurate.pop(dpid, None)
            state.accurate.add(dpid)
            state.dirty |= {"plan", "forwarding"}

    def _failed(self, dpid: DatapathId, text: str) -> None:
        """Remove the test entry, so that the next run of the controller does not find it, and report a switch that has failed again."""
        state = self._state
        state.programmer.set_group(("test", dpid), {}, state.out)
        self._failures[dpid] = self._failures.get(dpid, 0) + 1
        if self._failures[dpid] < FAILURES:
            del self._phases[dpid]
            return
        self._phases[dpid] = (Phase.FAILED, state.now)
        if dpid not in state.inaccurate:
            state.inaccurate[dpid] = text.format(state.name_of(dpid))
            state.notice("datapath", dpid=format_dpid(dpid), state="inaccurate", message=state.inaccurate[dpid])
            state.dirty |= {"plan", "forwarding"}

    def datapath_down(self, dpid: DatapathId) -> None:
        """Handle a lost datapath: one that has failed is checked again when it reconnects."""
        self._phases.pop(dpid, None)
        self._failures.pop(dpid, None)
        self._state.inaccurate.pop(dpid, None)

    def _send(self, dpid: DatapathId) -> None:
        """Send the next test entry, which replaces the former one."""
        state = self._state
        self._attempts[dpid] = (self._attempts.get(dpid, -1) + 1) % ATTEMPTS
        entry = FlowEntry(TABLE_REDIRECT, PRIORITY_TEST, self._match(dpid), (Goto(TABLE_FORWARD),), state.cookie(Kind.FORWARD))
        self._phases[dpid] = (Phase.SENT, state.now)
        state.programmer.set_group(("test", dpid), {dpid: [entry]}, state.out)

    def _match(self, dpid: DatapathId) -> Match:
        """Return a match of MAC addresses that no device has. Several controllers may check the same switch."""
        number = bytes((*(self._state.controller_id & 0xFFFF).to_bytes(2, "big"), self._attempts.get(dpid, 0)))
        return Match(eth_src=MacAddress(b"\x02S\x01" + number), eth_dst=MacAddress(b"\x02S\x02" + number), any_vlan=True)
