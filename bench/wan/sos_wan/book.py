"""What has been measured and what is left. Pure: lines of a benchmark's .jsonl in, values out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

from sos_wan.figures import OK, Row
from sos_wan.scenarios import Scenario, Scheme

SET_UP_S = 4.0
"""What a measurement takes besides its transfers: programs that start and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is measured in one go: one run of one scheme."""

    scenario: Scenario
    scheme: Scheme
    run: int

    @property
    def keys(self) -> list[tuple[str, str, int]]:
        """The rows that it gives."""
        return [(self.scenario.name, label, self.run) for label in self.scheme.labels]

    def blank(self, label: str, settings: str) -> Row:
        """One of its rows before it was measured."""
        limit = round(self.scenario.wire_limit_mbps, 1)
        return Row(settings=settings, scenario=self.scenario.name, scheme=label, run=self.run, wire_limit_mbps=limit)

    def takes_s(self, seconds: float) -> float:
        """About how long it takes."""
        return len(self.scheme.labels) * seconds + SET_UP_S


def encode(row: Row) -> str:
    """A line of the .jsonl."""
    return json.dumps({name: value for name, value in asdict(row).items() if value is not None})


def parse(lines: Iterable[str], settings: str) -> list[Row]:
    """The rows of these settings, of each the latest. A line that is not whole was being written when a run ended: it is not there."""
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
    """Everything that is wanted, in the order in which it is measured: of a scenario a run of every scheme, then the next run,
    which begins with another scheme, so that none is always measured at the same moment of the round."""
    found = []
    for scenario in scenarios:
        chosen = [scheme for scheme in scenario.schemes if not schemes or scheme.name in schemes]
        for run in range(1, runs + 1):
            turn = (run - 1) % len(chosen) if chosen else 0
            found += [Unit(scenario=scenario, scheme=scheme, run=run) for scheme in chosen[turn:] + chosen[:turn]]
    return found


def left(wanted: Iterable[Unit], rows: Iterable[Row]) -> list[Unit]:
    """What has not been measured; what failed is measured again, and a peer that was not available may have been installed."""
    done = {row.key for row in rows if row.status == OK}
    return [unit for unit in wanted if not done.issuperset(unit.keys)]


def wanted_rows(wanted: Iterable[Unit], rows: Iterable[Row]) -> list[Row]:
    """The rows that belong to what is wanted, in the scenarios' and schemes' own order."""
    places = {key: (unit.run, n) for unit in wanted for n, key in enumerate(unit.keys)}
    order: dict[tuple[str, str], int] = {}
    for unit in wanted:
        if unit.run == 1:
            order.update({(unit.scenario.name, label): len(order) + n for n, label in enumerate(unit.scheme.labels)})
    chosen = [row for row in rows if row.key in places]
    return sorted(chosen, key=lambda row: (order[row.scenario, row.scheme], row.run))
