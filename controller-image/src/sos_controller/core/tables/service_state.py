"""State of a service's or balance's entries on the switches, and the reason of its condition `Programmed` (spec/northbound.md 1)."""

from __future__ import annotations

from enum import StrEnum


class ProgrammedReason(StrEnum):
    """Reason of the condition `Programmed`; its value is the text in API and status."""

    PROGRAMMED = "Programmed"
    PROGRAMMING = "Programming"
    NO_AGENTS = "NoAgents"
    NO_PATH = "NoPath"
    NO_HOST = "NoHost"
    NO_UPLINK = "NoUplink"
    DATAPATH_DISCONNECTED = "DatapathDisconnected"
    TABLE_FULL = "TableFull"
    ENTRIES_NOT_APPLIED = "EntriesNotApplied"

    @property
    def is_programmed(self) -> bool:
        """Return whether all switches have acknowledged the entries."""
        return self is ProgrammedReason.PROGRAMMED

    @property
    def state(self) -> str:
        """Return the state in the API."""
        return "Programmed" if self.is_programmed else "Pending"
