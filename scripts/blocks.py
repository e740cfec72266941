"""Check the commands in Markdown pages: shell blocks (sh, bash, console), and commands of this project in backticks. Run by `make lint`.

    python scripts/blocks.py                 # check all pages
    python scripts/blocks.py --print NAME    # print the commands of the block marked <!-- run: NAME -->, for a test
    python scripts/blocks.py --list          # list all runnable blocks with their suites

Each block must pass `bash -n` and shellcheck. Each simple command is checked by the parser of its program, without being run: `kubectl sos`
and `./lab` by their own parsers, `make` by the Makefile, `helm --set` by the chart's schema, kinds of `kubectl` by the CRDs, scripts by
their `--help`. Files of the repository, and keys of labels and annotations, must exist. Words in capitals and variables are placeholders.

In a console block, lines with a prompt (`# ` or `$ `) are commands, and all other lines are output. A block below the comment line
`<!-- run: NAME -->` is run by the test file that scripts/shell_blocks/suites.toml names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # not on the path with PYTHONSAFEPATH

from shell_blocks import pages, registry, shell
from shell_blocks.pages import Block, Page
from shell_blocks.programs import Checker

TOP = Path(__file__).resolve().parents[1]
UNCHECKED = ("CHANGELOG.md", "docs/adr/")
"""Pages of history: their commands were right at their time."""


def read_pages(checker: Checker) -> dict[str, Page]:
    """Read all Markdown pages by path."""
    named = sorted(name for name in checker.files if name.endswith(".md") and (checker.top / name).is_file())
    return {name: pages.read(name, (checker.top / name).read_text(encoding="utf-8")) for name in named}


def block_problems(block: Block, checker: Checker) -> Iterator[str]:
    """Report everything that is wrong with a block, each with the line of the page."""
    for line, message in shell.errors(block.commands):
        yield f"{block.page}:{block.line + line - 1}: {message}"
    for command in shell.commands(block.commands):
        for message in checker.problems(command.words):
            yield f"{block.page}:{block.line + command.line - 1}: {message}"


def page_problems(name: str, page: Page, checker: Checker) -> Iterator[str]:
    """Report everything that is wrong with the commands of a page."""
    yield from (f"{name}:{line}: {message}" for line, message in page.problems)
    for block in page.blocks:
        yield from block_problems(block, checker)
    for mention in page.mentions:
        for command in shell.commands(mention.text):
            yield from (f"{name}:{mention.line}: `{mention.text}`: {message}" for message in checker.problems(command.words, mention=True))


def problems(checker: Checker) -> Iterator[str]:
    """Report everything that is wrong with the commands of all pages."""
    found = read_pages(checker)
    for name, page in found.items():
        if not name.startswith(UNCHECKED):
            yield from page_problems(name, page, checker)
    blocks = [block for page in found.values() for block in page.blocks]

    def text_of(path: str) -> str | None:
        return (checker.top / path).read_text(encoding="utf-8") if path in checker.files else None

    yield from (f"{place}: {message}" for place, message in registry.problems(blocks, registry.suites(), text_of))


def runnable(checker: Checker) -> dict[str, Block]:
    """All runnable blocks by name."""
    return {block.name: block for page in read_pages(checker).values() for block in page.blocks if block.name}


def main() -> int:
    """Check, print or list; exit status 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", metavar="NAME", help="print the commands of this runnable block")
    parser.add_argument("--list", action="store_true", help="list all runnable blocks: name, place, suite")
    given = parser.parse_args()
    checker = Checker(TOP)
    if given.print or given.list:
        blocks = runnable(checker)
        if given.list:
            print("".join(f"{name}  {block.page}:{block.line}  {registry.suites().get(name)}\n" for name, block in blocks.items()), end="")
        elif given.print in blocks:
            print(blocks[given.print].commands, end="")
        else:
            print(f"blocks: no page has a block <!-- run: {given.print} -->", file=sys.stderr)
            return 1
        return 0
    found = list(dict.fromkeys(problems(checker)))
    print("".join(f"blocks: {problem}\n" for problem in found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
