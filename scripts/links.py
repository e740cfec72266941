"""Check the Markdown pages: links, code names in backticks, and glossary terms. Run by `make lint`.

- The file of a link exists, and so does its heading if the link has an anchor.
- In docs/, a path (`scripts/lint.py`, `core/engine.py`) or dotted name (`sos_compile.model.world`) in backticks exists in this repository.
  A path may omit its leading folders.
- A term of docs/glossary.md is also used outside the glossary: in code, the API, logs, metrics or other pages.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # not on the path with PYTHONSAFEPATH

import modules as tree

TOP = Path(__file__).resolve().parents[1]
GLOSSARY = Path("docs/glossary.md")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?) *#*$", re.MULTILINE)
CODE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"`([^`\s]+)`")
PATH = re.compile(r"\.?[\w-][\w.-]*(?:/[\w.-]+)+\.(?:py|rs|sh|toml|md|yaml|json)")
DOTTED = re.compile(r"sos_\w+(?:\.\w+)+")
BUILT = ("out/", "target/")
TEXT = (".py", ".rs", ".md", ".yaml", ".yml", ".json", ".toml", ".sh", ".tpl", ".txt", "Makefile", "lab")


# --- links -------------------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, in the form of hosting platforms."""
    words = (re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower() for heading in HEADING.findall(text))
    return {each.replace(" ", "-") for each in words}


def wrong(page: Path) -> list[str]:
    """Report the broken links of a page."""
    found = []
    for target in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            found.append(f"{page.relative_to(TOP)}: {target}: there is no such file")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()):
            found.append(f"{page.relative_to(TOP)}: {target}: there is no such heading")
    return found


# --- code names ----------------------------------------------------------------------------------------------------------------


def missing_names(text: str, files: Collection[str], modules: Mapping[str, str]) -> Iterator[str]:
    """Report paths and dotted names in backticks that do not exist; code blocks are ignored."""
    for name in dict.fromkeys(NAME.findall(BLOCK.sub("", text))):
        if PATH.fullmatch(name) and not name.startswith(BUILT) and not exists(name, files):
            yield f"`{name}`: there is no such file"
        elif DOTTED.fullmatch(name) and not name.endswith((".py", ".rs")) and not defined(name, modules):
            yield f"`{name}`: there is no such module or name"


def exists(path: str, files: Iterable[str]) -> bool:
    """True for the path of a file, in full or without its leading folders."""
    return any(file == path or file.endswith(f"/{path}") for file in files)


def defined(name: str, modules: Mapping[str, str]) -> bool:
    """True for a module, and for a name that occurs in the text of its module."""
    module = tree.longest_known(name, ".", modules)
    if module is None:
        return False
    rest = name.removeprefix(module).lstrip(".").split(".")[0]
    return not rest or re.search(rf"\b{re.escape(rest)}\b", modules[module]) is not None


# --- glossary ------------------------------------------------------------------------------------------------------------------


def terms(glossary: str) -> list[str]:
    """List the first column of tables whose first heading is `term`."""
    found, within = [], False
    for line in glossary.splitlines():
        cell = line.strip().strip("|").split("|")[0].strip().replace("`", "")
        if not line.lstrip().startswith("|"):
            within = False
        elif cell == "term":
            within = True
        elif within and not re.fullmatch(r"[-: ]*", cell):
            found.append(cell)
    return found


def plain(text: str) -> str:
    """Lower case, with words apart: `ackOffset`, `ack_offset` and `ack-offset` read as `ack offset`."""
    return re.sub(r"[\W_]+", " ", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)).lower()


def unused(glossary: str, text: str) -> list[str]:
    """List the terms that a text converted by `plain` does not use. Commas and slashes separate several terms."""
    found = []
    for term in terms(glossary):
        for each in filter(None, (part.strip() for part in re.split(r"[,/]|\(.*?\)", term))):
            word = plain(each).strip()
            several = f"{word[:-1]}ies" if word.endswith("y") else f"{word}(?:s|es)?"
            if not re.search(rf"\b(?:{word}|{several})\b", text):
                found.append(each)
    return found


# --- files ---------------------------------------------------------------------------------------------------------------------


def listed() -> list[str]:
    """List the repository's files, new ones included."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    return [
        name
        for name in subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=True).stdout.splitlines()
        if (TOP / name).is_file()
    ]


def problems() -> Iterator[str]:
    """Report everything that is wrong with the pages."""
    files = listed()
    modules = {name: text for folder in tree.python_folders() for name, text in tree.python_modules(folder).items()}
    for name in files:
        if name.endswith(".md"):
            yield from wrong(TOP / name)
        if name.startswith("docs/") and name.endswith(".md"):
            yield from (f"{name}: {problem}" for problem in missing_names((TOP / name).read_text(), files, modules))
    if str(GLOSSARY) in files:
        texts = ((TOP / name).read_text(errors="replace") for name in files if name.endswith(TEXT) and name != str(GLOSSARY))
        yield from (f"{GLOSSARY}: `{term}` is used nowhere else" for term in unused((TOP / GLOSSARY).read_text(), plain("\n".join(texts))))


def main() -> int:
    """Print all problems; exit status 0 without problems, else 1."""
    found = list(problems())
    print("".join(f"links: {problem}\n" for problem in found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
