"""Fenced shell blocks of a page, and commands in backticks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

SHELLS = ("sh", "bash", "shell", "console")
OURS = re.compile(
    r"(?:\./lab|kubectl-sos|kubectl|helm|make|sos-controller|python -m sos_\w+|(?:\.venv/bin/)?python [\w./-]+\.py|scripts/[\w.-]+)(?= |$)"
)
"""Begin of a command that the checkers know, in a block without a language or in backticks."""
FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,}|~{3,}) *(?P<language>[\w+-]*)[^`]*$")
RUN = re.compile(r"^ *<!-- run: (?P<name>[a-z0-9][a-z0-9-]*) -->$")
PROMPT = re.compile(r"^[#$] (?=\S)")
SPAN = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block. `line` is the line of the page that `text` begins at."""

    page: str
    line: int
    language: str
    text: str
    name: str = ""
    """Name in the comment `<!-- run: NAME -->` above the fence."""

    @property
    def commands(self) -> str:
        """The text without prompts and output; lines of output are empty, so that line numbers stay."""
        return _without_output(self.text) if self.language == "console" else self.text

    @property
    def output(self) -> str:
        """The output that a console block shows."""
        shown = zip(self.text.splitlines(), self.commands.splitlines(), strict=True)
        return "".join(f"{line}\n" for line, command in shown if not command) if self.language == "console" else ""


@dataclass(frozen=True)
class Mention:
    """A command in backticks, which may leave arguments out; without the brackets of optional arguments."""

    page: str
    line: int
    text: str


@dataclass(frozen=True)
class Page:
    """The blocks of a page with a shell language, its mentions of commands, and its problems as pairs of line and message."""

    blocks: tuple[Block, ...]
    mentions: tuple[Mention, ...]
    problems: tuple[tuple[int, str], ...]


def read(page: str, text: str) -> Page:
    """Read a page."""
    lines = text.splitlines()
    blocks, prose, unclosed = _fences(page, lines)
    shells = tuple(block for block in blocks if block.language in SHELLS)
    mentions = tuple(_mentions(page, prose))
    problems = (*unclosed, *_unmarked(blocks), *_indented(lines, prose), *_unattached(lines, blocks))
    return Page(shells, mentions, tuple(sorted(problems)))


def _without_output(text: str) -> str:
    found, continued = [], False
    for line in text.splitlines():
        is_command = continued or PROMPT.match(line) is not None
        found.append((line if continued else PROMPT.sub("", line)) if is_command else "")
        continued = is_command and line.endswith("\\")
    return "".join(f"{line}\n" for line in found)


def _fences(page: str, lines: Sequence[str]) -> tuple[list[Block], dict[int, str], list[tuple[int, str]]]:
    """All fenced blocks, and the lines outside them by number."""
    blocks: list[Block] = []
    prose: dict[int, str] = {}
    at = 0
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence is None:
            prose[at + 1] = lines[at]
            at += 1
            continue
        closing = re.compile(rf"^ *{re.escape(fence['marks'])}{fence['marks'][0]}* *$")
        end = next((number for number in range(at + 1, len(lines)) if closing.match(lines[number])), None)
        if end is None:
            return blocks, prose, [(at + 1, "the fence has no end")]
        text = "".join(f"{line.removeprefix(fence['indent'])}\n" for line in lines[at + 1 : end])
        run = RUN.match(lines[at - 1]) if at else None
        blocks.append(Block(page, at + 2, fence["language"], text, run["name"] if run else ""))
        at = end + 1
    return blocks, prose, []


def _unmarked(blocks: Iterable[Block]) -> Iterator[tuple[int, str]]:
    """Blocks of commands that would escape the check."""
    for block in blocks:
        if not block.language and any(PROMPT.match(line) or OURS.match(line) for line in block.text.splitlines()):
            yield block.line - 1, "a block of commands without a language: write ```sh, or ```console for commands with prompt and output"
        elif block.language == "console" and not block.commands.strip():
            yield block.line - 1, "a console block without a prompt (# or $): write ```text for output or a synopsis"
        elif block.name and block.language not in SHELLS:
            yield block.line - 1, f"run: {block.name}: not a shell block"


def _indented(lines: Sequence[str], prose: dict[int, str]) -> Iterator[tuple[int, str]]:
    """Code by indentation, which has no language. Lines of a list are indented, too, but do not begin with a command."""
    for number, line in prose.items():
        above = lines[number - 2] if number > 1 else ""
        if re.match(r" {4,}", line) and OURS.match(line.strip()) and (not above.strip() or above.startswith("    ")):
            yield number, "commands in an indented block: use a fence with a language"


def _unattached(lines: Sequence[str], blocks: Sequence[Block]) -> Iterator[tuple[int, str]]:
    """Comments that mark no block."""
    fences = {block.line - 1 for block in blocks}
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("<!-- run:") and (RUN.match(line) is None or number + 1 not in fences):
            yield number, "<!-- run: NAME --> must stand alone, directly above a fence; NAME consists of a-z, 0-9 and -"


def _mentions(page: str, prose: dict[int, str]) -> Iterator[Mention]:
    for number, line in prose.items():
        for span in SPAN.findall(line):
            if OURS.match(span):
                yield Mention(page, number, re.sub(r"[\[\]]", "", span.replace("\\|", "|")))
