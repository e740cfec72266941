"""`kubectl sos estimate`: the expected gain on a path, before anything is installed."""

from __future__ import annotations

import re

import click

from sos_kubectl.cli.options import Form, output_option, show
from sos_kubectl.views import estimate as view
from sos_kubectl.views.estimate import Path

NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z%]*)", re.IGNORECASE)


class Quantity(click.ParamType[float]):
    """A number with one of several units, within bounds."""

    def __init__(self, name: str, units: dict[str, float], low: float, high: float, example: str) -> None:
        self.name, self.units, self.low, self.high, self.example = name, units, low, high, example

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number in the base unit."""
        if isinstance(value, float):
            return value
        found = NUMBER.fullmatch(str(value))
        factor = self.units.get(found[2].lower()) if found else None
        if found is None or factor is None:
            self.fail(f"{value}: write it like {self.example}", param, ctx)
        number = float(found[1]) * factor
        if not self.low <= number <= self.high:
            low, high = (f"{bound / factor:g}{found[2]}" for bound in (self.low, self.high))
            self.fail(f"{value}: between {low} and {high}", param, ctx)
        return number


RTT = Quantity("RTT", {"ms": 1e-3, "s": 1.0}, 1e-4, 10.0, "160ms")
LOSS = Quantity("LOSS", {"%": 0.01}, 0.0, 0.1, "0.01%")
RATE = Quantity("RATE", {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}, 1e4, 1e12, "1gbit")
SIZE = Quantity("SIZE", {"": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}, 1.0, 1e18, "10GB")


@click.command(short_help="Estimate the gain on a path, without a cluster.")
@click.argument("rtt", type=RTT, metavar="RTT")
@click.argument("loss", type=LOSS, metavar="LOSS")
@click.argument("rate", type=RATE, metavar="RATE")
@click.option("--size", type=SIZE, default="1GB", show_default=True, help="Bytes of the transfer.")
@output_option
def estimate(rtt: float, loss: float, rate: float, size: float, output: Form) -> None:
    """Estimate the duration of one transfer over a path, plain and through SOS: round trip RTT (160ms), share LOSS of packets lost in each
    direction (0.01%), link rate RATE (1gbit).

    The estimate needs no cluster. Measure before you decide: docs/concepts/measuring.md.
    """
    path = Path(rtt, loss, rate)
    show(output, lambda: view.as_json(path, size), lambda: view.lines(path, size))
