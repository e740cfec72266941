"""Checks that every link between the pages of this repository leads to a file, and to a heading where it names one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?) *#*$", re.MULTILINE)
CODE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The names of a page's headings, as the hosting platforms make them."""
    words = (re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower() for heading in HEADING.findall(text))
    return {each.replace(" ", "-") for each in words}


def wrong(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for target in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            found.append(f"{page.relative_to(TOP)}: {target}: there is no such file")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()):
            found.append(f"{page.relative_to(TOP)}: {target}: there is no such heading")
    return found


def main() -> int:
    """0 = every link leads somewhere, 1 = some do not."""
    listed = subprocess.run(
        ("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"), cwd=TOP, capture_output=True, text=True, check=True
    )
    problems = [problem for name in listed.stdout.split() for problem in wrong(TOP / name)]
    print("".join(f"links: {problem}\n" for problem in problems), end="")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
