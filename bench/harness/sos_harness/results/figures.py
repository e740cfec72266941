"""Figures: one transfer -> one row; rows of several runs -> medians. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from sos_harness.results.parse import Received, bytes_at

STEADY_FROM = 0.4
"""Share of a transfer that counts as start-up: 8 of 20 s. At 164 ms the rate of plain TCP grows for 5 s."""
ALMOST = 0.95
"""Share of the requested duration that a transfer's samples must cover. It is below 1, because the last report of a client that reports
every two seconds comes a little early."""
OK = "ok"
NOT_AVAILABLE = "not available"
FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Observations of one transfer."""

    received: Received
    retransmitted: int = 0
    cpu_sender_s: float | None = None
    cpu_receiver_s: float | None = None
    reorder_peak_bytes: float | None = None
    competitor: Received | None = None
    load: float = 0.0
    emulator_lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of one measurement: figures by names of the row's fields, or a status with the reason of the failure."""

    status: str = OK
    values: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run of one scheme: a line of a .jsonl. Rates are TCP payload in Mbit/s. Each benchmark sets only the figures that apply to it."""

    settings: str
    scenario: str
    scheme: str
    run: int
    status: str = OK
    wire_limit_mbps: float = 0.0
    mbps_total: float | None = None
    mbps_steady: float | None = None
    mbps_first8: float | None = None
    first_byte_s: float | None = None
    cpu_s_per_gb: float | None = None
    cpu_sender_s_per_gb: float | None = None
    cpu_receiver_s_per_gb: float | None = None
    retransmits_per_gb: float | None = None
    reorder_peak_mb: float | None = None
    competitor_mbps_total: float | None = None
    competitor_mbps_steady: float | None = None
    load: float | None = None
    emulator_lost: int | None = None
    connections: int | None = None
    failed: int | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    first_byte_p50_ms: float | None = None
    first_byte_p99_ms: float | None = None
    idle_p50_ms: float | None = None
    idle_p99_ms: float | None = None
    connections_per_s: float | None = None
    connections_per_cpu_s: float | None = None
    rss_sender_kb_per_session: float | None = None
    rss_receiver_kb_per_session: float | None = None
    others_mbps: float | None = None
    others_alone_mbps: float | None = None
    others_slowed_percent: float | None = None
    accelerated: int | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Identity of the measurement: a later row with the same key replaces this row."""
        return self.scenario, self.scheme, self.run


FIGURES = tuple(
    each.name for each in fields(Row) if each.name not in {"settings", "scenario", "scheme", "run", "status", "wire_limit_mbps"}
)


def mbps(received: Received, begin: float, end: float) -> float:
    """Mean rate between two moments, in Mbit/s with three decimals: an error of 0.1 would be 1 % of a path of 10 Mbit/s."""
    return round((bytes_at(received.samples, end) - bytes_at(received.samples, begin)) * 8 / (end - begin) / 1e6, 3)


def rates(received: Received, seconds: float) -> dict[str, float]:
    """Three rates of a transfer of this length: with start-up, without start-up, and of start-up only."""
    seen = min(seconds, received.samples[-1][0])
    steady = STEADY_FROM * seconds
    return {"mbps_total": mbps(received, 0, seen), "mbps_steady": mbps(received, steady, seen), "mbps_first8": mbps(received, 0, steady)}


def failure(received: Received, seconds: float) -> str:
    """Reason why a transfer does not count, or "". A transfer that covers its time counts, even if its end caused an error."""
    if received.samples[-1][0] >= ALMOST * seconds and received.samples[-1][1] > 0:
        return ""
    return f"{FAILED}: {received.error or 'the transfer ended early'} after {received.samples[-1][0]:.1f} s"


def row(blank: Row, measured: Found) -> Row:
    """Row of one measurement: `blank` with status and figures."""
    figures: dict[str, Any] = {**measured.values}  # the keys are names of fields, which the type checker cannot know
    return replace(blank, status=measured.status, **figures)


def found(outcome: Outcome, seconds: float) -> Found:
    """Figures of one transfer."""
    received = outcome.received
    if why := failure(received, seconds):
        return Found(status=why, values={"load": outcome.load})
    gigabytes = received.samples[-1][1] / 1e9
    competitor = {} if outcome.competitor is None else rates(outcome.competitor, seconds)
    sender, receiver = (None if used is None else round(used / gigabytes, 3) for used in (outcome.cpu_sender_s, outcome.cpu_receiver_s))
    values: dict[str, float | None] = dict(
        **rates(received, seconds),
        first_byte_s=received.first_byte_s,
        cpu_s_per_gb=None if sender is None or receiver is None else round(sender + receiver, 3),
        cpu_sender_s_per_gb=sender,
        cpu_receiver_s_per_gb=receiver,
        retransmits_per_gb=round(outcome.retransmitted / gigabytes, 1),
        reorder_peak_mb=None if outcome.reorder_peak_bytes is None else round(outcome.reorder_peak_bytes / 1e6, 2),
        competitor_mbps_total=competitor.get("mbps_total"),
        competitor_mbps_steady=competitor.get("mbps_steady"),
        load=outcome.load,
        emulator_lost=outcome.emulator_lost,
    )
    return Found(values=values)


def percentile(values: Sequence[float], share: float) -> float:
    """Smallest value with at least this share of all values at or below it (nearest rank)."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure over several runs."""

    median: float
    least: float
    most: float
    values: tuple[float, ...]
    """Values of all runs that count; omitted from the .json, because the .jsonl has them."""

    def encode(self) -> dict[str, float]:
        """Encode for the .json."""
        return {"median": self.median, "least": self.least, "most": self.most}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Summary of all runs of a scheme in a scenario: an entry of the .json. `status` is not ok only if no run counts."""

    scenario: str
    scheme: str
    runs: int
    runs_failed: int
    status: str
    wire_limit_mbps: float
    figures: dict[str, Figure]

    def median(self, name: str) -> float | None:
        """Median of one figure."""
        found = self.figures.get(name)
        return None if found is None else found.median

    def encode(self) -> dict[str, object]:
        """Encode for the .json: {median, least, most} for each measured figure."""
        plain = {name: value for name, value in asdict(self).items() if name != "figures"}
        return {**plain, **{name: figure.encode() for name, figure in self.figures.items()}}


def summaries(rows: Iterable[Row]) -> list[Summary]:
    """Summaries by scenario and scheme, in the order of their first rows."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for each in rows:
        groups.setdefault((each.scenario, each.scheme), []).append(each)
    return [_summary(group) for group in groups.values()]


def _summary(group: Sequence[Row]) -> Summary:
    good = [each for each in group if each.status == OK]
    bad = [each.status for each in group if each.status != OK]
    found = {}
    for name in FIGURES:
        values = [value for each in good if (value := getattr(each, name)) is not None]
        if values:
            found[name] = _figure(values)
    return Summary(
        scenario=group[0].scenario,
        scheme=group[0].scheme,
        runs=len(good),
        runs_failed=sum(status.startswith(FAILED) for status in bad),
        status=OK if good else bad[0],
        wire_limit_mbps=group[0].wire_limit_mbps,
        figures=found,
    )


def _figure(values: Sequence[float]) -> Figure:
    return Figure(median=round(statistics.median(values), 3), least=min(values), most=max(values), values=tuple(values))


def best_peer(found: Sequence[Summary], figure: str) -> Summary | None:
    """Scheme other than SOS with the highest median of a figure."""
    peers = [each for each in found if not each.scheme.startswith("sos") and each.median(figure) is not None]
    return max(peers, key=lambda each: each.median(figure) or 0.0, default=None)
