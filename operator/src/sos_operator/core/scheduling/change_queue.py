"""Queue of changes that watches report, drained by each pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

NAMED_MAX = 16  # maximum number of objects of a kind that are read one by one; one list costs less than many reads


@dataclass(frozen=True, slots=True, order=True)
class Changed:
    """A changed object; without a name, any number of objects of its kind."""

    plural: str
    namespace: str = ""
    name: str = ""


class ChangeQueue:
    """Changes to process, each once. Bounded: for a kind with more than NAMED_MAX named objects, only the kind is kept."""

    def __init__(self) -> None:
        self._named: dict[str, set[Changed]] = {}

    def add(self, changed: Changed) -> None:
        """Record a change."""
        whole, known = Changed(changed.plural), self._named.setdefault(changed.plural, set())
        if whole in known:
            return
        known.add(changed)
        if whole in known or len(known) > NAMED_MAX:
            self._named[changed.plural] = {whole}

    def take(self) -> frozenset[Changed]:
        """Return all changes added since the last call."""
        taken = frozenset(each for changes in self._named.values() for each in changes)
        self._named.clear()
        return taken


def of_kinds(plurals: Iterable[str]) -> frozenset[Changed]:
    """Changes that mark all objects of these kinds."""
    return frozenset(Changed(plural) for plural in plurals)
