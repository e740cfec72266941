"""Retransmission time-out (RTO) of orders to an agent, computed from the agent's response times as for TCP segments (RFC 6298).

An order is answered within milliseconds. If the controller, the agent or the machine of either is overloaded, retransmission only adds to
the load.
"""

from __future__ import annotations

MIN_S = 0.05
"""Minimum and initial RTO."""
MAX_S = 0.4
"""Maximum RTO: leaves time for one more order before a set-up is given up."""


class OrderRto:
    """RTO of one agent."""

    __slots__ = ("_deviation", "_mean", "seconds")

    def __init__(self) -> None:
        self._mean = self._deviation = 0.0
        self.seconds = MIN_S

    def answered(self, took: float) -> None:
        """Record a response time in seconds, smoothed as in RFC 6298, 2.2 and 2.3."""
        if not self._mean:
            self._mean, self._deviation = took, took / 2
        else:
            self._deviation += (abs(took - self._mean) - self._deviation) / 4
            self._mean += (took - self._mean) / 8
        self.seconds = min(max(self._mean + 4 * self._deviation, MIN_S), MAX_S)
