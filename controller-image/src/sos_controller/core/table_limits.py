"""Limits of switches' tables: announced sizes, refusals because of a full table, and switches with too many entries.

A refusal neither disconnects nor distrusts the switch: its entries are read once, their number becomes the limit, and the entries that fit
are corrected. The switch stays in use meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from sos_controller.core import events
from sos_controller.core.openflow.flow_entries import FlowEntry
from sos_controller.core.state import State, Switch
from sos_controller.core.types import DatapathId, format_dpid

LEARN_GAP_S: Final = 5.0
"""Minimum interval of reads after refusals, and delay before an unanswered read is repeated."""
RELEARN_S: Final = 900.0
"""Time after which a limit learned from a refusal is forgotten: the table may have space again. A switch that refuses again teaches the
limit again, at the cost of a few flow-mods."""
READ_UNREADABLE_S: Final = 60.0
"""Delay before a datapath that has reported too many entries is read again."""

TakeOver = Callable[[DatapathId, Iterable[FlowEntry]], tuple[FlowEntry, ...]]
"""Returns the entries to compare (`Balances.take_over`)."""


class Full(NamedTuple):
    """A table that has refused an entry, and the time at which the datapath's entries are read (again)."""

    table: int
    due: float


class TableLimits:
    """Refusals by datapath, until its entries have been read."""

    def __init__(self, state: State, read: Callable[[Switch], None], take_over: TakeOver) -> None:
        self._state, self._read, self._take_over = state, read, take_over
        self._full: dict[DatapathId, Full] = {}
        self._learned_at: dict[DatapathId, float] = {}

    def tables_read(self, event: events.TablesRead) -> None:
        """Bound a datapath by the announced sizes of its tables."""
        switch = self._state.switches.get(event.dpid)
        if switch is not None and switch.claim is not None:
            self._state.programmer.announce(event.dpid, event.sizes)
            self._state.dirty |= {"plan", "forwarding"}

    def refused(self, switch: Switch, token: int, table: int) -> None:
        """Handle a flow-mod refused because a table is full. Refused entries of sessions concern one session only."""
        state, dpid = self._state, switch.dpid
        if not state.programmer.reject(dpid, token, full=True) or not token or dpid in self._full:
            return
        due = self._learned_at.get(dpid, state.now - LEARN_GAP_S) + LEARN_GAP_S
        self._full[dpid] = Full(table, due)
        self._ask(dpid)

    def entries_read(self, event: events.EntriesRead) -> None:
        """Learn a limit if the entries were read after a refusal, and correct the datapath's entries."""
        state, dpid, full = self._state, event.dpid, self._full.pop(event.dpid, None)
        state.unreadable.pop(dpid, None)
        if full is None:
            return
        state.programmer.learn(dpid, full.table, event.entries)
        self._learned_at[dpid] = state.now
        state.dirty |= {"plan", "forwarding"}
        state.notice("datapath", dpid=format_dpid(dpid), state="full", table=full.table, entries=len(event.entries))
        if state.programmer.is_synced(dpid):
            state.programmer.sync(dpid, self._take_over(dpid, event.entries), state.out)

    def unreadable(self, event: events.EntriesUnreadable) -> None:
        """Stop programming a datapath that has too many entries."""
        state, switch = self._state, self._state.switches.get(event.dpid)
        if switch is None or switch.claim is None:
            return
        self._full.pop(event.dpid, None)
        state.unreadable[event.dpid] = switch.asked_at = state.now
        state.programmer.disconnect(event.dpid)
        state.notice("datapath", dpid=format_dpid(event.dpid), state="unreadable")
        state.dirty |= {"plan", "forwarding"}

    def read_again_s(self, dpid: DatapathId, usual_s: float) -> float:
        """Return the delay before a datapath's entries are requested again."""
        return READ_UNREADABLE_S if dpid in self._state.unreadable else usual_s

    def datapath_down(self, dpid: DatapathId) -> None:
        """Handle a lost datapath: its entries are read when it reconnects."""
        self._full.pop(dpid, None)
        self._state.unreadable.pop(dpid, None)

    def tick(self) -> None:
        """Read datapaths with full tables; forget limits that refusals taught long ago."""
        state = self._state
        for dpid in list(self._full):
            self._ask(dpid)
        for dpid in [dpid for dpid, at in self._learned_at.items() if state.now - at >= RELEARN_S]:
            del self._learned_at[dpid]
            state.programmer.forget_learned(dpid)
            state.dirty |= {"plan", "forwarding"}

    def _ask(self, dpid: DatapathId) -> None:
        full, switch = self._full[dpid], self._state.switches.get(dpid)
        if switch is not None and self._state.now >= full.due:
            self._full[dpid] = full._replace(due=self._state.now + LEARN_GAP_S)
            self._read(switch)
