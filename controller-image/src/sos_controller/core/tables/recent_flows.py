"""Recently forwarded flows that a switch may still have cached."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sos_controller.core.types import FlowKey

IDLE_S = 10.0
"""Time for which Open vSwitch keeps a megaflow after its last packet (ovs-vswitchd.conf.db(5), max-idle)."""
MAX_RECENT_FLOWS = 131_072
"""Maximum number of flows; the oldest are dropped. At 10,000 new connections per second this covers IDLE_S."""
_ENDS: Final = 10
"""Length of the part of a flow's key that exact entries match: addresses and the client's port (`types.flow_key`)."""


class RecentFlows:
    """Recently forwarded flows whose addresses and client port may still be cached (megaflow) with an outdated action."""

    def __init__(self) -> None:
        self._noted: OrderedDict[bytes, float] = OrderedDict()

    def note(self, key: FlowKey, now: float) -> None:
        """Record a flow that is forwarded as plain traffic, or whose session is over."""
        noted, ends = self._noted, key[:_ENDS]
        noted[ends] = now
        noted.move_to_end(ends)
        while len(noted) > MAX_RECENT_FLOWS or noted[next(iter(noted))] <= now - IDLE_S:
            noted.popitem(last=False)

    def holds(self, key: FlowKey, now: float) -> bool:
        """Return whether a flow from the same client port to the same server was recorded within the last IDLE_S: its megaflow may cover
        this flow."""
        noted_at = self._noted.get(key[:_ENDS])
        return noted_at is not None and now < noted_at + IDLE_S
