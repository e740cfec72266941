"""Options and operands of a command line, by a table of the options that take a value."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Arguments:
    """A command line: options in order with their values ("" for a flag), operands, words after `--`, unknown options."""

    options: tuple[tuple[str, str], ...]
    operands: tuple[str, ...]
    rest: tuple[str, ...]
    unknown: tuple[str, ...]

    def values(self, *names: str) -> list[str]:
        """Values of all options with one of these names."""
        return [value for name, value in self.options if name in names]


def split(words: Sequence[str], with_value: Collection[str], flags: Collection[str]) -> Arguments:
    """Split a command line. A value follows its option as the next word, or after `=`."""
    options, operands, unknown = [], [], []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            operands.append(word)
        elif name in with_value:
            options.append((name, value if equals else left.pop(0) if left else ""))
        elif name in flags:
            options.append((name, value))
        else:
            unknown.append(name)
    return Arguments(tuple(options), tuple(operands), tuple(left), tuple(unknown))
