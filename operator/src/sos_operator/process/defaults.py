"""The default SosController and SosAgent of the release, from the chart's ConfigMap.

They cannot be templates of the chart: Helm refuses objects whose kind is defined by the same chart.
"""

from __future__ import annotations

from pathlib import Path

import sos_compile

from sos_operator.core.model.kinds import AGENT, CONTROLLER
from sos_operator.core.model.objects import Object, Resource
from sos_operator.core.secrets.secrets import labels

ALLOWED = frozenset({AGENT.kind, CONTROLLER.kind})


COMPONENT = "defaults"


class DefaultsError(ValueError):
    """The folder holds something that is not a default object."""


def load_defaults(folder: Path | None) -> tuple[Object, ...]:
    """The objects of the folder, labelled as ours. Raises DefaultsError that names file and object."""
    if folder is None or not any(folder.glob("*.yaml")):
        return ()
    found = []
    try:
        loaded = sos_compile.load([folder])
    except sos_compile.LoadError as error:
        raise DefaultsError(str(error)) from error
    for item in loaded:
        if item.obj.get("kind") not in ALLOWED:
            raise DefaultsError(f"{item.file}: {item.obj.get('kind')} cannot be a default object (only {', '.join(sorted(ALLOWED))})")
        _, problems = sos_compile.admit(item.obj, item.file)
        if problems:
            raise DefaultsError(problems[0].line())
        meta = item.obj["metadata"]
        own = labels(COMPONENT)
        found.append({**item.obj, "metadata": {**meta, "labels": {**(meta.get("labels") or {}), **own}}})
    return tuple(found)


def is_default(obj: Resource) -> bool:
    """True if an object of a user's kind was created from the chart's ConfigMap."""
    return obj.kind in ALLOWED and obj.component == COMPONENT
