"""Runnable blocks: each is marked by `<!-- run: NAME -->` in a page, and run by the suite that suites.toml names."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from shell_blocks.pages import Block

FILE = Path(__file__).with_name("suites.toml")


def suites() -> dict[str, str]:
    """Read the registry: the test file of each name."""
    return {name: str(path) for name, path in tomllib.loads(FILE.read_text(encoding="utf-8"))["blocks"].items()}


def problems(blocks: Iterable[Block], suite_of: Mapping[str, str], text_of: Callable[[str], str | None]) -> Iterator[tuple[str, str]]:
    """Report names without a suite, suites without a block, and test files that do not name their block; as pairs of place and message.

    `text_of` returns the text of a file, or None if there is no such file.
    """
    marked = [block for block in blocks if block.name]
    counted = Counter(block.name for block in marked)
    for block in marked:
        place = f"{block.page}:{block.line - 2}"
        if counted[block.name] > 1:
            yield place, f"run: {block.name}: several blocks have this name"
        if block.name not in suite_of:
            yield place, f"run: {block.name}: no suite runs it: add it to {FILE.name}, and to a test"
    for name, path in suite_of.items():
        text = text_of(path)
        if name not in counted:
            yield FILE.name, f"{name}: no page has a block <!-- run: {name} -->"
        if text is None:
            yield FILE.name, f"{name}: there is no file {path}"
        elif not re.search(rf"[\"']{re.escape(name)}[\"']", text):
            yield FILE.name, f'{name}: {path} does not run it: the file does not contain "{name}"'
