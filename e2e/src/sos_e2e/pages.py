"""Shell blocks of README, quick start and installation guide that the suites run; each is named by a comment above its fence.

<!-- run: NAME -->, alone on the line above a fence, names a block; `shell_blocks.pages` of scripts/ finds the fences. A block whose words
are all assignments behind `export` has the reader's own values (registry, nodes): tests set the same variables to their values, and run
all other blocks byte for byte. A missing, renamed or doubled name is an error.
"""

import re
import shlex
import sys
from collections.abc import Mapping

from sos_e2e.settings import ROOT

sys.path.append(str(ROOT / "scripts"))  # which are no installed package

from shell_blocks import pages

Block = pages.Block
PAGES = ("README.md", "docs/quick-start.md", "docs/install.md")
SHELL = "sh"
ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=.*")


class PageError(AssertionError):
    """A page does not have what a test runs; the message names page and block."""


def texts() -> dict[str, str]:
    """Read the pages: path -> text."""
    return {name: (ROOT / name).read_text() for name in PAGES}


def blocks(of: Mapping[str, str]) -> list[Block]:
    """All shell blocks of pages, with and without a name. Raises PageError for fences and names that are not well-formed."""
    found = list[Block]()
    for name, text in of.items():
        page = pages.read(name, text)
        if page.problems:
            raise PageError("\n".join(f"{name}:{line}: {message}" for line, message in page.problems))
        found += (block for block in page.blocks if block.language == SHELL)
    return found


def block(name: str, of: Mapping[str, str] | None = None) -> Block:
    """Return the block of a name, from the pages or from other texts of them. Raises PageError unless there is exactly one."""
    of = of or texts()
    found = [each for each in blocks(of) if each.name == name]
    if len(found) != 1:
        raise PageError(f"{', '.join(of)}: {len(found)} blocks have the name <!-- run: {name} -->, and one is needed")
    return found[0]


def variables(values: Block) -> set[str]:
    """Return the names that a block of the reader's values assigns. Raises PageError for any other command in it."""
    words = [shlex.split(line, comments=True) for line in values.text.splitlines()]
    for line in words:
        if line[:1] != ["export"] or not all(map(ASSIGNMENT.fullmatch, line[1:])):
            raise PageError(f"{values.page}:{values.line}: `{values.name}` has the reader's values only: export NAME=VALUE ...")
    return {word.partition("=")[0] for line in words for word in line[1:]}


def command(page: str, row: str, of: Mapping[str, str] | None = None) -> Block:
    """Return the command of a table's row: the only code span of the second column. Raises PageError unless there is exactly one."""
    lines = (of or texts())[page].splitlines()
    rows = [(number, line.split("|")) for number, line in enumerate(lines, 1) if line.startswith(f"| {row} |")]
    spans = [(number, span) for number, cells in rows for span in re.findall(r"`([^`]+)`", cells[2])]
    if len(spans) != 1:
        raise PageError(f"{page}: {len(spans)} commands in the rows `{row}` of tables, and one is needed")
    ((number, span),) = spans
    return Block(page, number, SHELL, f"{span}\n", row)
