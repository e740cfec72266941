"""Problems of a compilation, collected by object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sos_compile.admission.fault_isolation import Faulty, fault_of
from sos_compile.model.problem import Problem, Reason
from sos_compile.model.resources import Origin
from sos_compile.model.world import Fault, ObjectKey

T = TypeVar("T")
MAX_PROBLEMS = 4096  # maximum over all objects; beyond it, a summary gives the number of further problems

REFERENCES = {
    Reason.SITE_NOT_FOUND,
    Reason.CONTROLLER_NOT_FOUND,
    Reason.UPLINK_NOT_FOUND,
    Reason.NOT_PERMITTED,
    Reason.SHADOWED,
    Reason.WAITING_FOR_PEER,
    Reason.NOT_ENCRYPTED,
    Reason.DESTINATION_UNKNOWN,
}
"""Reasons about objects that an object names, not about the object itself (condition ResolvedRefs, not Accepted)."""


@dataclass
class Verdicts:
    """Problems by object. Local to one compilation, never shared."""

    problems: list[Problem] = field(default_factory=list)
    by_key: dict[ObjectKey, Problem] = field(default_factory=dict)
    left_out: Mapping[ObjectKey, Fault] = field(default_factory=dict)
    """Objects and nodes left out because the compilation raises with them (fault_isolation.py)."""
    faults: list[Fault] = field(default_factory=list)
    """Faults of left-out objects that exist, and of objects whose admission raised."""
    raised: dict[ObjectKey, Fault] = field(default_factory=dict)
    """Objects that raised in a step of their own: the compilation is repeated without them."""

    def attempt(self, origin: Origin, make: Callable[..., T], *given: object) -> T | None:
        """Return the result of a step for one object. If the step raises, record this object's fault and return None, so that the culprit
        is known without a search among thousands of services."""
        try:
            return make(*given)
        except Exception as error:
            self.raised[origin.key] = fault_of(origin.key, error)
            return None

    def settle(self) -> None:
        """Raise Faulty if anything has raised."""
        if self.raised:
            raise Faulty(self.raised)

    def reject(self, origin: Origin, path: str, reason: Reason, message: str, remedy: str = "") -> None:
        """Record a problem of an object. The caller leaves the object out of the compilation, or keeps it with reduced function."""
        key = origin.key
        problem = Problem(key.kind, key.namespace, key.name, path, reason, message, remedy, origin.file)
        self.problems.append(problem)
        self.by_key.setdefault(key, problem)

    def warn(self, origin: Origin, path: str, reason: Reason, message: str, remedy: str = "") -> None:
        """Record a warning, which does not affect the compilation."""
        key = origin.key
        self.problems.append(Problem(key.kind, key.namespace, key.name, path, reason, message, remedy, origin.file, warning=True))

    def admission(self, key: ObjectKey, problems: list[Problem]) -> None:
        """Add the problems found by admission."""
        self.problems.extend(problems)
        if problems:
            self.by_key.setdefault(key, problems[0])

    def copy(self) -> Verdicts:
        """Return a copy, to which further verdicts can be added."""
        return Verdicts(list(self.problems), dict(self.by_key), self.left_out, list(self.faults))

    def sorted(self) -> tuple[Problem, ...]:
        """Return the problems in a stable order, at most 4,096; if there are more, warnings are left out first."""
        ordered = sorted(self.problems, key=lambda p: (p.file or "", p.kind, p.namespace, p.name, p.path, p.message))
        if len(ordered) <= MAX_PROBLEMS:
            return tuple(ordered)
        ordered.sort(key=lambda p: p.warning)
        more = replace(ordered[-1], path="", message=f"{len(ordered) - MAX_PROBLEMS + 1} more problems are not listed", remedy="")
        return (*ordered[: MAX_PROBLEMS - 1], more)
