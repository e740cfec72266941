"""Record what ran with which versions, and convert the records to the tables of docs/support.md.

    python scripts/support.py --record --area kubernetes --what "short end-to-end suite" \\
        --version kubernetes=v1.33.4 --version "network plugin=kindnet" -- make e2e SUITE=short

runs the command, adds a row to docs/figures/support.json, and rewrites docs/support.md. The result is `passed` for exit status 0, else
`failed`; the detail is the last line of output that counts tests. A row replaces the row of the same area, subject and versions. Sources
must be committed; for a run in another clone, `--file` names this repository's support.json, and `generate.py` then rewrites the page.

Versions: `kernel` and `architecture` are those of this machine unless given. A command can report further versions itself by lines
`support: NAME=VALUE` in its output, for example `support: kubernetes=v1.33.4` from a suite that creates its cluster, or
`support: kernel=6.1.0-28-amd64` from a virtual machine. Each area has columns for some versions; other versions are in the column *others*.

To add a Kubernetes version or a kernel, run the suite by this command, and commit support.json with the page. To add an area, see AREAS.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
FILE = TOP / "docs" / "figures" / "support.json"
GENERATED = ("docs/figures/support.json", "docs/support.md")
"""Files that a record changes; changes of all other files must be committed before a run is recorded."""
AREAS = {
    "kubernetes": ("kubernetes", "network plugin", "multus", "ovs-cni", "helm", "kernel", "architecture"),
    "kernel": ("kernel", "open vswitch", "datapath", "architecture"),
    "platform": ("distribution", "architecture", "python"),
    "benchmark": ("kernel", "architecture"),
}
"""Areas, each with the versions that have a column in its table."""
OTHERS = "others"
LINES = 2_000
"""Last lines of output that are searched for the count of tests."""
COUNT = re.compile(r"\d+ (?:passed|failed|tests? )")
REPORTED = re.compile(r"support: ([a-z][a-z -]*)=(\S.*)")


class NotRecorded(Exception):  # noqa: N818 - the name describes the error
    """A run cannot be recorded."""


@dataclass(frozen=True)
class Row:
    """One run."""

    area: str
    what: str
    command: str
    date: str
    """Day of the run, as YYYY-MM-DD."""
    commit: str
    result: str
    """`passed` or `failed`."""
    versions: dict[str, str] = field(default_factory=dict)
    detail: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """Identity of a row: a later run with the same identity replaces it."""
        return (self.area, self.what, *(f"{name}={value}" for name, value in sorted(self.versions.items())))


# --- tables: pure --------------------------------------------------------------------------------------------------------------


def tables(rows: Iterable[Row]) -> dict[str, str]:
    """Tables of the page, one for each area."""
    listed = sorted(rows, key=lambda row: row.key)
    return {f"support_{area}": table(columns, [row for row in listed if row.area == area]) for area, columns in AREAS.items()}


def table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Table of one area. Columns of versions that no row has are left out."""
    if not rows:
        return "\nNothing has been recorded.\n"
    used = [name for name in columns if any(name in row.versions for row in rows)]
    others = any(set(row.versions) - set(columns) for row in rows)
    head = ["", *used, *([OTHERS] if others else []), "result", "command", "date", "commit"]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        versions = [row.versions.get(name, "") for name in used]
        rest = ", ".join(f"{name} {value}" for name, value in sorted(row.versions.items()) if name not in columns)
        result = f"{row.result}: {row.detail}" if row.detail else row.result
        lines.append([row.what, *versions, *([rest] if others else []), result, f"`{row.command}`", row.date, row.commit])
    escaped = ([each.replace("|", "\\|") for each in line] for line in lines)
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def merged(rows: Iterable[Row], new: Row) -> list[Row]:
    """Rows with a new one in place of the row with the same identity."""
    return sorted([*(row for row in rows if row.key != new.key), new], key=lambda row: row.key)


def count_of(lines: Iterable[str]) -> str:
    """The last line that counts tests, without decoration; "" if there is none."""
    found = [line for line in lines if COUNT.search(line)]
    return re.sub(r" in [\d.]+s.*$", "", found[-1].strip(" =\n")) if found else ""


def reported(lines: Iterable[str]) -> dict[str, str]:
    """Versions that a command has reported."""
    return {match[1]: match[2] for line in lines if (match := REPORTED.fullmatch(line.strip()))}


# --- files and programs --------------------------------------------------------------------------------------------------------


def read(file: Path) -> list[Row]:
    """Read the records. Raise NotRecorded for an area that is not in AREAS."""
    rows = [Row(**each) for each in json.loads(file.read_text(encoding="utf-8"))["rows"]] if file.exists() else []
    if wrong := sorted({row.area for row in rows} - set(AREAS)):
        raise NotRecorded(f"{file.name}: unknown area {', '.join(wrong)} (areas: {', '.join(AREAS)})")
    return rows


def write(file: Path, rows: Iterable[Row]) -> None:
    """Write the records."""
    file.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def commit_of(top: Path) -> str:
    """Commit of the sources. Raise NotRecorded if they have changes that are not committed."""
    changed = _git(top, "status", "--porcelain", "--untracked-files=no").splitlines()
    if others := [line[3:] for line in changed if line[3:] not in GENERATED]:
        raise NotRecorded(f"commit the sources first, or run in a clone: {', '.join(others[:3])}{' ...' if others[3:] else ''}")
    return _git(top, "rev-parse", "--short=12", "HEAD").strip()


def _git(top: Path, *arguments: str) -> str:
    return subprocess.run(("git", "-C", str(top), *arguments), capture_output=True, text=True, check=True).stdout


def run(argv: Sequence[str]) -> tuple[int, list[str], dict[str, str]]:
    """Run a command, and show its output meanwhile. Return its exit status, its last lines, and the versions that it has reported."""
    last: deque[str] = deque(maxlen=LINES)
    versions: dict[str, str] = {}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last.append(line)
            versions.update(reported([line]))
    return process.returncode, list(last), versions


def record(area: str, what: str, argv: Sequence[str], given: Mapping[str, str], top: Path = TOP) -> Row:
    """Run a command, and return the row for it. Raise NotRecorded if the sources have changes that are not committed."""
    if area not in AREAS:
        raise NotRecorded(f"unknown area {area} (areas: {', '.join(AREAS)})")
    commit, date = commit_of(top), datetime.now(UTC).date().isoformat()
    status, lines, versions = run(argv)
    machine = {"kernel": platform.release(), "architecture": platform.machine()}
    found = dict(sorted({**machine, **versions, **given}.items()))
    return Row(area, what, shlex.join(argv), date, commit, "failed" if status else "passed", found, count_of(lines))


def main() -> int:
    """Record a run; the exit status is 1 if the run failed or cannot be recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", required=True, help="run COMMAND and add a row")
    parser.add_argument("--area", required=True, choices=AREAS, help="the table of the row")
    parser.add_argument("--what", required=True, help="subject of the row, in a user's words")
    parser.add_argument(
        "--version", action="append", default=[], metavar="NAME=VALUE", help="a version that COMMAND does not report; repeat"
    )
    parser.add_argument("--file", type=Path, default=FILE, help="the records (docs/figures/support.json)")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="the command that runs, behind --")
    given = parser.parse_args()
    if wrong := [text for text in given.version if not re.fullmatch(r"[a-z][a-z -]*=.+", text)]:
        parser.error(f"--version {wrong[0]}: write NAME=VALUE, with a name of lower-case letters")
    try:
        row = record(given.area, given.what, given.command, dict(text.split("=", 1) for text in given.version))
        write(given.file, merged(read(given.file), row))
    except (NotRecorded, OSError, subprocess.CalledProcessError) as error:
        print(f"support: {error}", file=sys.stderr)
        return 1
    print(f"support: recorded in {given.file}: {row.what}: {row.result}")
    written = subprocess.run([sys.executable, str(TOP / "scripts" / "generate.py")], check=False).returncode
    return 1 if row.result == "failed" else written


if __name__ == "__main__":
    sys.exit(main())
