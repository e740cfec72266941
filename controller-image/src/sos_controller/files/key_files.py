"""The key folder and the token files, read again each second (spec/README.md 4)."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MAX_FILES = 65_536
_NAME = re.compile(r"site-(\d{1,5})-(\d{1,5})")
_ID = re.compile(r"\d{1,5}")
SENDING_FILE = "sending"
ALSO = "-also"
_HEX = re.compile(r"[0-9a-f]{64}")


class Folder(NamedTuple):
    """Contents of a key folder."""

    sites: dict[int, dict[int, bytes]]
    """Site keys by site id and key id."""
    sending: int | None
    """Id of the signing key, if it is not the highest id."""


def read_keys(folder: Path) -> Folder:
    """Return the keys of a folder; files with other names are ignored.

    Raise ValueError with the file's name if a key file does not contain 64 hex digits or has an invalid id, OSError if the folder cannot be
    read.
    """
    found: dict[int, dict[int, bytes]] = {}
    sending = None
    for path in sorted(folder.iterdir())[:MAX_FILES]:
        if path.name == SENDING_FILE:
            sending = _read_id(path)
        name = _NAME.fullmatch(path.name)
        if name is None:
            continue
        site, key_id = int(name[1]), int(name[2])
        text = path.read_text(encoding="ascii", errors="replace").strip().lower()
        if not 1 <= site <= 0xFFFF or not 1 <= key_id <= 0xFFFF:
            raise ValueError(f"{path.name}: ids are 1 to 65535")
        if _HEX.fullmatch(text) is None:
            raise ValueError(f"{path.name}: not 64 hex digits")
        found.setdefault(site, {})[key_id] = bytes.fromhex(text)
    return Folder(found, sending)


def _read_id(path: Path) -> int:
    text = path.read_text(encoding="ascii", errors="replace").strip()
    if _ID.fullmatch(text) is None or not 1 <= int(text) <= 0xFFFF:
        raise ValueError(f"{path.name}: not a key id, 1 to 65535")
    return int(text)


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """Return the bearer tokens, without surrounding white space: the file's token and, while it is being replaced, the token of
    `<file>-also`.

    Raise ValueError if a token is empty, OSError if the first file cannot be read.
    """
    tokens = [_read_token(path)]
    with suppress(FileNotFoundError):
        tokens.append(_read_token(path.with_name(path.name + ALSO)))
    return tuple(tokens)


def _read_token(path: Path) -> bytes:
    token = path.read_bytes()[:4096].strip()
    if not token:
        raise ValueError(f"{path}: the token is empty")
    return token
