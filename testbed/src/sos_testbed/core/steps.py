"""Closed set of the changes that a lab makes to a machine, each with its undo. Values only; runner.py executes them.

Every `Step` names its undo before it is done. Undos are idempotent: repeated, or without their do, they change nothing.
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
    """Write a file through a rename, so that a reader never sees half of it."""

    path: str
    text: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """Start a daemon; its output goes to `log`, its pid to a file of its name."""

    name: str
    argv: tuple[str, ...]
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End a spawned program: SIGTERM, after `grace_s` SIGKILL."""

    name: str
    grace_s: float = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteNamespace:
    """Kill all processes of a network namespace, then delete it."""

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
    """One do with its undo. `title` is shown to the user meanwhile."""

    title: str
    do: Do
    undo: Undo


def encode_undo(undo: Undo) -> dict[str, Any]:
    """An undo as a JSON object for the journal."""
    return {"kind": type(undo).__name__, **asdict(undo)}


def parse_undo(raw: dict[str, Any]) -> Undo:
    """Decode an undo of the journal; ValueError if this version does not know it."""
    fields = dict(raw)
    kind = _UNDOS.get(str(fields.pop("kind", "")))
    if kind is None:
        raise ValueError(f"unknown undo {raw.get('kind')!r}")
    if "argv" in fields:
        fields["argv"] = tuple(fields["argv"])
    return kind(**fields)
