"""Files of the repository, and keys of labels and annotations, in the words of a command."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from shell_blocks.shell import is_placeholder

KEY = re.compile(r"(?:[a-z-]+\.)?sos\.network/([A-Za-z-]+)")
KINDS = re.compile(r"^v1(?:alpha|beta)?\d*$")


def missing(words: Iterable[str], files: Collection[str]) -> Iterator[str]:
    """Report words that name a file below a top folder of the repository, which has no such file. Build results (target) need not exist.

    `files` are the repository's paths. Variables in a path stand for any text.
    """
    tops = {name.split("/")[0] for name in files if "/" in name}
    for word in words:
        for part in re.split(r"[=,]", word):
            path = part.removeprefix("./").rstrip("/")
            if path.split("/")[0] in tops and "/" in path and "/target/" not in path and not has(path, files):
                yield f"{path}: there is no such file in the repository"


def has(path: str, files: Collection[str]) -> bool:
    """True for the path of a file or folder."""
    plain = re.sub(r"\$\{[^}]*\}|\$\w+|\*|[A-Z]{2,}", "\0", path)
    pattern = re.compile(re.escape(plain).replace("\\\0", "[^/]*").replace("\0", "[^/]*") + r"(?:/.*)?")
    return any(pattern.fullmatch(name) for name in files)


def unknown_keys(words: Iterable[str], keys: Collection[str]) -> Iterator[str]:
    """Report keys of labels and annotations in the domain sos.network that no code uses."""
    for word in words:
        for found in KEY.finditer(word):
            name = found[1]
            if not is_placeholder(name) and not KINDS.match(name) and found[0] not in keys:
                yield f"{found[0]}: no code uses such a label or annotation"
