"""Samples of a page of metrics in the Prometheus text format. Pure."""

from __future__ import annotations

import re

_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? ([0-9.eE+-]+)", re.MULTILINE)
_REASON = re.compile(r'reason="([^"]*)"')


def totals(text: str) -> dict[str, float]:
    """Sum each metric over all labels."""
    found: dict[str, float] = {}
    for name, _labels, value in _SAMPLE.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    return found


def by_reason(text: str, metric: str) -> dict[str, int]:
    """Sum one metric by its label `reason`; samples without this label are left out."""
    found: dict[str, int] = {}
    for name, labels, value in _SAMPLE.findall(text):
        reason = _REASON.search(labels) if name == metric else None
        if reason is not None:
            found[reason[1]] = found.get(reason[1], 0) + int(float(value))
    return found
