"""`--check`: report errors of a controller-config or of custom resources, without running anything.

The only module that may import `sos_compile` (docs/adr/0009), and only to check custom resources.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from sos_controller.files.config import ConfigError, parse


def check(files: Iterable[Path]) -> tuple[list[str], bool]:
    """Return one line per file (or per problem), and whether all files are valid. YAML files are checked together, since objects refer to
    each other."""
    lines: list[str] = []
    well = True
    resources = []
    for file in files:
        if file.is_dir() or file.suffix in (".yaml", ".yml"):
            resources.append(file)
            continue
        line, fine = _check_document(file)
        lines.append(line)
        well = well and fine
    if resources:
        told, fine = _check_resources(resources)
        lines.extend(told)
        well = well and fine
    return lines, well


def _check_document(file: Path) -> tuple[str, bool]:
    try:
        config = parse(file.read_bytes())
    except OSError as error:
        return f"{file}: cannot be read: {error.strerror}", False
    except ConfigError as error:
        return f"{file}: {error}", False
    return f"{file}: ok (generation {config.generation}, {len(config.sites)} sites, {len(config.services)} services)", True


def _check_resources(files: list[Path]) -> tuple[list[str], bool]:
    try:
        import sos_compile
    except ImportError:
        return [
            f"{file}: custom resources are checked only where sos-compile is installed (sos-controller[check])" for file in files
        ], False
    try:
        objects = tuple(sos_compile.load(files))
    except sos_compile.LoadError as error:
        return [str(error)], False
    compiled = sos_compile.compile_world(sos_compile.World(objects=objects))
    problems = [p.line() for p in compiled.problems if not p.warning]
    if problems:
        return problems, False
    lines = [p.line() for p in compiled.problems]
    for name, document in sorted(compiled.controllers.items()):
        try:
            config = parse(json.dumps(document).encode())
        except ConfigError as error:
            return [f"{files[0]}: compiled for controller {name}: {error}"], False
        where = ", ".join(map(str, files))
        lines.append(f"{where}: ok (generation {config.generation}, {len(config.sites)} sites, {len(config.services)} services)")
    return lines or [f"{files[0]}: ok (no controller among {len(objects)} objects)"], True
