"""The only module of the package that reads files: custom resources from YAML, and the CRDs that come with the package."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from sos_compile.model.world import Json, Loaded

MAX_FILE_BYTES = 16 * 1024 * 1024  # the maximum of a controller-config; a larger file is not a set of custom resources


class LoadError(Exception):
    """A file that cannot be read as YAML objects. `file` and `line` (from 1, 0 = the whole file) give the position."""

    def __init__(self, file: str, line: int, message: str) -> None:
        super().__init__(f"{file}:{line}: {message}" if line else f"{file}: {message}")
        self.file, self.line, self.message = file, line, message


def load(paths: Iterable[str | Path]) -> list[Loaded]:
    """Read every object of the given YAML files; a folder stands for its *.yaml and *.yml files, by name. Raises LoadError."""
    return [loaded for path in paths for file in _expand(Path(path)) for loaded in _load_file(file)]


@cache
def crds() -> dict[str, Json]:
    """Return the CustomResourceDefinitions by kind: packaged with the wheel, or the repository's crds/ when run from the source tree."""
    packaged = resources.files("sos_compile") / "crds"
    folder = Path(str(packaged)) if packaged.is_dir() else Path(__file__).resolve().parents[4] / "crds"
    found = {crd["spec"]["names"]["kind"]: crd for file in sorted(folder.glob("*.yaml")) for crd in [yaml.safe_load(file.read_text())]}
    if not found:
        raise LoadError(str(folder), 0, "no CustomResourceDefinitions there")
    return found


def _expand(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in {".yaml", ".yml"} and file.is_file())
        if not files:
            raise LoadError(str(path), 0, "the folder has no *.yaml file")
        return files
    return [path]


def _load_file(path: Path) -> list[Loaded]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise LoadError(str(path), 0, f"larger than {MAX_FILE_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(str(path), 0, f"cannot be read: {error}") from error
    return parse(text, str(path))


def parse(text: str, file: str) -> list[Loaded]:
    """Return the objects of a YAML text; `file` is its name in errors. A `List` is replaced by its items. Raises LoadError."""
    found: list[Loaded] = []
    try:
        loader = _Loader(text)
        while loader.check_node():
            line = loader.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
            obj = loader.get_data()
            found += [Loaded(file, i, item, line) for i, item in enumerate(_items(obj, file, line), start=len(found))]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise LoadError(file, mark.line + 1 if mark else 0, f"not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise LoadError(file, 0, f"not YAML: {error}") from error
    return found


def _items(obj: Any, file: str, line: int) -> list[Json]:
    if obj is None:
        return []
    if not isinstance(obj, dict):
        raise LoadError(file, line, "not an object: expected apiVersion, kind, metadata and spec")
    if obj.get("kind") == "List" and isinstance(obj.get("items"), list):
        return [item for inner in obj["items"] for item in _items(inner, file, line)]
    return [obj]


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: no duplicate keys (the later would win silently), and dates stay text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not a string", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
