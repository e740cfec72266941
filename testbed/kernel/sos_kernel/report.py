"""Verdict about a run, from the JUnit reports of the guest. Pure.

A run passes only if every selected group has a report, every test passed, none was skipped, and a test has recorded that packets were
forwarded by the kernel's datapath.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DATAPATH = "datapath"
"""Name of the property by which a test records the datapath that forwarded its packets (test_testbed_datapath.py)."""
KERNEL_DATAPATH = "system@"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one test. `message`: first line of its failure, or "" if it passed."""

    test: str
    seconds: float
    message: str = ""
    datapath: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Results of all groups, and the reasons why the run failed although no test did."""

    outcomes: tuple[Outcome, ...]
    problems: tuple[str, ...]

    @property
    def failed(self) -> int:
        """Number of failed tests and problems."""
        return sum(bool(each.message) for each in self.outcomes) + len(self.problems)

    @property
    def passed(self) -> int:
        """Number of passed tests."""
        return sum(not each.message for each in self.outcomes)

    @property
    def datapath(self) -> str:
        """Datapath that a test has recorded, or ""."""
        return next((each.datapath for each in self.outcomes if each.datapath), "")


def parse(xml: str) -> tuple[Outcome, ...]:
    """Results of one group, from its JUnit report. A skipped test counts as failed."""
    return tuple(_outcome(case) for case in ET.fromstring(xml).iter("testcase"))  # noqa: S314 - written by pytest in our own machine


def _outcome(case: ET.Element) -> Outcome:
    module = case.get("classname", "").rpartition("scenarios.")[2].replace(".", "/")
    told = [each for kind in ("failure", "error", "skipped") for each in case.iter(kind)]
    texts = [(each.get("message") or each.text or "no reason").strip().splitlines() for each in told]
    found = {each.get("name"): each.get("value", "") for each in case.iter("property")}
    return Outcome(
        test=f"{module}.py::{case.get('name', '')}",
        seconds=float(case.get("time", "0")),
        message=(texts[0] or ["no reason"])[0] if texts else "",
        datapath=found.get(DATAPATH) or "",
    )


def judge(reports: Mapping[str, str | None], *, recorded: bool, ended: str = "") -> Verdict:
    """Verdict from the report of each group; None for a group without one.

    `recorded`: a selected test records the datapath. `ended`: reason why the machine did not run to its end, or "".
    """
    outcomes = tuple(outcome for xml in reports.values() if xml for outcome in parse(xml))
    problems = [ended] if ended else []
    problems += [f"no result of the group {name!r}" for name, xml in reports.items() if not xml]
    problems += [f"no test of the group {name!r} ran" for name, xml in reports.items() if xml and not parse(xml)]
    told = next((each.datapath for each in outcomes if each.datapath), "")
    if recorded and not told.startswith(KERNEL_DATAPATH):
        problems.append(f"packets were not forwarded by the kernel's datapath, but by {told or 'none that a test has recorded'}")
    return Verdict(outcomes=outcomes, problems=tuple(problems))


def lines(verdict: Verdict, facts: Mapping[str, str], versions: Mapping[str, str]) -> list[str]:
    """Text of a run: its facts, a table of its tests, its problems, versions for scripts/support.py, and the counts in the last line."""
    text = [f"{name:<14}{value}" for name, value in {**facts, DATAPATH: verdict.datapath or "not recorded"}.items()]
    text += _table(verdict.outcomes)
    text += [f"FAILED: {problem}" for problem in verdict.problems]
    recorded = {DATAPATH: verdict.datapath} if verdict.datapath else {}
    text += [f"support: {name}={value}" for name, value in {**versions, **recorded}.items()]
    return [*text, f"{verdict.passed} passed, {verdict.failed} failed"]


def _table(outcomes: Sequence[Outcome]) -> list[str]:
    width = max((len(each.test) for each in outcomes), default=0)
    text = [f"{'scenario':<{width}}  result   seconds"]
    for each in outcomes:
        text.append(f"{each.test:<{width}}  {'FAILED' if each.message else 'passed':<8}{each.seconds:>8.1f}")
        text += [f"    {each.message[:200]}"] if each.message else []
    return text
