"""Closed set of a lab's changes to a machine, each with its undo. This module has only values; runner.py executes them.

The undo of every `Step` is known before the step is executed. Undos are idempotent, and change nothing if their step was not executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run a command to its end; a status other than 0 is an error, but is ignored in an undo."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeFolder:
    """Make a folder with its parents."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile:
    """Write a file atomically by a rename."""

    path: str
    text: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """Start a daemon; its output goes to `log`, and its pid to a file with the daemon's name."""

    name: str
    argv: tuple[str, ...]
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End a spawned program: SIGTERM, then SIGKILL after `grace_s`."""

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
    """A change with its undo. `title` is shown to the user during the execution."""

    title: str
    do: Do
    undo: Undo


def encode_undo(undo: Undo) -> dict[str, Any]:
    """Encode an undo as a JSON object for the journal."""
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


def essential(undos: Sequence[Undo]) -> list[Undo]:
    """Undos without the commands inside namespaces that other undos delete: the kernel deletes the contents together with the namespace."""
    deleted = {undo.name for undo in undos if isinstance(undo, DeleteNamespace)}
    return [undo for undo in undos if not (isinstance(undo, Run) and _namespace(undo.argv) in deleted)]


def _namespace(argv: Sequence[str]) -> str | None:
    """Namespace to which the effect of a command is limited, if the command names one."""
    if argv[:3] == ("ip", "netns", "exec"):
        return argv[3]
    return argv[2] if argv[:2] == ("ip", "-n") else None
