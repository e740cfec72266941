"""Definition of the `wan` benchmark for `sos_harness.loop`."""

from __future__ import annotations

from sos_harness.loop import Bench
from sos_harness.transfer import measure

from sos_wan import report
from sos_wan.cases import SCENARIOS

BENCH = Bench(
    name="wan",
    about="SOS compared with other methods to fill a long fat network",
    scenarios=SCENARIOS,
    measure=measure,
    table=report.table,
    chart=report.chart,
    said=("mbps_total", "mbps_steady"),
    runs=5,
    seconds=20.0,
    least_seconds=5.0,  # shorter runs have no steady state
)
