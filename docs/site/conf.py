"""Configuration of the documentation site (`make docs`): the repository's Markdown pages as they are, with navigation and search.

The source folder is the repository, so that links between pages and to files work both on the site and in a source browser. Every warning
fails the build, such as a link to a page, heading or file that does not exist.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]
REPOSITORY = os.environ.get("SOS_REPOSITORY", "")
"""Address of the repository's source browser, for links to folders without a page."""
LINK = re.compile(r"(?<!!)\[(?P<label>[^\]\n]*)\]\((?P<target>[^)#\s]+)\)")
NAVIGATION = {
    "Start": ["docs/quick-start", "docs/install", "docs/platforms", "docs/support", "docs/faq", "docs/quick-start-bridge"],
    "Concepts": ["docs/concepts/README", *(f"docs/concepts/{page}" for page in ("pods", "peers", "machines", "nodes", "fail-open"))],
    "More concepts": [*(f"docs/concepts/{page}" for page in ("measuring", "balance", "keys", "operator")), "docs/glossary"],
    "Operation": [
        *(f"docs/{page}" for page in ("operations", "upgrading", "sizing", "troubleshooting", "alerts", "plugin", "security")),
        "charts/sos/README",
    ],
    "Reference": ["docs/api-reference", "docs/performance", "CHANGELOG"],
    "Examples": ["examples/*/README"],
    "Internals": ["docs/architecture", "docs/finding-your-way", "spec/README", "spec/[a-qs-z]*", "docs/adr/README", "docs/adr/0*"],
    "Benchmarks and test networks": ["bench/*/README", "testbed/*/README", "controller-image/README"],
    "Project": ["CONTRIBUTING", "docs/style", "GOVERNANCE", "ROADMAP", "CODE_OF_CONDUCT", "SECURITY"],
}
"""Captions and pages of the navigation; a page that is in no list fails the build."""

project = "SOS"
project_copyright = "the SOS maintainers, Apache-2.0"
CHART = (TOP / "charts/sos/Chart.yaml").read_text(encoding="utf-8")
version = release = next(line.partition(": ")[2] for line in CHART.splitlines() if line.startswith("version: "))
extensions = ["myst_parser"]
root_doc = "README"
FOLDERS = ("charts/sos", "testbed/linkemu", "testbed/kernel", "controller-image")
include_patterns = [
    *("*.md", "docs/**.md", "spec/*.md", "examples/**.md", "bench/*/*.md"),
    *(f"{folder}/*.md" for folder in FOLDERS),
]
exclude_patterns = ["docs/site/**", "out/**"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"SOS {version}"
html_show_sphinx = False
html_copy_source = False
pygments_style = "friendly"


def add_navigation(_app: Any, name: str, text: list[str]) -> None:
    """Append the navigation to the first page."""
    if name == root_doc:
        for caption, pages in NAVIGATION.items():
            listed = "\n".join(pages)
            text[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n{listed}\n```\n"


def resolve_folders(_app: Any, name: str, text: list[str]) -> None:
    """Replace links to folders, which have no page of their own, by links to their README, or to the source browser if it is known."""
    here = (TOP / name).parent

    def resolved(found: re.Match[str]) -> str:
        label, target = found["label"], found["target"]
        folder = (here / target).resolve()
        if "://" in target or not folder.is_dir():
            return found[0]
        if (folder / "README.md").exists():
            return f"[{label}]({target.rstrip('/')}/README.md)"
        return f"[{label}]({REPOSITORY}/tree/HEAD/{folder.relative_to(TOP)})" if REPOSITORY else label

    text[0] = LINK.sub(resolved, text[0])


def setup(app: Any) -> None:
    """Entry point for Sphinx."""
    app.connect("source-read", resolve_folders)
    app.connect("source-read", add_navigation)
