"""Find the objects and nodes that make a compilation raise, and compile without them.

A bug must affect only the object that triggers it, never the compilation of other objects. An exception in the middle of a compilation does
not name that object, so objects are left out until the rest compiles. The culprit is then rejected like any invalid object, with the
exception as the reason.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from sos_compile.model.problem import Problem, Reason
from sos_compile.model.world import Fault, ObjectKey

T = TypeVar("T")
Faults = Mapping[ObjectKey, Fault]
Attempt = Callable[[Faults], T]

MAX_SEARCHES = 16
"""Maximum number of culprits searched one by one, each at the cost of some dozens of compilations. Then up to the same number of further
culprits are searched among pools, sites and controllers only, because a wrong site can look like a fault of each of its nodes. After that,
each culprit is left out together with all candidates before it."""
MAX_TOGETHER = 4  # maximum size of a set of objects that raise only together; from a larger set, any object is left out
MAX_MESSAGE = 240  # maximum length of the exception's text in a condition; the log has the whole text
NODE = "Node"
REMEDY = "this is a bug of SOS: report it with the object and the operator's log; the object is left out until it or SOS changes"

# Leave out first the objects with the smallest effect. A service or link affects one tenant, a node one machine, a controller all sites.
_ORDER = {kind: i for i, kind in enumerate(("SosService", "SosLink", "SosPeer", NODE, "SosAgent", "SosSite", "SosController"))}
_LARGE = frozenset(("SosAgent", "SosSite", "SosController"))


class Faulty(Exception):  # noqa: N818 - it carries faults, and is not a fault itself
    """Raised by an attempt that can name the faulty objects."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(f"{len(faults)} objects raise")
        self.faults = dict(faults)


def fault_of(key: ObjectKey, error: BaseException) -> Fault:
    """Return an object's fault: the start of the exception's text for conditions, the whole traceback for the log."""
    said = " ".join(str(error).split())
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return Fault(key, text[:MAX_MESSAGE], "".join(traceback.format_exception(error)))


def problem_of(fault: Fault, file: str | None = None) -> Problem:
    """Return the problem to report for a fault."""
    key = fault.key
    return Problem(key.kind, key.namespace, key.name, "", Reason.INTERNAL, f"cannot be compiled: {fault.message}", REMEDY, file)


def in_order(keys: Iterable[tuple[ObjectKey, str]]) -> list[ObjectKey]:
    """Sort object keys, given with creation times, in the order in which the objects are left out: youngest of a kind first."""
    youngest = sorted(keys, key=lambda item: (item[1], item[0]), reverse=True)
    return [key for key, _ in sorted(youngest, key=lambda item: _ORDER.get(item[0].kind, len(_ORDER)))]


def isolate(candidates: Sequence[ObjectKey], attempt: Attempt[T], error: Exception, known: Faults) -> tuple[T, Faults]:
    """Repeat `attempt`, which raised `error` with all objects, with as few objects as possible left out. Return its result and the faults
    of the left-out objects. Raises the exception of `attempt` if it fails even without any object.

    `known`: culprits of the last compilation, so that an unchanged world needs no second search.
    """
    if known and _raised(attempt, known) is None:
        return attempt(known), known
    found: dict[ObjectKey, Fault] = {}
    for searches in range(2 * len(candidates) + 2):
        if isinstance(error, Faulty):
            if error.faults.keys() <= found.keys():
                break
            found.update(error.faults)
        else:
            left = [key for key in candidates if key not in found]
            large = [key for key in left if key.kind in _LARGE]
            alone = searches < MAX_SEARCHES
            if not alone and _raised(attempt, {**found, **_as_faults(large, error)}) is None:
                left, alone = large, searches < 2 * MAX_SEARCHES
            found.update(_culprit(left, found, attempt, error, alone=alone))
        try:
            return attempt(found), found
        except Exception as next_error:
            error = next_error
    raise error


def _culprit(left: Sequence[ObjectKey], found: Faults, attempt: Attempt[T], error: Exception, *, alone: bool) -> Faults:
    """Return the object to leave out. Find the first candidate that the exception needs while all candidates before it are left out. If the
    rest does not compile without this candidate alone, candidates before it raise, too. They may raise only together with a later
    candidate, so search the later candidates in the same way for one without which the rest compiles. If there is none, return the first
    candidate found. Unless `alone`, return the first candidate together with all candidates before it.
    """
    together: list[ObjectKey] = []
    rest, before = list(left), list[ObjectKey]()
    while len(together) < MAX_TOGETHER:
        index, error = _first_needed(rest, {**found, **_as_faults(before, error)}, attempt, error, required=bool(together))
        if index is None:
            break
        if not alone:
            return _as_faults(rest[: index + 1], error)
        key = rest[index]
        if _raised(attempt, {**found, key: fault_of(key, error)}) is None:
            return {key: fault_of(key, error)}
        together.append(key)
        before, rest = before + rest[:index], rest[index + 1 :]
    return {together[0]: fault_of(together[0], error)}


def _first_needed(
    rest: Sequence[ObjectKey], found: Faults, attempt: Attempt[T], error: Exception, *, required: bool
) -> tuple[int | None, Exception]:
    """Find the shortest prefix of the candidates without which the world compiles. Return the index of its last candidate, and the
    exception raised with that candidate. If the world does not compile even without all candidates, raise the exception; if the caller has
    already found an object that the exception needs (`required`), return None and the exception instead.
    """
    raised = _raised(attempt, {**found, **_as_faults(rest, error)})
    if raised is not None:
        if not required:
            raise raised  # even without any object
        return None, raised
    low, high = 0, len(rest)
    while high - low > 1:
        middle = (low + high) // 2
        raised = _raised(attempt, {**found, **_as_faults(rest[:middle], error)})
        low, high, error = (low, middle, error) if raised is None else (middle, high, raised)
    return high - 1 if rest else None, error


def _as_faults(keys: Iterable[ObjectKey], error: Exception) -> dict[ObjectKey, Fault]:
    each = fault_of(ObjectKey("", "", ""), error)  # formatted once, because a traceback takes longer than compiling a small world
    return {key: replace(each, key=key) for key in keys}


def _raised(attempt: Attempt[T], faults: Faults) -> Exception | None:
    try:
        attempt(faults)
    except Exception as error:
        return error
    return None
