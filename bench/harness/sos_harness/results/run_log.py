"""Run log: rows of a benchmark's .jsonl, and the list of missing measurements. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

from sos_harness.results.figures import OK, Row
from sos_harness.scenario import Scenario, Scheme

SET_UP_S = 4.0
"""Overhead of a measurement for the start and end of its programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One measurement: one run of one scheme in one scenario."""

    scenario: Scenario
    scheme: Scheme
    run: int

    @property
    def keys(self) -> list[tuple[str, str, int]]:
        """Keys of the rows of this measurement."""
        return [(self.scenario.name, label, self.run) for label in self.scheme.labels]

    def blank(self, label: str, settings: str) -> Row:
        """Row without figures."""
        limit = round(self.scenario.wire_limit_mbps, 1)
        return Row(settings=settings, scenario=self.scenario.name, scheme=label, run=self.run, wire_limit_mbps=limit)

    def takes_s(self, seconds: float) -> float:
        """Estimated duration in seconds."""
        return len(self.scheme.labels) * seconds + SET_UP_S


def encode(row: Row) -> str:
    """Encode a row as a line of the .jsonl."""
    return json.dumps({name: value for name, value in asdict(row).items() if value is not None})


def parse(lines: Iterable[str], settings: str) -> list[Row]:
    """Parse the rows with these settings, the latest row of each key. A truncated line of an interrupted run is skipped."""
    known, found = {field.name for field in fields(Row)}, {}
    for line in lines:
        try:
            raw = json.loads(line)
            row = Row(**{name: value for name, value in raw.items() if name in known})
        except (ValueError, TypeError, AttributeError):
            continue
        if row.settings == settings:
            found[row.key] = row
    return list(found.values())


def units(scenarios: Sequence[Scenario], schemes: Sequence[str], runs: int) -> list[Unit]:
    """List all measurements in order. Each round of a scenario has one run of every scheme, rotated by one scheme from round to round, so
    that no scheme always has the same position."""
    found = []
    for scenario in scenarios:
        chosen = [scheme for scheme in scenario.schemes if not schemes or scheme.name in schemes]
        for run in range(1, runs + 1):
            turn = (run - 1) % len(chosen) if chosen else 0
            found += [Unit(scenario=scenario, scheme=scheme, run=run) for scheme in chosen[turn:] + chosen[:turn]]
    return found


def left(wanted: Iterable[Unit], rows: Iterable[Row]) -> list[Unit]:
    """Select the measurements without a good row: failed runs are repeated, and a missing peer may have been installed since."""
    done = {row.key for row in rows if row.status == OK}
    return [unit for unit in wanted if not done.issuperset(unit.keys)]


def wanted_rows(wanted: Iterable[Unit], rows: Iterable[Row]) -> list[Row]:
    """Select the rows of wanted measurements, in the order of scenarios and schemes."""
    places = {key: (unit.run, n) for unit in wanted for n, key in enumerate(unit.keys)}
    order: dict[tuple[str, str], int] = {}
    for unit in wanted:
        if unit.run == 1:
            order.update({(unit.scenario.name, label): len(order) + n for n, label in enumerate(unit.scheme.labels)})
    chosen = [row for row in rows if row.key in places]
    return sorted(chosen, key=lambda row: (order[row.scenario, row.scheme], row.run))
