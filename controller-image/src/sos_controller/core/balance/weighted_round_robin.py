"""Weighted round robin."""

from __future__ import annotations

from collections.abc import Mapping


class WeightedRoundRobin:
    """Smooth weighted round robin (as nginx has it): in any `sum(weights)` consecutive choices each name gets its weight, spread out
    evenly.

    With equal weights it is plain round robin in the order given.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.weights = dict(weights)
        self._credit = dict.fromkeys(self.weights, 0)

    def turn(self) -> str:
        """Return the next name. There must be one: KeyError otherwise."""
        if not self.weights:
            raise KeyError("an empty wheel has no turn")
        for name, weight in self.weights.items():
            self._credit[name] += weight
        chosen = max(self._credit, key=lambda name: self._credit[name])
        self._credit[chosen] -= sum(self.weights.values())
        return chosen
