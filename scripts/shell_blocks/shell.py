"""Syntax of shell text: simple commands with their words, by tree-sitter; errors by `bash -n` and shellcheck."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tree_sitter
import tree_sitter_bash

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
SHELLCHECK = Path(sys.executable).with_name("shellcheck")
TIMEOUT_S = 30
PLACEHOLDER = re.compile(r"\$|\.\.\.|…|[*?]|^<.*>$|(?<![A-Za-z0-9])[A-Z][A-Z0-9_]*(?![A-Za-z0-9])")
"""A word that stands for another one: a variable, an ellipsis, a pattern, or a name in capital letters."""


@dataclass(frozen=True)
class Command:
    """A simple command: its words without quotes, expansions as they are written. `line` counts from 1."""

    line: int
    words: tuple[str, ...]


def is_placeholder(word: str) -> bool:
    """True for a word whose value the text does not tell."""
    return PLACEHOLDER.search(word) is not None


def commands(text: str) -> list[Command]:
    """All simple commands of a text, also those in substitutions, loops and conditions, in the order of their begin."""
    return sorted(_walk(PARSER.parse(text.encode()).root_node), key=lambda each: each.line)


def errors(text: str) -> list[tuple[int, str]]:
    """Errors as pairs of line and message. Shellcheck reports its errors and warnings, but no matters of style such as missing quotes."""
    checked = subprocess.run(("bash", "-n"), input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if checked.returncode:
        found = [re.sub(r"^.*?line (\d+): ", r"\1:", line) for line in checked.stderr.splitlines()]
        last = len(text.splitlines())
        return [(min(last, int(number)), message) for number, _, message in (line.partition(":") for line in found) if number.isdecimal()]
    if (node := _first_error(PARSER.parse(text.encode()).root_node)) is not None:
        return [(node.start_point.row + 1, "the checker's parser does not understand this line, which bash accepts: write it more simply")]
    argv = (str(SHELLCHECK), "--shell=bash", "--severity=warning", "--format=gcc", "-")
    checked = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return [(int(line.split(":")[1]), line.split(": ", 1)[1]) for line in checked.stdout.splitlines()]


def _walk(node: tree_sitter.Node) -> Iterator[Command]:
    if node.type == "command":
        words = tuple(_word(child) for child in node.named_children if child.type in WORDS)
        if words:
            yield Command(node.start_point.row + 1, words)
    for child in node.named_children:
        yield from _walk(child)


WORDS = ("command_name", "word", "raw_string", "string", "concatenation", "number", "simple_expansion", "expansion", "command_substitution",
         "ansi_c_string")  # fmt: skip
"""Kinds of nodes that are words of a command; assignments and redirections are not."""


def _word(node: tree_sitter.Node) -> str:
    text = (node.text or b"").decode()
    if node.type in {"command_name", "concatenation"}:
        return "".join(map(_word, node.children)) or text
    if node.type == "raw_string":
        return text[1:-1]
    if node.type == "string":
        return re.sub(r'\\([$`"\\])', r"\1", text[1:-1])
    if node.type == "word":
        return re.sub(r"\\(.)", r"\1", text)
    return text


def _first_error(node: tree_sitter.Node) -> tree_sitter.Node | None:
    if node.is_error or node.is_missing:
        return node
    return next((found for child in node.children if child.has_error and (found := _first_error(child))), None)
