"""controller-config documents made from bytes: whole texts, or a valid document with values replaced at random places."""

from __future__ import annotations

import copy
import itertools
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
from sos_controller.core.engine import Engine
from sos_controller.core.events import ConfigChanged
from sos_controller.core.state import Identity
from sos_controller.files import config

VECTORS = Path(__file__).resolve().parents[2] / "spec" / "vectors" / "config"
TEXTS = [path.read_bytes() for path in sorted((VECTORS / "controller").glob("*.json"))]
SCHEMA = jsonschema.Draft202012Validator(json.loads((VECTORS.parents[1] / "controller-config.schema.json").read_text()))
SCHEMA_EACH = 8
"""Validate one in eight accepted documents against the schema: validation takes many times as long as parsing."""
MAX_CHANGES = 4
STOP = 192
MAX_ITEMS = 64
"""Length from which a list is no longer lengthened with copies of its elements."""
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 65535, 65536, 2**31, 2**63, 2**64, 10**40, 100, 101),
    *("", "x", "x" * 300, "\ud800", "\x00", "é", "east", "west", "Controller", "OpenFlow", "Proactive", "Observe"),
    *("10.0.0.1", "10.0.0.0/8", "10.0.0.1/8", "0.0.0.0/0", "::1", "10.0.0.0", "10.0.0.0/255.0.0.0"),
    *("+1:02:03:04:05:06", " 1:02:03:04:05:06", "02:53:4f:53:00:01"),
    *("0001000000000001", "0001000000000001\n", "000100000000000G", "ffffffffffffffff", "0" * 32),
    *([], {}, [[]], [None], ["10.0.0.0/24"] * 3, {"a": 1}, [{}]),
)


def document(data: bytes) -> None:
    """Check that a document is refused with an error message or accepted. An accepted document conforms to the schema, can be put in
    force, and parses to the same value after it is serialized again.
    """
    if not data:
        return
    text = data[1:] if data[0] % 4 == 0 else _made(data[1:])
    try:
        taken = config.parse(text)
    except config.ConfigError as error:
        assert error.message and str(error).encode(errors="strict")
        return
    again = json.loads(text)
    if zlib.crc32(text) % SCHEMA_EACH == 0:
        SCHEMA.validate(again)
    assert config.parse(json.dumps(again, sort_keys=True).encode()) == taken
    engine = Engine(Identity(1, 1, 1, b"key"))
    engine.handle(ConfigChanged(taken), 1.0)
    assert engine.state.config is taken


def _made(data: bytes) -> bytes:
    """Return a valid document with changes and a correct hash. The first byte of a change selects its kind, the other bytes its place."""
    made, said = json.loads(TEXTS[len(data) % len(TEXTS)]), iter(data)
    for how in itertools.islice(said, MAX_CHANGES):
        place = _place(made, said)
        if place is not None:
            _change(*place, how)
    try:
        made["hash"] = config.document_hash(made)
    except UnicodeEncodeError:
        made["hash"] = "sha256:" + "0" * 64
    return json.dumps(made).encode()


def _place(holder: Any, way: Iterator[int]) -> tuple[Any, Any] | None:
    """Return a container and a key in it. Each byte selects a child, until the child is no container or the byte is STOP or more."""
    while holder:
        byte = next(way, 0)
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = keys[byte % len(keys)]
        if byte >= STOP or not isinstance(holder[key], dict | list):
            return holder, key
        holder = holder[key]
    return None


def _change(holder: Any, key: Any, how: int) -> None:
    if how < len(VALUES):
        holder[key] = copy.deepcopy(VALUES[how])
    elif how < 200 and isinstance(holder, list):
        holder.insert(0, copy.deepcopy(holder[key]))
    elif how < 220:
        del holder[key]
    elif isinstance(holder, dict):
        holder[f"another{how}"] = 1
    elif len(holder) < MAX_ITEMS:
        holder.extend(copy.deepcopy(holder) * (how - 219))
