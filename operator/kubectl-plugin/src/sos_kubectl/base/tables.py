"""Tables for a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 100
GAP = "  "
SHORTEST = 6
"""Minimum width of a cell when its table is too wide."""

MORE = " \\"
"""Continuation of a shell command."""

GOOD, BAD, WAITING = "32", "31", "33"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH) -> list[str]:
    """Return the lines of a table; cut the widest columns until the table fits. Without rows, return no lines."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width and max(widths) > SHORTEST:
        widths[widths.index(max(widths))] -= 1
    return [GAP.join(_cell(cell, size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]


def _cell(text: str, size: int) -> str:
    return text.ljust(size) if len(text) <= size else text[: size - 1] + "…"


def wrapped(text: str, indent: str = "    ", width: int = WIDTH) -> list[str]:
    """Wrap a sentence into indented lines. A word longer than a line continues on the next line."""
    room = width - len(indent)
    lines, line = list[str](), indent
    for word in (part for whole in text.split() for part in _pieces(whole, room)):
        if len(line) > len(indent) and len(line) + len(word) >= width:
            lines.append(line)
            line = indent
        line += word if line == indent else f" {word}"
    return [*lines, line] if line != indent else lines


def _pieces(word: str, room: int) -> list[str]:
    return [word[start : start + room] for start in range(0, len(word), room)]


def command(line: str, width: int = WIDTH) -> list[str]:
    """Format a command for pasting: break a long command between words, behind a backslash (words are names of Kubernetes objects, and
    shorter than a line)."""
    lines = wrapped(line, indent="", width=width - len(MORE))
    return [*(f"{part}{MORE}" for part in lines[:-1]), lines[-1]]


def coloured(text: str, colour: str, on: bool) -> str:
    """Text in a colour if `on`."""
    return f"\x1b[{colour}m{text}\x1b[0m" if on and colour else text
