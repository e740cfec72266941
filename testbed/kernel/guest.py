"""Runs the groups of scenarios in the virtual machine, one pytest after the other.

The first process imports pytest, the testbed and all tests; each group runs in a copy of it, because on an emulated processor these imports
take longer than most tests. Arguments: one file for each group, with an argument of pytest in each line.
"""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

COLLECT = ("--collect-only", "-p", "no:cacheprovider")


def tests(arguments: list[str]) -> list[str]:
    """Tests among the arguments of a group."""
    return [argument for argument in arguments if ".py" in argument]


def apart(arguments: list[str]) -> int:
    """Run a group in a copy of this process; return its exit status."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = os.EX_SOFTWARE  # if pytest raises
        try:
            status = int(pytest.main(arguments))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(files: list[str]) -> int:
    """Import everything, then run the groups in the order of their files; 0 if all of them passed."""
    groups = [Path(file).read_text(encoding="utf-8").splitlines() for file in files]
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        pytest.main([*COLLECT, *(test for group in groups for test in tests(group))])
    statuses = [apart(group) for group in groups]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
