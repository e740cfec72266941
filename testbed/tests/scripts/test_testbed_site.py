"""Pages of the documentation site: `make docs` builds it, which takes minutes, so a link or a page that would fail there fails here."""

import re
import runpy
import subprocess
from pathlib import Path

from testbed_scripts import ROOT

SITE = runpy.run_path(str(ROOT / "docs" / "site" / "conf.py"))


def matches(page: str, patterns: list[str]) -> bool:
    """True if one of Sphinx's patterns matches a page: `**` also matches slashes."""
    shapes = (re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^/]*") for pattern in patterns)
    return any(re.fullmatch(re.sub(r"\\\[(.*?)\\\]", lambda found: f"[{found[1]}]".replace("\\", ""), shape), page) for shape in shapes)


def pages() -> list[str]:
    """Paths of the site's pages."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [page for page in listed if matches(page, SITE["include_patterns"]) and not matches(page, SITE["exclude_patterns"])]


def test_pages_link_to_pages_of_the_site() -> None:
    found = set(pages())
    assert len(found) > 100
    missing = []
    for page in sorted(found):
        for link in SITE["LINK"].finditer((ROOT / page).read_text(encoding="utf-8")):
            target = (ROOT / page).parent / link["target"]
            if "://" in link["target"] or not target.exists():  # scripts/links.py reports files that do not exist
                continue
            target = target.resolve() / "README.md" if target.is_dir() else target.resolve()
            name = str(Path(target).relative_to(ROOT))
            if target.suffix == ".md" and target.exists() and name not in found:
                missing.append(f"{page}: {name}")
    assert missing == []


def test_navigation_has_every_page() -> None:
    listed = [pattern for patterns in SITE["NAVIGATION"].values() for pattern in patterns]
    assert [page for page in pages() if page != "README.md" and not matches(page.removesuffix(".md"), listed)] == []
