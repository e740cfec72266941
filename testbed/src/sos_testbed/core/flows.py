"""Parser of `ovs-ofctl dump-flows`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COUNTERS = {"cookie", "duration", "table", "n_packets", "n_bytes", "idle_age", "hard_age", "priority"}
_LINE = re.compile(r"^\s*(cookie=.*?)\s+actions=(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FlowEntry:
    """A row of a flow table; `match` and `actions` are in the syntax of ovs-ofctl(8), the counters are from the dump."""

    table: int
    priority: int
    match: str
    actions: str
    cookie: int
    n_packets: int = 0
    n_bytes: int = 0

    def identity(self) -> tuple[int, int, str, str, int]:
        """The entry without its counters."""
        return self.table, self.priority, self.match, self.actions, self.cookie


def parse_flows(text: str) -> list[FlowEntry]:
    """Parse the entries of a dump, sorted by table, priority (highest first) and match. Other lines are skipped."""
    entries = [_entry(found[1], found[2]) for line in text.splitlines() if (found := _LINE.match(line))]
    return sorted(entries, key=lambda entry: (entry.table, -entry.priority, entry.match))


def _entry(head: str, actions: str) -> FlowEntry:
    fields = [part.strip() for part in re.split(r",\s*", head) if part.strip()]
    values = dict(part.split("=", 1) for part in fields if "=" in part)
    match = [part for part in fields if part.split("=", 1)[0] not in _COUNTERS]
    return FlowEntry(
        table=int(values.get("table", "0")),
        priority=int(values.get("priority", "32768")),  # OpenFlow 1.3, 7.3.4.1: the default that ovs-ofctl does not print
        match=",".join(match),
        actions=actions.strip(),
        cookie=int(values.get("cookie", "0"), 16),
        n_packets=int(values.get("n_packets", "0")),
        n_bytes=int(values.get("n_bytes", "0")),
    )
