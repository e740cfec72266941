"""Confine an unexpected exception to its object: log it with its traceback and count it, so that an alert fires."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import sos_compile

from sos_operator.core.model.errors import OperatorError
from sos_operator.process.metrics import Metrics

log = logging.getLogger(__name__)


class Bugs:
    """Catches unexpected exceptions, and counts the caught exceptions."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._told: frozenset[tuple[sos_compile.ObjectKey, str]] = frozenset()
        self.count = 0

    def note(self, where: str, what: str, error: BaseException) -> None:
        """Log and count an exception. `where` is a label of the metric, from a small fixed set."""
        self.count += 1
        self._metrics.bugs.labels(where=where).inc()
        log.error(f"a bug in {where} of {what}: {type(error).__name__}: {error}", exc_info=error, extra={"where": where, "object": what})

    @contextmanager
    def fence(self, where: str, what: str) -> Iterator[None]:
        """Catch unexpected exceptions of the block. Expected exceptions (OperatorError) pass through."""
        try:
            yield
        except OperatorError:
            raise
        except Exception as error:
            self.note(where, what, error)

    def compiled(self, faults: Iterable[sos_compile.Fault]) -> None:
        """Log and count objects that a compilation had to leave out, each fault once while it persists."""
        found = {(fault.key, fault.message): fault for fault in faults}
        for fault in (fault for known, fault in found.items() if known not in self._told):
            name = f"{fault.key.kind} {fault.key.namespace}/{fault.key.name}".replace(" /", " ")
            self._metrics.bugs.labels(where="compile").inc()
            log.error(f"a bug in compile of {name}: {fault.message}\n{fault.trace}", extra={"where": "compile", "object": name})
        self._told = frozenset(found)
