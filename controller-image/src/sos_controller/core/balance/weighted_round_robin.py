"""Weighted round robin."""

from __future__ import annotations

from collections.abc import Mapping


class WeightedRoundRobin:
    """Smooth weighted round robin (as in nginx): in any `sum(weights)` consecutive choices each name occurs as often as its weight, spread
    out evenly.

    With equal weights this is round robin in the given order.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.weights = dict(weights)
        self._credit = dict.fromkeys(self.weights, 0)

    def turn(self) -> str:
        """Return the next name; raise KeyError if there are no names."""
        if not self.weights:
            raise KeyError("no names to choose from")
        for name, weight in self.weights.items():
            self._credit[name] += weight
        chosen = max(self._credit, key=lambda name: self._credit[name])
        self._credit[chosen] -= sum(self.weights.values())
        return chosen
