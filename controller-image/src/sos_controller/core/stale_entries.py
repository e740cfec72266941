"""Entries of an earlier life of the controller, which stay until this one has heard what it needs to make its own."""

from __future__ import annotations

from typing import Final, NamedTuple

from sos_controller.core.openflow.flow_entries import FlowEntry
from sos_controller.core.openflow.pipeline import Kind, cookie_kind
from sos_controller.core.state import State
from sos_controller.core.types import DatapathId

KEEP_S: Final = 6.0
"""They stay this long, so that agents and links can be heard before anything is missed."""
KEEP_PATHS_S: Final = 30.0
"""And paths among them for so long while a datapath is still missing, which may be at their other end: switches try again after 8 s."""


class Kept(NamedTuple):
    """What one datapath had, and since when that is kept."""

    since: float
    entries: list[FlowEntry]


class StaleEntries:
    """What is kept, by datapath."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._kept: dict[DatapathId, Kept] = {}

    def keep(self, dpid: DatapathId, entries: list[FlowEntry]) -> None:
        """Keep what a datapath that has just been read has."""
        if entries:
            self._set(dpid, Kept(self._state.now, entries))

    def drop(self, dpid: DatapathId) -> None:
        """Keep nothing of a datapath any more."""
        if self._kept.pop(dpid, None) is not None:
            self._state.programmer.set_group(("kept", dpid), {}, self._state.out)

    def tick(self, missing: bool) -> None:
        """Drop what has been kept for long enough. `missing`: not all claimed datapaths have been there in this life."""
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
