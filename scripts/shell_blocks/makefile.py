"""Check of `make` against the targets and variables of the Makefile."""

from __future__ import annotations

import re
from collections.abc import Sequence

TARGET = re.compile(r"^([a-z0-9-]+):(?!=)", re.MULTILINE)
VARIABLE = re.compile(r"\$[({]([A-Z_]+)[),}]|\$\((?:or|if) \$\(([A-Z_]+)\)")
CHOICE = re.compile(r"^e2e_(\w+) :=|^\$\(foreach suite,([\w ]+),\$\(eval e2e_", re.MULTILINE)
FLAGS = ("-n", "-s", "-k", "-B")


def suites(makefile: str) -> set[str]:
    """Names that SUITE may have."""
    return {name for one, several in CHOICE.findall(makefile) for name in (one or several).split()}


def problems(words: Sequence[str], makefile: str) -> list[str]:
    """Report unknown targets and variables in the words after `make`."""
    targets = set(TARGET.findall(makefile))
    variables = {one or other for one, other in VARIABLE.findall(makefile)}
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name not in variables:
            found.append(f"make: the Makefile uses no variable {name}")
        elif name == "SUITE" and equals and re.fullmatch(r"[a-z]+", value) and value not in suites(makefile):
            found.append(f"make: there is no SUITE {value}")
        elif not equals and word not in targets and word not in FLAGS:
            found.append(f"make: there is no target {word}")
    return found
