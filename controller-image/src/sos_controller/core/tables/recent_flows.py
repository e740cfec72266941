"""Connections whose ends may still be in a switch's cache."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sos_controller.core.types import FlowKey

IDLE_S = 10.0
"""For so long Open vSwitch keeps what it has cached after the last packet (ovs-vswitchd.conf.db(5), max-idle)."""
MAX_RECENT_FLOWS = 131_072
"""The oldest give way; at 10,000 new connections a second that is the whole IDLE_S."""
_ENDS: Final = 10
"""Length of the part of a flow's key that exact entries tell apart: addresses and the client's port (`model.flow_key`)."""


class RecentFlows:
    """Flows that have lately been forwarded in another way than the next one of the same ends may be."""

    def __init__(self) -> None:
        self._noted: OrderedDict[bytes, float] = OrderedDict()

    def note(self, key: FlowKey, now: float) -> None:
        """Remember a flow that is forwarded plainly, or whose session is over."""
        noted, ends = self._noted, key[:_ENDS]
        noted[ends] = now
        noted.move_to_end(ends)
        while len(noted) > MAX_RECENT_FLOWS or noted[next(iter(noted))] <= now - IDLE_S:
            noted.popitem(last=False)

    def holds(self, key: FlowKey, now: float) -> bool:
        """Whether a flow from the same port of the client to the same server was noted within the last IDLE_S: what a switch has cached
        of it may cover this one."""
        noted_at = self._noted.get(key[:_ENDS])
        return noted_at is not None and now < noted_at + IDLE_S
