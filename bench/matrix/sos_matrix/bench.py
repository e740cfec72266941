"""Definition of the `matrix` benchmark for `sos_harness.loop`."""

from __future__ import annotations

from collections.abc import Sequence

from sos_harness.loop import Bench
from sos_harness.results.figures import Summary
from sos_harness.transfer import measure

from sos_matrix import report, verdicts
from sos_matrix.cases import CASES


def judged(found: Sequence[Summary]) -> dict[str, object]:
    """Entries of the .json in addition to the rows."""
    words = {"least_ratio": verdicts.LEAST_RATIO, "confidence": verdicts.CONFIDENCE, "figure": verdicts.FIGURE}
    return {**words, "cases": [case.encode() for case in verdicts.cases(CASES, found)]}


BENCH = Bench(
    name="matrix",
    about="SOS is never worse than plain TCP or than SOS over its better path alone",
    scenarios=CASES,
    measure=measure,
    table=report.table,
    chart=report.chart,
    more=judged,
    said=("mbps_total",),
    runs=5,
    seconds=10.0,
    least_seconds=5.0,  # at a round-trip time of 400 ms, shorter runs consist of start-up only
)
