"""The thirty cases. Pure.

Parameter space: 10 to 1000 Mbit/s, 1 to 400 ms, 0 to 3 % loss in each direction, queues of 0.1 to 2 bandwidth-delay products, one or
two paths.

CORNERS has ten corners of the space with one path: all corners without loss, and the corners with 3 % loss where plain TCP can compete.
At 400 ms and 3 % loss, plain TCP has 0.2 Mbit/s at any link rate, so that corner occurs once. At 10 Mbit/s and 1 ms both queues are the
minimum queue, so that corner occurs once, too.

SPREAD has ten inner points: a Latin hypercube with one point in each tenth of each logarithmic scale. The lower five tenths of the loss
scale mean no loss, the upper five divide 0.01 to 3 %. The hypercube was drawn once: of 2,000 draws it has the lowest correlation between
two scales (0.19). It is fixed in the source, because a case that changes with the program cannot be compared with earlier results.

TWO has ten pairs of paths: equal pairs (normal, fast, slow, lossy), pairs that differ in one property (rate, round-trip time, loss,
queue), and pairs that differ in several properties, whose better path depends on the scheme.
"""

from __future__ import annotations

from sos_harness.scenario import MBIT, Kind, Scenario, Scheme
from sos_testbed.core.topology import PathOptions
from sos_testbed.measurements.measure import FRAME_BYTES

LEAST_QUEUE_BYTES = 10 * FRAME_BYTES
"""Minimum queue: the initial window of a connection. At 10 Mbit/s and 1 ms, a tenth of the product would be a tenth of a packet."""
MOST_MBIT = 1000.0
"""Maximum total rate of all paths of a case, which the link emulator sustains on two cores beside agents and hosts."""

ONE_PATH = (
    Scheme(name="sos", kind=Kind.SOS, rows=("sos first", "sos")),  # first and second transfer of newly started agents
    Scheme(name="plain", kind=Kind.PLAIN),
)
TWO_PATHS = (
    *ONE_PATH,
    Scheme(name="sos-a", kind=Kind.SOS, only_path=0, rows=("sos-a first", "sos-a")),
    Scheme(name="sos-b", kind=Kind.SOS, only_path=1, rows=("sos-b first", "sos-b")),
    Scheme(name="plain-b", kind=Kind.PLAIN, only_path=1),
)

Numbers = tuple[float, float, float, float]
"""Properties of a path: Mbit/s, ms, queue in bandwidth-delay products, loss in percent."""

CORNERS: tuple[Numbers, ...] = (
    (10, 1, 0.1, 0),
    (10, 1, 0.1, 3),
    (10, 400, 0.1, 0),
    (10, 400, 2, 0),
    (1000, 1, 0.1, 0),
    (1000, 1, 2, 0),
    (1000, 1, 2, 3),
    (1000, 400, 0.1, 0),
    (1000, 400, 0.1, 3),
    (1000, 400, 2, 0),  # the queue holds 100 MB, and the link has 50 MB in flight, half in each direction
)
SPREAD: tuple[Numbers, ...] = (
    (12, 9.1, 1.8, 0),
    (20, 24, 0.72, 0.07),
    (28, 94, 0.14, 0),
    (52, 14, 0.2, 1.4),
    (71, 45, 0.89, 0.74),
    (120, 1.4, 0.11, 0),
    (190, 4.1, 0.28, 0.2),
    (330, 2.1, 1.3, 0),
    (470, 320, 0.54, 0.019),
    (880, 140, 0.41, 0),
)
TWO: dict[str, tuple[Numbers, Numbers]] = {
    "equal": ((100, 40, 1, 0), (100, 40, 1, 0)),
    "equal-fast": ((500, 20, 0.5, 0), (500, 20, 0.5, 0)),
    "equal-slow": ((10, 5, 1, 0), (10, 5, 1, 0)),
    "equal-lossy": ((100, 50, 1, 1), (100, 50, 1, 1)),
    "rates": ((900, 50, 1, 0), (10, 50, 1, 0)),
    "rtts": ((200, 5, 1, 0), (200, 400, 1, 0)),
    "losses": ((200, 50, 1, 0), (200, 50, 1, 3)),
    "queues": ((200, 60, 2, 0), (200, 60, 0.1, 0)),
    "crossed": ((50, 10, 1, 0), (500, 300, 0.2, 1)),  # the first path suits plain TCP, the second suits SOS
    "lean-and-fat": ((20, 30, 2, 0), (100, 400, 0.5, 0.3)),
}


def path(numbers: Numbers) -> PathOptions:
    """Path options for the link emulator."""
    mbit, ms, products, percent = numbers
    rate_bps, rtt_us = round(mbit * MBIT), round(ms * 1000)
    queue = max(LEAST_QUEUE_BYTES, round(rate_bps * rtt_us * products / 8e6))
    return PathOptions(rate_bps=rate_bps, rtt_us=rtt_us, loss=percent / 100, queue_bytes=queue)


def words(numbers: Numbers) -> str:
    """Description of a path."""
    mbit, ms, _, percent = numbers
    lost = f", {percent:g} % loss" if percent else ""
    return f"{mbit:g} Mbit/s, {ms:g} ms, queue of {(path(numbers).queue_bytes or 0) / 1e3:.0f} kB{lost}"


def one(numbers: Numbers) -> Scenario:
    """A case with one path, named after the properties of the path."""
    mbit, ms, products, percent = numbers
    name = f"{mbit:g}m-{ms:g}ms-{products:g}q" + (f"-{percent:g}l" if percent else "")
    return Scenario(name=name, title=words(numbers), paths=(path(numbers),), schemes=ONE_PATH)


def two(name: str, both: tuple[Numbers, Numbers]) -> Scenario:
    """A case with two paths."""
    title = " + ".join(words(numbers) for numbers in both)
    return Scenario(name=name, title=title, paths=tuple(map(path, both)), schemes=TWO_PATHS)


CASES = (*map(one, CORNERS), *map(one, SPREAD), *(two(name, both) for name, both in TWO.items()))
