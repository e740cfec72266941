"""The closed set of things a lab does to a machine, and what takes each one back. Values only; runner.py carries them out.

Every `Step` names its undo before it is done; undos may be repeated and find nothing left, so an undo is written so
that doing it twice, or without its do, changes nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run a command to its end; a status other than 0 is an error (as an undo: is ignored)."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeFolder:
    """Make a folder with its parents."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile:
    """Write a whole file, through a rename so that a reader never sees half of it."""

    path: str
    text: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """Start a program that stays; its output goes to `log`, its pid is kept under its name."""

    name: str
    argv: tuple[str, ...]
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End a spawned program: asked first, killed after `grace_s`."""

    name: str
    grace_s: float = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteNamespace:
    """Kill whatever still runs in a network namespace, then delete it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTree:
    """Remove a file or folder."""

    path: str


Do = Run | MakeFolder | WriteFile | Spawn
Undo = Run | Stop | DeleteNamespace | RemoveTree

_UNDOS: dict[str, type[Run] | type[Stop] | type[DeleteNamespace] | type[RemoveTree]] = {
    kind.__name__: kind for kind in (Run, Stop, DeleteNamespace, RemoveTree)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One do with its undo. `title` is what a user reads while it happens."""

    title: str
    do: Do
    undo: Undo


def encode_undo(undo: Undo) -> dict[str, Any]:
    """An undo as a JSON object for the journal."""
    return {"kind": type(undo).__name__, **asdict(undo)}


def parse_undo(raw: dict[str, Any]) -> Undo:
    """Back from the journal; ValueError for what this version does not know."""
    fields = dict(raw)
    kind = _UNDOS.get(str(fields.pop("kind", "")))
    if kind is None:
        raise ValueError(f"unknown undo {raw.get('kind')!r}")
    if "argv" in fields:
        fields["argv"] = tuple(fields["argv"])
    return kind(**fields)
