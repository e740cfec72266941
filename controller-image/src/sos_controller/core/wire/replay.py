"""Replay protection by (sender, boot id, sequence) and a clock window (spec/README.md clause 9)."""

from __future__ import annotations

WINDOW = 128
"""Number of sequence numbers tracked, up to the highest."""
CLOCK_WINDOW_MS = 30_000


class Replay:
    """Sequence numbers seen from one sender."""

    __slots__ = ("_seen", "boot_id", "highest", "used_ms")

    def __init__(self) -> None:
        self.boot_id = 0
        self.highest = 0
        self._seen = 0  # bit n = highest - n
        self.used_ms = 0  # our clock when a message was last accepted

    def accept(self, boot_id: int, sequence: int, time_ms: int, wall_ms: int) -> bool:
        """Return whether a correctly signed message is new, and record it if so. Sequence numbers start at 1."""
        taken = self._accept(boot_id, sequence, time_ms, wall_ms)
        if taken:
            self.used_ms = wall_ms
        return taken

    def _accept(self, boot_id: int, sequence: int, time_ms: int, wall_ms: int) -> bool:
        if sequence < 1 or boot_id < self.boot_id:
            return False
        if boot_id > self.boot_id:
            if abs(time_ms - wall_ms) > CLOCK_WINDOW_MS:
                return False
            self.boot_id, self.highest, self._seen = boot_id, sequence, 1
            return True
        return self._accept_sequence(sequence)

    def _accept_sequence(self, sequence: int) -> bool:
        ahead = sequence - self.highest
        if ahead > 0:
            self._seen = ((self._seen << min(ahead, WINDOW)) | 1) & ((1 << WINDOW) - 1)
            self.highest = sequence
            return True
        if -ahead >= WINDOW or self._seen >> -ahead & 1:
            return False
        self._seen |= 1 << -ahead
        return True
