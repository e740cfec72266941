"""Programs whose options are those that their own `--help` prints."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 60
OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


def problems(argv: Sequence[str], words: Sequence[str], top: Path) -> list[str]:
    """Options in `words` that the help of the program `argv` does not have."""
    status, text = help_of(tuple(argv), top)
    if status:
        return [f"{' '.join(argv)} --help fails: {text.strip().splitlines()[-1] if text.strip() else status}"]
    known = set(OPTION.findall(text)) | {"-h", "--help"}
    before = list(words)[: words.index("--")] if "--" in words else words
    given = [word.partition("=")[0] for word in before if OPTION.match(word)]
    return [f"{Path(argv[-1]).name} has no option {name}" for name in given if name not in known]


@functools.cache
def help_of(argv: tuple[str, ...], top: Path) -> tuple[int, str]:
    """Exit status and output of a program with `--help`."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "COLUMNS": "200"}
    done = subprocess.run((*argv, "--help"), cwd=top, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment)
    return done.returncode, done.stdout + done.stderr
