"""Cache of one compilation's results for the next compilation. It affects the time taken, never the result.

A change to one service recompiles the whole cluster, with up to thousands of services; nearly all results stay the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sos_compile.model.formats.controller import ServiceEntry
from sos_compile.model.problem import Problem
from sos_compile.model.resources import Parsed
from sos_compile.model.world import Fault, Json, ObjectKey, Shadow

T = TypeVar("T")
LAID_OUT_BYTES = 16_384  # longer documents are read by programs only: without white space they take half the space and a tenth of the time


@dataclass
class Cache(Generic[T]):
    """Values of the last compilation, by their inputs.

    Values that a compilation does not use are dropped when the next compilation begins, so the cache holds at most the values of two
    consecutive compilations.
    """

    before: dict[Hashable, T] = field(default_factory=dict)
    now: dict[Hashable, T] = field(default_factory=dict)

    def begin(self) -> None:
        """Start a compilation."""
        self.before, self.now = self.now, {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key; compute it if the last compilation did not have it."""
        if key not in self.now:
            self.now[key] = self.before[key] if key in self.before else make()
        return self.now[key]


class ByIdentity:
    """A value as part of a key, compared by identity: parsed objects are kept between compilations, and comparing content is slow."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.value is other.value


@dataclass(frozen=True)
class Admission:
    """One object after admission: parsed if it has no problems."""

    key: ObjectKey
    parsed: Parsed | None
    problems: tuple[Problem, ...]
    fault: Fault | None = None


@dataclass
class Memo:
    """Caches that callers hand from one compilation to the next."""

    judged: Cache[Admission] = field(default_factory=Cache)
    documents: Cache[Json] = field(default_factory=Cache)
    parts: Cache[list[Json]] = field(default_factory=Cache)
    entries: Cache[ServiceEntry] = field(default_factory=Cache)
    texts: Cache[str] = field(default_factory=Cache)
    shadows: Cache[dict[ObjectKey, Shadow]] = field(default_factory=Cache)
    arming: Cache[tuple[int, list[int]]] = field(default_factory=Cache)
    faults: dict[ObjectKey, tuple[Hashable, Fault]] = field(default_factory=dict)
    """Objects that the last compilation left out, with their identity at that time."""

    def begin(self) -> None:
        """Start a compilation."""
        self.judged.begin()
        self.documents.begin()
        self.parts.begin()
        self.entries.begin()
        self.texts.begin()
        self.shadows.begin()
        self.arming.begin()

    def text(self, document: Json, *, laid_out: bool) -> str:
        """Return a document as a file's text; cached by its hash and generation."""
        key = (document["hash"], document["generation"], laid_out)
        return self.texts.get(key, lambda: encode(document, laid_out=laid_out))

    def part(self, hash_: str, content: Json) -> str:
        """Return a part of documents as a file's text; cached by its hash."""
        return self.texts.get(("part", hash_), lambda: encode(content, laid_out=False))


def encode(document: Json, *, laid_out: bool) -> str:
    """Return JSON text, indented if `laid_out` and the document is short enough for people to read."""
    text = json.dumps(document, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    if laid_out and len(text) <= LAID_OUT_BYTES:
        text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
    return text + "\n"


def identity(obj: Json) -> Hashable | None:
    """Return the uid, generation and labels, which identify an object's content; None for an object without them (from a file).

    The API server raises metadata.generation with every change of the spec, and a uid is never reused.
    """
    meta = obj.get("metadata")
    if not isinstance(meta, dict):
        return None
    uid, generation, labels = meta.get("uid"), meta.get("generation"), meta.get("labels") or {}
    if not uid or not isinstance(uid, str) or not generation or not isinstance(generation, int):
        return None
    if not isinstance(labels, dict) or not all(isinstance(text, str) for pair in labels.items() for text in pair):
        return None
    return (uid, generation, tuple(sorted(labels.items())))


@dataclass(frozen=True)
class Source:
    """A document to be written into a file."""

    document: Json
    memo: Memo
    all_parts: Mapping[str, Json] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, str]:
        """The texts of the document's parts, by hash."""
        return {part: self.memo.part(part, self.all_parts[part]) for part in self.document.get("include", ())}

    @property
    def hash(self) -> str:
        """The document's hash."""
        return str(self.document["hash"])

    def text(self, *, laid_out: bool) -> str:
        """The file's text."""
        return self.memo.text(self.document, laid_out=laid_out)
