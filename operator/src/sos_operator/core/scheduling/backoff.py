"""Delay before the next pass."""

from __future__ import annotations

from dataclasses import dataclass

BACKOFF_FIRST_S = 1.0
BACKOFF_LAST_S = 10.0  # maximum delay after failed passes: the end of an outage is noticed within the 10 s that conditions may be late
POLL_PENDING_S = 2.0  # polling interval while a condition is expected to change
REST_S = 0.05  # minimum interval between two passes
REST_LONG_S = 0.5  # minimum interval after RESTLESS_PASSES without a pause, so that a flapping object cannot keep a core busy
RESTLESS_PASSES = 20
POLL_STEADY_S = 5.0  # polling interval at other times; with the request timeout, an unreachable controller is reported within 10 s
WATCH_FIRST_S = 1.0
WATCH_LAST_S = 30.0  # maximum delay before an ended watch is restarted; meanwhile, periodic passes see the changes

REFUSED_LAST_S = 60.0  # maximum interval of attempts to push an unchanged document that was refused


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of the last pass, as input to the timing."""

    failed: bool
    pending: bool


def next_delay(outcome: Outcome, failures: int, jitter: float) -> float:
    """Seconds until the next pass, if no change wakes the loop earlier.

    `failures` counts consecutive failed passes, including this one. `jitter` is a random number from 0 to 1, so that several operators that
    lost the same API server do not retry in step (up to half of the wait is cut off).
    """
    if outcome.failed:
        wait = min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2.0 ** min(max(failures - 1, 0), 10))
        return wait * (1 - jitter / 2)
    return POLL_PENDING_S if outcome.pending else POLL_STEADY_S


def refused_delay(times: int) -> float:
    """Seconds until an unchanged document is pushed again after `times` refusals in a row."""
    return min(REFUSED_LAST_S, POLL_PENDING_S * 2.0 ** min(times, 10))


def watch_delay(ends: int) -> float:
    """Seconds until a watch is restarted after `ends` ends in a row."""
    return min(WATCH_LAST_S, WATCH_FIRST_S * 2.0 ** min(max(ends - 1, 0), 10))


def rest(woken_in_a_row: int) -> float:
    """Return the pause in seconds before the next pass; `woken_in_a_row`: consecutive passes that ended with changes already queued."""
    return REST_S if woken_in_a_row <= RESTLESS_PASSES else REST_LONG_S
