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
MAX_PROBLEMS = 4096  # in all; beyond, a summary says how many more there are

REFERENCES = {Reason.SITE_NOT_FOUND, Reason.CONTROLLER_NOT_FOUND, Reason.UPLINK_NOT_FOUND, Reason.NOT_PERMITTED, Reason.SHADOWED}
"""Reasons that speak of what an object names, not of the object itself (condition ResolvedRefs, not Accepted)."""


@dataclass
class Verdicts:
    """Problems by object. Local to one compilation, never shared."""

    problems: list[Problem] = field(default_factory=list)
    by_key: dict[ObjectKey, Problem] = field(default_factory=dict)
    left_out: Mapping[ObjectKey, Fault] = field(default_factory=dict)
    """Objects and nodes with which the compilation raises (fault_isolation.py)."""
    faults: list[Fault] = field(default_factory=list)
    """Those of them that there are, and objects whose admission raised."""
    raised: dict[ObjectKey, Fault] = field(default_factory=dict)
    """Objects that raised where it was known which: the compilation is made again without them."""

    def attempt(self, origin: Origin, make: Callable[..., T], *given: object) -> T | None:
        """Return the result for one object, None if it raises: with thousands of services, no search for the culprit is needed."""
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
        """Take the object out of the compilation, or leave it in crippled; which of the two is the caller's doing."""
        key = origin.key
        problem = Problem(key.kind, key.namespace, key.name, path, reason, message, remedy, origin.file)
        self.problems.append(problem)
        self.by_key.setdefault(key, problem)

    def warn(self, origin: Origin, path: str, reason: Reason, message: str, remedy: str = "") -> None:
        """Say something that changes nothing."""
        key = origin.key
        self.problems.append(Problem(key.kind, key.namespace, key.name, path, reason, message, remedy, origin.file, warning=True))

    def admission(self, key: ObjectKey, problems: list[Problem]) -> None:
        """Take over what admission found."""
        self.problems.extend(problems)
        if problems:
            self.by_key.setdefault(key, problems[0])

    def copy(self) -> Verdicts:
        """Return the same verdicts, to be added to."""
        return Verdicts(list(self.problems), dict(self.by_key), self.left_out, list(self.faults))

    def sorted(self) -> tuple[Problem, ...]:
        """Return the problems in a stable order, at most 4,096."""
        ordered = sorted(self.problems, key=lambda p: (p.file or "", p.kind, p.namespace, p.name, p.path, p.message))
        if len(ordered) <= MAX_PROBLEMS:
            return tuple(ordered)
        more = replace(ordered[-1], path="", message=f"{len(ordered) - MAX_PROBLEMS + 1} more problems are not listed", remedy="")
        return (*ordered[: MAX_PROBLEMS - 1], more)
