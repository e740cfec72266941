"""Delay before the next pass."""

from __future__ import annotations

from dataclasses import dataclass

BACKOFF_FIRST_S = 1.0
BACKOFF_LAST_S = 10.0  # whatever comes back after an outage is noticed within the 10 s that conditions may be behind
POLL_PENDING_S = 2.0  # somebody is waiting for a condition to turn
REST_S = 0.05  # between two passes
REST_LONG_S = 0.5  # once passes follow each other without end, so that a flapping object cannot keep a core busy
RESTLESS_PASSES = 20
POLL_STEADY_S = 5.0  # with the request timeout, keeps "controller unreachable" under 10 s
WATCH_FIRST_S = 1.0
WATCH_LAST_S = 30.0  # meanwhile changes are seen by the passes that come without news

REFUSED_LAST_S = 60.0  # between two attempts to hand over a document that was refused and has not changed


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of the last pass, as far as timing is concerned."""

    failed: bool
    pending: bool


def next_delay(outcome: Outcome, failures: int, jitter: float) -> float:
    """Seconds until the next pass when nothing wakes it before.

    `failures` counts passes that failed in a row, this one included; `jitter` is a random number from 0 to 1, so that
    several operators that lost the same API server do not come back in step (up to half of the wait is cut off).
    """
    if outcome.failed:
        wait = min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2.0 ** min(max(failures - 1, 0), 10))
        return wait * (1 - jitter / 2)
    return POLL_PENDING_S if outcome.pending else POLL_STEADY_S


def refused_delay(times: int) -> float:
    """Seconds until what was refused so many times in a row is offered again as it is."""
    return min(REFUSED_LAST_S, POLL_PENDING_S * 2.0 ** min(times, 10))


def watch_delay(ends: int) -> float:
    """Seconds until a watch that has ended so many times in a row is started again."""
    return min(WATCH_LAST_S, WATCH_FIRST_S * 2.0 ** min(max(ends - 1, 0), 10))


def rest(woken_in_a_row: int) -> float:
    """Seconds to let pass before the next look for news; `woken_in_a_row` counts passes that had news waiting when the one before ended."""
    return REST_S if woken_in_a_row <= RESTLESS_PASSES else REST_LONG_S
