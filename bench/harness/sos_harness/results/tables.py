"""Summaries -> aligned text tables for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from sos_harness.results.figures import OK, Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A figure in a table. With `ratio` the table compares the median of SOS with the median of each other scheme."""

    head: str
    figure: str
    form: str = ".2f"
    ratio: bool = False


def columns(found: Sequence[Summary], shown: Sequence[Column], titles: Mapping[str, str]) -> list[str]:
    """Format one block per scenario: a row per scheme with the medians of all measured figures, then the ratios."""
    lines: list[str] = []
    for scenario, group in groupby(found, key=lambda each: each.scenario):
        rows = list(group)
        there = [column for column in shown if any(each.median(column.figure) is not None for each in rows)]
        body = [("", "runs", *(column.head for column in there))]
        body += [(each.scheme, runs(each), *(cell(each.median(c.figure), c.form) for c in there)) for each in rows]
        lines += ["", titles.get(scenario, scenario), *block(body, rows)]
        lines += ["  " + line for column in there if column.ratio for line in peers(rows, column)]
    return lines


def peers(rows: Sequence[Summary], column: Column) -> list[str]:
    """Ratios of the median of SOS to the median of each other scheme, for one figure."""
    ours = next((each.median(column.figure) for each in rows if each.scheme == "sos"), None)
    if ours is None:
        return []
    theirs = [(each.scheme, value) for each in rows if each.scheme != "sos" and (value := each.median(column.figure))]
    shares = ", ".join(f"{ours / value:.2f} x {scheme}" for scheme, value in theirs)
    return [f"{column.head}: sos is {shares}"] if shares else []


def aligned(body: Sequence[Sequence[str]]) -> list[str]:
    """Align cells in columns: the first column to the left, figures to the right."""
    widths = [max(len(line[column]) for line in body) for column in range(len(body[0]))]
    return ["  " + "  ".join(_padded(line, widths)).rstrip() for line in body]


def block(body: Sequence[Sequence[str]], rows: Sequence[Summary]) -> list[str]:
    """Lay out a scenario's rows, then the status of each scheme that failed or is not available."""
    return aligned(body) + [f"    {each.scheme}: {each.status}" for each in rows if each.status != OK or each.runs_failed]


def _padded(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths, strict=True))]


def runs(each: Summary) -> str:
    """Format the numbers of successful and of failed runs."""
    return f"{each.runs}" + (f" (+{each.runs_failed} failed)" if each.runs_failed else "")


def cell(value: float | None, form: str) -> str:
    """Format a figure; a dash for a missing figure."""
    return "-" if value is None else format(value, form)
