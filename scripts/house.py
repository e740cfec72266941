"""Measure the shape of the code: function lengths, folder sizes, module names, doc comments, circles of imports, commit subjects.

    python scripts/house.py                     # this repository
    python scripts/house.py --models DIR        # also every repository in DIR, counted the same way

Prints Markdown tables and always exits with 0: the tables serve for comparison with other projects, and no figure fails a build.

Functions are `def` and `fn` with a body, counted from the first line to the closing line; percentiles are nearest rank. Rust test files
are left out, inline test modules are counted. A module name is private if an engineer who knows OpenFlow, TCP and Kubernetes could not
derive the module's content from it: PRIVATE_WORDS, from a review of every name.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # not on the path with PYTHONSAFEPATH

import modules as tree

TOP = Path(__file__).resolve().parents[1]
LONG = 60
COMMITS = 100
OPENERS = ("What", "Who", "Whether", "How", "Where", "When", "Which")
WORDS = ("nobody", "somebody", "anew", "lately")
PRIVATE_WORDS = frozenset(
    (
        *("courier", "lately", "earlier", "finding", "turns", "wheel", "patience", "exact", "nudge", "accepted", "measured", "observed"),
        *("comparison", "preparation", "ending"),
        *("share", "shared", "ceiling", "held", "beginning", "overruns", "carriers", "rates", "duties", "ends", "running", "permit"),
        *("line", "spare", "pace", "pieces", "pipes", "exchange", "replace", "hooks", "again", "parting", "ended", "loss"),
        *("news", "fence", "inflight", "leftover", "publish", "views", "concern", "shown", "looking", "wires", "labs", "clusters", "wake"),
        *("crowd", "visits", "book", "third", "judging"),
    )
)
PLAIN_WHERE = frozenset((("sos-node", "observed"),))
"""Pairs of a part and a word of PRIVATE_WORDS that is clear in this part: sos-node observes, plans and encodes."""
SKIPPED = frozenset(("target", ".venv", "node_modules", ".git", "out"))


# --- counting: pure ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    """Length of a function in lines; for Python also its annotations and docstring."""

    lines: int
    name: str = ""
    annotated: bool = True
    documented: bool = True


def percentile(values: Iterable[int], share: float) -> int:
    """Nearest-rank percentile; 0 without values."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0


def python_functions(text: str) -> list[Function]:
    """List functions and methods. Annotated means the result and all arguments but self and cls."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            annotated = node.returns is not None and all(each.annotation for each in arguments if each.arg not in {"self", "cls"})
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found.append(Function(lines, node.name, annotated, ast.get_docstring(node) is not None))
    return found


def rust_functions(text: str) -> list[Function]:
    """List every `fn` with a body."""
    code = tree.rust_code(text)
    found = []
    for start in re.finditer(r"\bfn\s+(\w+)", code):
        body = _body(code, start.end())
        if body is not None:
            found.append(Function(code.count("\n", start.start(), tree.closing(code, body)) + 1, start.group(1)))
    return found


def _body(code: str, at: int) -> int | None:
    """Find the brace that opens a function's body; None for a declaration. A signature may contain a semicolon: `[u8; 4]`."""
    depth = 0
    for place, letter in enumerate(code[at:], at):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if depth == 0 and letter in "{;":
            return place if letter == "{" else None
    return None


def unsafe_uses(text: str) -> int:
    """Count `unsafe` blocks, functions and implementations."""
    return len(re.findall(r"\bunsafe\s+(?:extern\b|fn\b|impl\b)|\bunsafe\s*\{", tree.rust_code(text)))


def comment_lines(text: str) -> int:
    """Count lines that contain only a comment, doc comments included."""
    return sum(line.lstrip().startswith("//") for line in text.splitlines())


def python_docs(text: str) -> list[str]:
    """List the docstrings of a module, its classes and its functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))
    return [doc for doc in map(ast.get_docstring, nodes) if doc]


def rust_docs(text: str) -> list[str]:
    """List doc comments: runs of lines that begin with `///` or `//!`."""
    found: list[list[str]] = []
    before = ""
    for line in text.splitlines():
        mark = line.lstrip()[:3] if line.lstrip().startswith(("///", "//!")) else ""
        if mark and mark == before:
            found[-1].append(line.lstrip()[3:].strip())
        elif mark:
            found.append([line.lstrip()[3:].strip()])
        before = mark
    return ["\n".join(lines) for lines in found]


def opens_with_question(doc: str) -> bool:
    """True for a doc comment whose first word is one of OPENERS."""
    return re.match(rf"\s*(?:{'|'.join(OPENERS)})\b", doc) is not None


def occurrences(texts: Iterable[str], words: Sequence[str] = WORDS) -> dict[str, int]:
    """Count words in texts, ignoring case."""
    found = Counter(dict.fromkeys(words, 0))
    pattern = re.compile(rf"\b({'|'.join(words)})\b", re.IGNORECASE)
    for text in texts:
        found.update(word.lower() for word in pattern.findall(text))
    return dict(found)


def private_names(paths: Iterable[Path]) -> list[str]:
    """Select module names that are private words."""
    private = (path for path in paths if path.stem in PRIVATE_WORDS)
    return sorted(path.stem for path in private if PLAIN_WHERE.isdisjoint((part, path.stem) for part in path.parts))


def fullest(paths: Iterable[Path]) -> tuple[str, int]:
    """Find the folder with the most files, and the number of its files."""
    counted = Counter(str(path.parent) for path in paths)
    return max(counted.items(), key=lambda each: (each[1], each[0]), default=("", 0))


# --- rows ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Files of one language, the subject of one table row."""

    name: str
    files: tuple[Path, ...]
    tests: tuple[Path, ...] = ()
    roots: tuple[Path, ...] = ()
    """Folders in which import circles are counted: import roots of Python, or src folders of crates."""
    texts: dict[Path, str] = field(default_factory=dict)

    def text(self, path: Path) -> str:
        """Text of a file, read only once."""
        if path not in self.texts:
            self.texts[path] = path.read_text(errors="replace")
        return self.texts[path]

    @property
    def code(self) -> list[str]:
        """Texts of all files."""
        return [self.text(path) for path in self.files]


def python_row(part: Part) -> tuple[str, ...]:
    """Row of sizes, annotations and docstrings."""
    functions = [each for text in part.code for each in python_functions(text)]
    return (*sizes(part, functions), percent(each.annotated for each in functions), percent(each.documented for each in functions))


def rust_row(part: Part) -> tuple[str, ...]:
    """Row of sizes, `unsafe` and comments."""
    functions = [each for text in part.code for each in rust_functions(text)]
    lines = sum(len(text.splitlines()) for text in part.code)
    comments = sum(map(comment_lines, part.code))
    return (*sizes(part, functions), str(sum(map(unsafe_uses, part.code))), f"{100 * comments / max(1, lines):.0f} %")


def sizes(part: Part, functions: Sequence[Function]) -> tuple[str, ...]:
    """Columns of both languages: files, lines, function lengths."""
    lengths = [each.lines for each in functions]
    longest = max(functions, key=lambda each: each.lines, default=Function(0))
    lines = sum(len(text.splitlines()) for text in part.code)
    ranks = (str(percentile(lengths, share)) for share in (0.5, 0.9, 0.99))
    over = str(sum(length > LONG for length in lengths))
    per_file = str(round(lines / max(1, len(part.files))))
    return (part.name, str(len(part.files)), per_file, str(len(functions)), *ranks, f"{longest.lines} `{longest.name}`", over)


def rooms_row(part: Part, top: Path, docs: Callable[[str], list[str]], found: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Row of folder sizes, doc comment openers, circles and private names."""
    folder, most = fullest(part.files)
    test_folder, most_tests = fullest(part.tests)
    comments = [doc for text in part.code for doc in docs(text)]
    private = private_names(part.files)
    return (
        part.name,
        f"{most} `{_short(folder, top)}`",
        f"{most_tests} `{_short(test_folder, top)}`" if most_tests else "",
        percent(map(opens_with_question, comments)),
        str(len(found)) + "".join(f"; {' <-> '.join(group)}" for group in found),
        f"{len(private)} of {len(part.files)}" + (f": {', '.join(private)}" if private else ""),
    )


def _short(folder: str, top: Path) -> str:
    return str(Path(folder).relative_to(top)) if Path(folder).is_relative_to(top) else folder


def percent(values: Iterable[bool]) -> str:
    """Share of true values."""
    known = list(values)
    return f"{100 * sum(known) / len(known):.0f} %" if known else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows))


# --- files -----------------------------------------------------------------------------------------------------------------


def files(folder: Path, suffix: str) -> tuple[Path, ...]:
    """List files of a language below a folder, build output left out."""
    return tuple(path for path in sorted(folder.rglob(f"*{suffix}")) if SKIPPED.isdisjoint(path.relative_to(folder).parts))


def python_parts(top: Path) -> list[Part]:
    """Python parts: every package, separately the controller's core, and the benchmarks."""
    found = []
    for source in sorted((*top.glob("*/src"), *top.glob("*/kubectl-plugin/src"))):
        if not (named := sorted(path.parent for path in source.glob("*/__init__.py"))):
            continue
        tests = files(source.parent / "tests", ".py")
        for package in named:
            found.append(Part(package.name, files(package, ".py"), tests, (source,)))
            if (package / "core").is_dir() and package.name == "sos_controller":
                found.append(Part(f"{package.name}.core", files(package / "core", ".py"), tests, ()))
    if (top / "bench").is_dir() and files(top / "bench", ".py"):
        roots = tuple(path for path in sorted((top / "bench").iterdir()) if path.is_dir())
        found.append(Part("bench", files(top / "bench", ".py"), (), roots))
    return found


def rust_parts(top: Path) -> list[Part]:
    """Rust parts: all crates of agent-image together, then every crate separately."""
    sources = tree.crates(top)
    agents = [source for source in sources if source.parent.parent == top / "agent-image" / "crates"]
    found = [_crate(source.parent.name if source in agents else _short(str(source.parent), top), (source,)) for source in sources]
    return [_crate("agent-image, all crates", agents), *found]


def _crate(name: str, sources: Sequence[Path]) -> Part:
    code = tuple(path for source in sources for path in files(source, ".rs") if not tree.is_test(path.relative_to(source)))
    tests = tuple(path for source in sources for path in files(source.parent / "tests", ".rs"))
    return Part(name, code, tests, tuple(sources))


def model_parts(top: Path) -> tuple[list[Part], list[Part]]:
    """Parts of another repository: Python packages at the top level or in src, and crates."""
    python = [path.parent for pattern in ("*/__init__.py", "src/*/__init__.py") for path in sorted(top.glob(pattern))]
    rust = sorted(path.parent for path in (*top.glob("*/Cargo.toml"), *top.glob("Cargo.toml")) if (path.parent / "src").is_dir())
    named = [
        Part(each.name, files(each, ".py"), files(top / "tests", ".py"), (each,)) for each in python if each.name not in {"tests", "docs"}
    ]
    return named, [_crate(each.name, (each / "src",)) for each in rust]


def python_circles(part: Part, *, typing_only: bool = True) -> list[tuple[str, ...]]:
    """Circles of imports below a part's import roots."""
    found: list[tuple[str, ...]] = []
    for root in part.roots:
        base = root if not (root / "__init__.py").exists() else root.parent
        known = {name: text for name, text in tree.python_modules(base).items() if base == root or name.split(".")[0] == root.name}
        found += tree.circles(tree.python_imports(known, typing_only=typing_only))
    return found


def rust_circles(part: Part) -> list[tuple[str, ...]]:
    """Circles between modules of one crate, for all crates of a part."""
    return [group for root in part.roots for group in tree.circles(tree.rust_imports(tree.rust_modules(root)))]


# --- history ---------------------------------------------------------------------------------------------------------------


def git(top: Path, *arguments: str) -> list[str]:
    """Run git and return its output lines; empty outside a repository."""
    done = subprocess.run(("git", "-C", str(top), *arguments), capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def words_row(top: Path) -> tuple[str, ...]:
    """Row of WORDS in Python, Rust and Markdown, and of subject lengths of the latest commits."""
    texts = (path.read_text(errors="replace") for suffix in (".py", ".rs", ".md") for path in files(top, suffix))
    counted = occurrences(texts)
    subjects = [len(line) for line in git(top, "log", "--no-merges", f"-{COMMITS}", "--format=%s")]
    lengths = (percentile(subjects, 0.5), percentile(subjects, 0.9), max(subjects, default=0))
    return (top.name, *(str(counted[word]) for word in WORDS), " / ".join(map(str, lengths)) if subjects else "no history")


SIZES = ("", "files", "lines/file", "functions", "median", "p90", "p99", "longest", f">{LONG}")
ROOMS = ("", "most files in a folder", "most tests in a folder", f"opens with {'/'.join(OPENERS)}", "circles", "private names")


def report(repositories: Sequence[tuple[Path, list[Part], list[Part]]]) -> str:
    """Format all tables."""
    python = [(top, part) for top, parts, _ in repositories for part in parts]
    rust = [(top, part) for top, _, parts in repositories for part in parts]
    rooms = [rooms_row(part, top, python_docs, python_circles(part)) for top, part in python]
    rooms += [rooms_row(part, top, rust_docs, rust_circles(part)) for top, part in rust]
    return "\n".join(
        (
            table((*SIZES, "annotated", "docstrings"), (python_row(part) for _, part in python)),
            table((*SIZES, "`unsafe`", "comment lines"), (rust_row(part) for _, part in rust)),
            table(ROOMS, rooms),
            table(("", *WORDS, f"subjects of {COMMITS} commits, median / p90 / max"), (words_row(top) for top, _, _ in repositories)),
        )
    )


def main() -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--top", type=Path, default=TOP, help="another tree of this repository, such as a git worktree")
    parser.add_argument("--models", type=Path, help="a folder of repositories to count beside it")
    given = parser.parse_args()
    top = given.top.resolve()
    repositories = [(top, python_parts(top), rust_parts(top))]
    for model in sorted(path for path in given.models.iterdir() if path.is_dir()) if given.models else []:
        repositories.append((model.resolve(), *model_parts(model.resolve())))
    print(report(repositories))
    return 0


if __name__ == "__main__":
    sys.exit(main())
