"""Pages of the documentation site: a link or a page that would fail `make docs` fails here."""

import runpy
from pathlib import Path

from testbed_scripts import ROOT

SITE = runpy.run_path(str(ROOT / "docs" / "site" / "conf.py"))


def files(patterns: list[str]) -> set[str]:
    """Files of Sphinx's patterns, whose `**` also matches a part of a name."""
    return {str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern.replace("**", "**/*"))}


def pages() -> set[str]:
    """Paths of the site's pages."""
    return files(SITE["include_patterns"]) - files(SITE["exclude_patterns"])


def test_pages_link_to_pages_of_the_site() -> None:
    found = pages()
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
    listed = [f"{pattern}.md" for patterns in SITE["NAVIGATION"].values() for pattern in patterns]
    assert pages() - files(listed) == {"README.md"}
