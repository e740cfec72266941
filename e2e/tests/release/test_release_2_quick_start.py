"""All lines of docs/quick-start.md, `make quick-start` included, which runs the lines that install SOS."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sos_e2e import pages
from sos_e2e.reader import Reader, environment
from sos_e2e.run import run, say, wait_for
from sos_e2e.settings import ROOT

LINES_S = 1800
AT_LEAST = 2.0
"""Required multiple of plain TCP for 100 MB over 160 ms with 0.01 % loss. The time of plain TCP's first losses is random: it is three to
eight times slower."""


def left() -> set[str]:
    """Containers of the quick start, and namespaces of emulated links."""
    containers = run("docker", "ps", "-a", "--filter", "name=sos-e2e-try", "--format", "{{.Names}}").split()
    return {*containers, *re.findall(r"^sose2e-\w+", run("ip", "netns", "list"), re.MULTILINE)}


def test_lines_of_the_quick_start_show_the_gain_and_leave_nothing(built: dict[str, str], tmp_path: Path) -> None:
    before = left()
    base = {name: value for name, value in os.environ.items() if not name.startswith("SOS_E2E_")}
    reader = Reader(folder=ROOT, environment=environment(tmp_path, (), base))
    try:
        said = reader.run(pages.block("quick-start"), pages.block("quick-start-next"), timeout=LINES_S)
    finally:
        reader.run(pages.block("quick-start-end"), timeout=LINES_S)
    say(said)
    rates = {int(port): int(rate) for port, rate in re.findall(r"^port (\d+): (\d+) bytes/s$", said, re.MULTILINE)}
    say(f"quick start: plain {rates[8080] * 8 / 1e6:.1f} Mbit/s, with the service {rates[80] * 8 / 1e6:.1f} Mbit/s")
    assert rates[80] > AT_LEAST * rates[8080]
    wait_for("nothing left", lambda: left() <= before, 30)
