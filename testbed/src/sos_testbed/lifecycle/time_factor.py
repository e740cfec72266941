"""Factor of all time limits, for machines that are much slower than real hardware, such as an emulated processor (testbed/kernel).

A limit bounds the wait for something that must happen, so a larger factor delays only failures. Durations that a test measures or that the
product specifies are not multiplied.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from sos_testbed.core.model import LabError

VARIABLE = "SOS_TIME_FACTOR"
MAX_FACTOR = 100.0
"""Protects against typing errors: with this factor, the longest limit of a lab is two and a half hours."""


def parse_factor(environment: Mapping[str, str]) -> float:
    """`SOS_TIME_FACTOR`, at least 1; 1 without the variable. Raise LabError for other values."""
    text = environment.get(VARIABLE) or "1"
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 1 <= factor <= MAX_FACTOR:
        raise LabError(f"{VARIABLE}: {text!r} is not a number from 1 to {MAX_FACTOR:g}")
    return factor


def limit_s(seconds: float) -> float:
    """A time limit on this machine, in seconds."""
    return seconds * parse_factor(os.environ)
