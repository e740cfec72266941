"""Check the module structure: circles of imports, and package pages that omit a module from their list of modules.

Run by `make lint`. The functions are pure, from module texts to values, except those under "files"; `scripts/house.py` also uses them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
Graph = Mapping[str, set[str]]

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<text>b?"(?:\\.|[^"\\])*"|b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?'(?:\\.[^']*|[^'\\\n])')""",
    re.VERBOSE | re.DOTALL,
)
_TEST_MODULE = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+\w+\s*\{")
_TEST_FILE = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*mod\s+(\w+)\s*;")
_DECLARED = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", re.MULTILINE)
_USE = re.compile(r"(?<!\w)(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
_INLINE = re.compile(r"(?<![\w:])((?:crate|super)(?:::\w+)+)")
_NAMED = re.compile(r"`([\w:./]+(?:\{[\w:, ]+\})?)(?:\(\))?`")
LISTING = 0.5
"""A page that names at least this share of its modules counts as a list of modules, and must name all of them."""


# --- Rust text -----------------------------------------------------------------------------------------------------------


def rust_code(text: str) -> str:
    """Blank comments and literals, so that every remaining brace is code; lines and columns are unchanged."""
    return _TOKEN.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def closing(code: str, opening: int) -> int:
    """Find the closing brace for the brace at `opening`; the end of the text if it is not closed."""
    depth = 0
    for found in re.finditer(r"[{}]", code[opening:]):
        depth += 1 if found.group() == "{" else -1
        if depth == 0:
            return opening + found.start()
    return len(code)


def without_tests(code: str) -> str:
    """Blank the inline test modules in the result of `rust_code`."""
    while found := _TEST_MODULE.search(code):
        end = closing(code, found.end() - 1)
        code = code[: found.start()] + re.sub(r"[^\n]", " ", code[found.start() : end + 1]) + code[end + 1 :]
    return code


def use_paths(tree: str) -> Iterator[str]:
    """List the full paths of a use tree: `a::{b, c::{d, e as f}}` -> a::b, a::c::d, a::c::e."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    if not brace:
        yield re.sub(r"\s+as\s+\w+$", "", tree).replace(" ", "")
        return
    depth, part = 0, ""
    for letter in rest[: rest.rfind("}")] + ",":
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            if part.strip():
                yield from (head.strip() + path for path in use_paths(part))
            part = ""
        else:
            part += letter


# --- imports -------------------------------------------------------------------------------------------------------------


def longest_known(path: str, separator: str, known: Container[str]) -> str | None:
    """Resolve a dotted or `::` path to the module that contains it."""
    parts = path.split(separator)
    names = (separator.join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in known), None)


def python_imports(modules: Mapping[str, str], *, typing_only: bool = True) -> dict[str, set[str]]:
    """Map each module to its imported modules: at module level, in functions and, with `typing_only`, under TYPE_CHECKING.

    An explicit import of a package counts; the parent packages that Python loads implicitly do not.
    """
    found = {}
    for name, text in modules.items():
        tree = ast.parse(text)
        left_out = set() if typing_only else _type_checking(tree)
        targets: set[str] = set()
        for node in ast.walk(tree):
            if id(node) in left_out:
                continue
            if isinstance(node, ast.Import):
                targets.update(filter(None, (longest_known(alias.name, ".", modules) for alias in node.names)))
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(name, node, packages(modules))
                targets.update(filter(None, (longest_known(f"{base}.{alias.name}", ".", modules) for alias in node.names)))
        found[name] = targets - {name}
    return found


def _type_checking(tree: ast.Module) -> set[int]:
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    return {id(inner) for block in blocks for statement in block.body for inner in ast.walk(statement)}


def _absolute(name: str, node: ast.ImportFrom, known_packages: set[str]) -> str:
    if not node.level:
        return node.module or ""
    parts = name.split(".")
    above = parts[: len(parts) - node.level + (name in known_packages)]
    return ".".join((*above, *([node.module] if node.module else [])))


def packages(modules: Iterable[str], separator: str = ".") -> set[str]:
    """Select the modules that contain other modules."""
    return {name.rpartition(separator)[0] for name in modules if separator in name}


def rust_imports(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Map each module of a crate to the modules that it names, by `use` or inline; test code is left out.

    Re-exports are followed to the defining module. There is no edge between a module and its submodules: in Rust they belong together,
    and may use each other's private items.
    """
    codes = {name: without_tests(rust_code(text)) for name, text in modules.items()}
    exports = {name: dict(_exports(name, code)) for name, code in codes.items()}
    found = {}
    for name, code in codes.items():
        paths = {path for each in _USE.finditer(code) for path in use_paths(each.group(2))} | set(_INLINE.findall(code))
        targets = {_follow(path, modules, exports) for path in (_from_crate(each, name) for each in paths) if path}
        found[name] = {each for each in targets if each and not _nested(name, each)}
    found.pop("", None)
    return found


def _from_crate(path: str, module: str) -> str:
    """Convert a path to a path from the crate's root; empty for a path into another crate."""
    parts, at = path.split("::"), module.split("::") if module else []
    if parts[0] == "crate":
        return "::".join(parts[1:])
    if parts[0] not in {"super", "self"}:
        return ""
    while parts and parts[0] in {"super", "self"}:
        at = at[:-1] if parts[0] == "super" else at
        parts = parts[1:]
    return "::".join((*at, *parts))


def _exports(module: str, code: str) -> Iterator[tuple[str, str]]:
    for each in _USE.finditer(code):
        if each.group(1):
            for path in use_paths(each.group(2)):
                start = path if path.startswith(("crate::", "self::", "super::")) else f"self::{path}"
                yield path.rpartition("::")[2], _from_crate(start, module)


def _follow(path: str, modules: Mapping[str, str], exports: Mapping[str, Mapping[str, str]]) -> str | None:
    for _ in range(8):  # a re-export may lead to another re-export
        module = longest_known(path, "::", modules) or ""
        item = path.removeprefix(module).lstrip(":").split("::")[0]
        following = exports.get(module, {}).get(item)
        if not following or (longest_known(following, "::", modules) or "") in {"", module}:
            return module
        path = following
    return None


def _nested(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}::") or other.startswith(f"{one}::")


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """Find the strongly connected groups of more than one module: Tarjan's algorithm, without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    waiting: set[str] = set()
    found: list[tuple[str, ...]] = []
    for start in sorted(graph):
        work = [(start, iter(sorted(graph[start])))] if start not in index else []
        while work:
            node, targets = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
                waiting.add(node)
            for target in targets:
                if target not in index and target in graph:
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in waiting:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    group, stack = tuple(sorted(stack[at:])), stack[:at]
                    waiting -= set(group)
                    found += [group] if len(group) > 1 else []
    return sorted(found)


# --- package pages ---------------------------------------------------------------------------------------------------------


def omitted(page: str, modules: Iterable[str]) -> list[str]:
    """List the modules that a page does not name in backticks; none if the page does not list modules at all (LISTING)."""
    words = {word for name in _NAMED.findall(page) for word in re.split(r"\W+", name)}
    own = sorted(set(modules))
    named = [name for name in own if name in words]
    return [name for name in own if name not in words] if own and len(named) >= max(3, LISTING * len(own)) else []


def python_page(modules: Mapping[str, str], package: str) -> tuple[str, list[str]]:
    """Return a package's docstring and the names of its modules, without private names (leading underscore)."""
    names = {each.removeprefix(f"{package}.").split(".")[0] for each in modules if each.startswith(f"{package}.")}
    return ast.get_docstring(ast.parse(modules[package])) or "", sorted(name for name in names if not name.startswith("_"))


def rust_page(text: str) -> tuple[str, list[str]]:
    """Return a Rust file's `//!` page and its declared modules, without test modules."""
    page = "\n".join(re.findall(r"^//! ?(.*)$", text, re.MULTILINE))
    code = rust_code(text)
    return page, sorted(set(_DECLARED.findall(code)) - set(_TEST_FILE.findall(code)))


# --- files -----------------------------------------------------------------------------------------------------------------


def python_modules(folder: Path) -> dict[str, str]:
    """Read every Python file below an import root: dotted name -> text."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def rust_modules(source: Path) -> dict[str, str]:
    """Read every Rust file below a crate's src, test files left out: `a::b` -> text; "" is the crate's root."""
    paths = {}
    for path in sorted(source.rglob("*.rs")):
        parts = path.relative_to(source).with_suffix("").parts
        if parts[0] == "bin" or is_test(path):
            continue
        name = "::".join(parts[:-1] if parts[-1] == "mod" or parts in {("lib",), ("main",)} else parts)
        if name or path.name == "lib.rs" or name not in paths:
            paths[name] = path
    return {name: path.read_text() for name, path in paths.items()}


def is_test(path: Path) -> bool:
    """True for a Rust file of tests only, by its name."""
    return path.stem == "tests" or path.stem.endswith("_tests") or "tests" in path.parts


def crates(top: Path = TOP) -> list[Path]:
    """List the src folders of all crates."""
    patterns = ("agent-image/crates/*/src", "agent-image/ovs/*/src", "testbed/linkemu/src", "bench/controller/src")
    return sorted(path for pattern in patterns for path in top.glob(pattern))


def python_folders(top: Path = TOP) -> list[Path]:
    """List the import roots of Python."""
    return sorted(
        (*top.glob("*/src"), *top.glob("*/kubectl-plugin/src"), *(path for path in top.glob("bench/*") if any(path.rglob("*.py"))))
    )


def problems(top: Path = TOP) -> Iterator[str]:
    """Report every circle, and every module that its package page omits."""
    for folder in python_folders(top):
        modules = python_modules(folder)
        yield from (f"circle of imports: {' <-> '.join(group)}" for group in circles(python_imports(modules)))
        for package in sorted(packages(modules) & set(modules)):
            yield from (f"{package}/__init__.py: its page omits `{name}`" for name in omitted(*python_page(modules, package)))
    for source in crates(top):
        crate = source.parent.name
        modules = rust_modules(source)
        yield from (f"circle of modules in {crate}: {' <-> '.join(group)}" for group in circles(rust_imports(modules)))
        for name, text in modules.items():
            yield from (f"{crate}, page of {name or 'the crate'}: omits [`{module}`]" for module in omitted(*rust_page(text)))


def main() -> int:
    """Print all problems; exit status 0 without problems, else 1."""
    found = list(problems())
    print("".join(f"modules: {problem}\n" for problem in found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
