"""Gaps between replans, so that planning takes a bounded share of time however long it takes and however much changes."""

from __future__ import annotations

from typing import Final

MIN_GAP_S: Final = 0.02
"""Minimum gap between two replans, so that a burst of discoveries causes one replan."""
MAX_SHARE: Final = 0.5
"""Maximum share of time for replans: after a replan, the gap is at least as long as the replan took. It is counted from the replan's end;
a gap counted from its beginning would be over by then, and a controller that is behind would do nothing but replan. The other half is for
new connections, leases and echoes."""


class ReplanGap:
    """Decision when the next replan may begin. Urgent replans (a failed link, a new configuration) wait for the share only."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._due = self._urgent_due = 0.0
        self._urgent = False

    @property
    def is_open(self) -> bool:
        """Return whether a replan has begun whose end has not been reported."""
        return self._began is not None

    def hurry(self) -> None:
        """Make the next replan urgent."""
        self._urgent = True

    def is_due(self, now: float) -> bool:
        """Return whether a replan may begin."""
        return now >= (self._urgent_due if self._urgent else self._due)

    def begin(self, now: float) -> None:
        """Record that a replan begins. If its end is never reported, it counts as if it took no time."""
        self._began, self._urgent = now, False
        self._due, self._urgent_due = now + MIN_GAP_S, now

    def end(self, now: float) -> None:
        """Record the end of the replan, including the transmission of its messages."""
        if self._began is not None:
            rest = (now - self._began) * (1 / MAX_SHARE - 1)
            self._due, self._urgent_due = now + max(MIN_GAP_S, rest), now + rest
            self._began = None
