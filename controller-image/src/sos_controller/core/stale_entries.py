"""Entries of an earlier run of the controller, kept until this run has discovered enough to make its own entries."""

from __future__ import annotations

from typing import Final, NamedTuple

from sos_controller.core.openflow.flow_entries import FlowEntry
from sos_controller.core.openflow.pipeline import Kind, cookie_kind
from sos_controller.core.state import State
from sos_controller.core.types import DatapathId

KEEP_S: Final = 6.0
"""Minimum time for which stale entries are kept, so that this run discovers agents and links before it removes the entries that use
them."""
KEEP_PATHS_S: Final = 30.0
"""Lifetime of path entries while a datapath at their other end may still be missing: switches try to reconnect every 8 s."""


class Kept(NamedTuple):
    """Stale entries of one datapath, and the time at which they were read."""

    since: float
    entries: list[FlowEntry]


class StaleEntries:
    """Stale entries by datapath."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._kept: dict[DatapathId, Kept] = {}

    def keep(self, dpid: DatapathId, entries: list[FlowEntry]) -> None:
        """Keep the entries of a datapath that has just been read."""
        if entries:
            self._set(dpid, Kept(self._state.now, entries))

    def drop(self, dpid: DatapathId) -> None:
        """Drop a datapath's stale entries."""
        if self._kept.pop(dpid, None) is not None:
            self._state.programmer.set_group(("kept", dpid), {}, self._state.out)

    def tick(self, missing: bool) -> None:
        """Drop entries kept for long enough. `missing`: not all claimed datapaths have connected in this run."""
        for dpid, kept in list(self._kept.items()):
            age = self._state.now - kept.since
            if age < KEEP_S:
                continue
            paths = [e for e in kept.entries if cookie_kind(e.cookie) == Kind.PATH] if missing and age < KEEP_PATHS_S else []
            if not paths:
                self.drop(dpid)
            elif len(paths) < len(kept.entries):
                self._set(dpid, Kept(kept.since, paths))

    def _set(self, dpid: DatapathId, kept: Kept) -> None:
        self._kept[dpid] = kept
        self._state.programmer.set_group(("kept", dpid), {dpid: kept.entries}, self._state.out)
