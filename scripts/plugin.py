"""Build `kubectl sos` as one executable file that needs Python 3.11 and no installation (docs/adr/0075).

    python scripts/plugin.py [--out out] [--version VERSION]

The file is a zip archive of the plugin's modules, of the compiler's modules that the plugin imports, and of click. The same sources give
the same bytes. The build fails if a module imports anything else that is not in Python's standard library.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
NAME = "kubectl-sos"
PLUGIN, COMPILER = "sos_kubectl", "sos_compile"
SOURCES = {PLUGIN: TOP / "operator/kubectl-plugin/src", COMPILER: TOP / "compile/src"}
LIBRARY = "click"
START = """\
import os
import shutil
import sys

if sys.version_info < (3, 11):
    found = [path for path in map(shutil.which, ["python3." + str(minor) for minor in (14, 13, 12, 11)]) if path]
    if found:
        os.execv(found[0], [found[0]] + sys.argv)
    sys.exit("kubectl-sos needs Python 3.11 or newer, and this is " + sys.version.split()[0])

from sos_kubectl.__main__ import main

main()
"""
TIME = (1980, 1, 1, 0, 0, 0)
"""Time of every member, the earliest of the format."""


class ImportRefusedError(Exception):
    """A module imports a package that the file does not contain; the text names both."""


# --- modules, from their texts -------------------------------------------------------------------------------------------


def imported(module: str, text: str, *, is_package: bool) -> set[tuple[str, str]]:
    """Return what a module imports at run time: pairs of a module and a name in it, which may be a module ("" = the module itself)."""
    found = set[tuple[str, str]]()
    for node in _run(ast.parse(text).body):
        if isinstance(node, ast.Import):
            found |= {(name.name, "") for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module if is_package else module.rpartition(".")[0]
            for _ in range(node.level - 1):
                package = package.rpartition(".")[0]
            base = ".".join(filter(None, (package if node.level else "", node.module or "")))
            found |= {(base, name.name) for name in node.names}
    return found


def _run(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Every node, except those under `if TYPE_CHECKING:`."""
    for statement in body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        yield from ast.walk(statement)


def needed(texts: Mapping[str, tuple[str, bool]]) -> set[str]:
    """Return the modules that the plugin reaches, with their packages. `texts`: name -> (text, is a package), of plugin and compiler.

    The compiler's packages are included without their own text, because `sos_compile` itself imports the whole compiler.
    Raises ImportRefusedError.
    """
    reached = {name for name in texts if name.partition(".")[0] == PLUGIN}
    open_ = sorted(reached)
    while open_:
        module = open_.pop()
        text, is_package = texts[module]
        for base, member in sorted(imported(module, text, is_package=is_package)):
            _check(texts, module, base, member)
            for name in (base, f"{base}.{member}"):
                if name in texts and name not in reached and not _is_empty(texts, name):
                    reached.add(name)
                    open_.append(name)
    return reached


def _check(texts: Mapping[str, tuple[str, bool]], module: str, base: str, member: str) -> None:
    top = base.partition(".")[0]
    if top not in (*SOURCES, LIBRARY) and top not in sys.stdlib_module_names:
        raise ImportRefusedError(f"{module} imports {top}, which is neither in the standard library nor in {NAME}")
    if member and _is_empty(texts, base) and f"{base}.{member}" not in texts:
        raise ImportRefusedError(f"{module} imports {member} from {base}, whose __init__.py is empty in {NAME}: import it from its module")


def _is_empty(texts: Mapping[str, tuple[str, bool]], name: str) -> bool:
    """True for the compiler's packages."""
    return name.partition(".")[0] == COMPILER and name in texts and texts[name][1]


def members(texts: Mapping[str, tuple[str, bool]], reached: set[str]) -> dict[str, str]:
    """Return the archive's files of these modules, and an empty `__init__.py` for each package that has none among them."""
    files = {_path(name, is_package=texts[name][1]): texts[name][0] for name in reached}
    for name in reached:
        while name := name.rpartition(".")[0]:
            files.setdefault(_path(name, is_package=True), "")
    return files


def _path(name: str, *, is_package: bool) -> str:
    return name.replace(".", "/") + ("/__init__.py" if is_package else ".py")


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return an executable archive of these files: name -> content."""
    out = io.BytesIO()
    out.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            packed.writestr(entry, files[name])
    return out.getvalue()


# --- files ---------------------------------------------------------------------------------------------------------------


def read_modules() -> dict[str, tuple[str, bool]]:
    """Read every module of the plugin and the compiler."""
    found = {}
    for package, source in SOURCES.items():
        for path in (source / package).rglob("*.py"):
            parts = path.relative_to(source).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            found[".".join(parts[:-1] if is_package else parts)] = (path.read_text(encoding="utf-8"), is_package)
    return found


def read_others() -> dict[str, bytes]:
    """Read the plugin's data files, and the library with its licence."""
    plugin = SOURCES[PLUGIN] / PLUGIN
    data = (path for path in plugin.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc"))
    found = {str(path.relative_to(SOURCES[PLUGIN])): path.read_bytes() for path in data}
    library = distribution(LIBRARY)
    for file in library.files or ():
        wanted = file.parts[0] == LIBRARY and file.suffix != ".pyc"
        if wanted or file.name in ("METADATA", "LICENSE.txt"):
            found[str(file)] = Path(str(file.locate())).read_bytes()
    return found


def build(version: str) -> bytes:
    """Return the executable of a version. Raises ImportRefusedError."""
    texts = read_modules()
    files = {name: text.encode() for name, text in members(texts, needed(texts)).items()}
    metadata = f"Metadata-Version: 2.1\nName: sos-kubectl\nVersion: {version}\n"
    own = {
        "__main__.py": START.encode(),
        f"sos_kubectl-{version}.dist-info/METADATA": metadata.encode(),
        "LICENSE": (TOP / "LICENSE").read_bytes(),
    }
    return archive({**files, **read_others(), **own})


def chart_version() -> str:
    """Return the version in the chart."""
    lines = (TOP / "charts/sos/Chart.yaml").read_text(encoding="utf-8").splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith("version: "))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Build kubectl sos as one executable file.")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the file")
    parser.add_argument("--version", default="", help="version; default: the chart's")
    options = parser.parse_args()
    try:
        content = build(options.version or chart_version())
    except ImportRefusedError as error:
        sys.exit(f"plugin: {error}")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / NAME
    path.write_bytes(content)
    path.chmod(0o755)
    print(f"plugin: {path}: {len(content) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
