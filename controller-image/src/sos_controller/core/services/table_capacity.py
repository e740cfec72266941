"""Table capacity: check that a service's entries fit into a datapath's table before they are sent.

A switch that refuses an entry is read and programmed again, and refuses the entry again: one service too many would break all services. So
a service whose entries do not fit waits, and its status shows the numbers.
"""

from __future__ import annotations

from typing import Final

from sos_controller.core.openflow.pipeline import TABLE_REDIRECT
from sos_controller.core.state import State
from sos_controller.core.types import DatapathId

SESSIONS_DIVISOR: Final = 4
"""Divisor that gives the reserved part of a table's size: a quarter, for the entries of sessions, two for each session."""


class TableCapacity:
    """Number of free entries in each datapath's first table, counted down while services are armed in their order."""

    def __init__(self, state: State, group: str) -> None:
        self._state, self._group = state, group
        self._left: dict[DatapathId, int | None] = {}
        self.refused: dict[str, str] = {}
        """Services that do not fit, with the message to show."""

    def takes(self, service_id: str, dpid: DatapathId, count: int) -> bool:
        """Reserve space for a service's entries; return False if they do not fit. A datapath that does not report its sizes accepts all."""
        if dpid not in self._left:
            self._left[dpid] = self._free(dpid)
        left = self._left[dpid]
        if left is None:
            return True
        if count > left:
            name = self._state.claims[dpid][1].name if dpid in self._state.claims else f"{dpid:016x}"
            size = self._state.switches[dpid].table_sizes[TABLE_REDIRECT]
            self.refused[service_id] = (
                f"datapath {name}: table {TABLE_REDIRECT} takes {size} entries, {left} are left for services, and {count} are needed:"
                " fewer or wider prefixes and port ranges need fewer"
            )
            return False
        self._left[dpid] = left - count
        return True

    def _free(self, dpid: DatapathId) -> int | None:
        switch = self._state.switches.get(dpid)
        size = None if switch is None else switch.table_sizes.get(TABLE_REDIRECT)
        if size is None:
            return None
        return max(0, size - size // SESSIONS_DIVISOR - self._state.programmer.standing(dpid, TABLE_REDIRECT, self._group))
