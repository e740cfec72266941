"""Admission as the API server does it, from the CRD files themselves."""

from __future__ import annotations

from sos_compile.problem import Problem
from sos_compile.world import Json


def admit(obj: Json, file: str | None = None, old: Json | None = None) -> tuple[Json, list[Problem]]:
    """Return the object with the schema's defaults and every problem the API server would refuse it for.

    Unknown fields are problems too (as with `kubectl apply`, which asks for strict validation). `old` is the object being replaced: with it the
    rules about immutable fields are judged as well. The object given is not changed.
    """
    raise NotImplementedError
