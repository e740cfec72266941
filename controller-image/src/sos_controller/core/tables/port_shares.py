"""Shares of ports: a dynamic threshold on the sessions and set-ups that the SYNs of one port of a datapath may hold.

A port may have at most `ALPHA` times as many places as are free in the whole table (Choudhury & Hahne, "Dynamic Queue Length Thresholds for
Shared-Memory Packet Switches", 1998). So one port may use most of a quiet table, and a flood from it always leaves places free for the
other ports, without a fixed number for each port.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from sos_controller.core.types import Location

ALPHA: Final = 2
"""Places of a port for each free place: a port alone gets two thirds of the table, and two ports that flood get two fifths each. The port
of an external switch may carry all clients of a site, so one port should get more than half."""


class PortShares:
    """Places of one table, counted by port; only ports that have places are stored."""

    def __init__(self) -> None:
        self.total = 0
        self.used: Counter[Location] = Counter()

    def take(self, port: Location) -> None:
        """Count one more place of a port."""
        self.total += 1
        self.used[port] += 1

    def free(self, port: Location) -> None:
        """Count one place less."""
        self.total -= 1
        self.used[port] -= 1
        if not self.used[port]:
            del self.used[port]

    def allows(self, port: Location, limit: int) -> bool:
        """Return whether a port may have one more of `limit` places."""
        return self.used.get(port, 0) < ALPHA * (limit - self.total)
