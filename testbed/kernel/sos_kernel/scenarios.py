"""The list of selected tests, `scenarios.txt`. Pure.

A line `[name]` begins a group, whose tests run in one pytest process and share its labs. Every other line is a test below
testbed/tests/scenarios; `#` begins a comment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sos_kernel.debian import KernelError

SEEDED = "seeded_fault.py"
LAB = 3
"""Tests that take as long as the construction of a group's lab."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tests of one pytest process."""

    name: str
    tests: tuple[str, ...]


def parse(text: str) -> tuple[Group, ...]:
    """Groups in order; KernelError for a test before the first group, a test listed twice, or a group without tests."""
    found: dict[str, list[str]] = {}
    name = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if line.startswith("["):
            name = line.strip("[] ")
            found.setdefault(name, [])
        elif line:
            if not name or any(line in tests for tests in found.values()):
                raise KernelError(f"scenarios.txt:{number}: {line} is {'outside a group' if not name else 'listed twice'}")
            found[name].append(line)
    if empty := [name for name, tests in found.items() if not tests]:
        raise KernelError(f"scenarios.txt: group {empty[0]!r} has no tests")
    return tuple(Group(name=name, tests=tuple(tests)) for name, tests in found.items())


def select(groups: Sequence[Group], words: Sequence[str]) -> tuple[Group, ...]:
    """Tests whose group or id contains one of the words; all tests without words. KernelError if none is left."""
    chosen = []
    for group in groups:
        tests = tuple(test for test in group.tests if not words or any(word in test or word in group.name for word in words))
        if tests:
            chosen.append(Group(name=group.name, tests=tests))
    if not chosen:
        raise KernelError(f"no scenario matches {' or '.join(words)}; groups: {', '.join(group.name for group in groups)}")
    return tuple(chosen)


def lanes(groups: Sequence[Group], count: int) -> list[list[Group]]:
    """Divide groups into at most `count` lists that take about as long, the longest group first. A lab takes as long as some tests."""
    found: list[list[Group]] = [[] for _ in range(min(count, len(groups)))]

    def weight(lane: Sequence[Group]) -> int:
        return sum(len(group.tests) + LAB for group in lane)

    for group in sorted(groups, key=lambda group: -len(group.tests)):
        min(found, key=weight).append(group)
    return found


def arguments(group: Group, folder: str, report: str) -> list[str]:
    """Arguments of pytest for a group of tests below `folder`."""
    tests = [f"{folder}/{test}" for test in group.tests]
    return ["-vv", "--color=no", "--one-lab", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", f"--junitxml={report}", *tests]
