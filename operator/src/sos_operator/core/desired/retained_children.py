"""Children that stay as they are while their owner is invalid or a node cannot be compiled."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

import sos_compile
from sos_compile.documents.parts import file_name

from sos_operator.core.model.cluster_objects import ConfigMap
from sos_operator.core.model.kinds import CONFIG_MAP
from sos_operator.core.model.objects import Object, Ref
from sos_operator.core.model.options import Settings
from sos_operator.core.model.world import Seen

_PART = re.compile(r'"(sha256:[0-9a-f]{64})"')
"""Hashes in a file's text. Those of documents name no file of the folder, so they need not be told from those of parts."""


def held_refs(compiled: sos_compile.Compiled, settings: Settings) -> frozenset[Ref]:
    """Children of objects that are currently invalid: they stay, so that a typing error does not remove a site's switches."""
    return frozenset(Ref(kind, settings.namespace, name) for kind, name in compiled.held)


def with_files_of(manifests: Iterable[Object], nodes: Collection[str], seen: Seen) -> tuple[Object, ...]:
    """Return the manifests with the present ConfigMap files of these nodes, because the files' new content is unknown."""
    files = {f"{node}.json" for node in nodes}
    if not files:
        return tuple(manifests)
    there = {o.name: o.data for o in seen.children if isinstance(o, ConfigMap)}
    found = []
    for manifest in manifests:
        kept = files & there.get(manifest["metadata"]["name"], {}).keys() if manifest["kind"] == CONFIG_MAP.kind else set()
        data = {file: there[manifest["metadata"]["name"]][file] for file in sorted(kept)}
        found.append(with_files(manifest, data, there[manifest["metadata"]["name"]]) if data else manifest)
    return tuple(found)


def with_files(config_map: Object, files: Mapping[str, str], present: Mapping[str, str]) -> Object:
    """Return a ConfigMap with these files in place of its own, and with the parts that they name (spec/node-config.md clause 46).

    `present`: the files of the ConfigMap in the cluster.
    """
    named = {file_name(part) for text in files.values() for part in _PART.findall(text)}
    parts = {name: present[name] for name in sorted(named & present.keys())}
    return {**config_map, "data": {**config_map["data"], **parts, **files}}
