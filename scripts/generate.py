"""Write files and tables generated from other files of this repository. `--check` writes nothing and fails if any is stale.

charts/sos/files/crds/      copies of crds/, because a chart cannot contain files from outside its folder
charts/sos/README.md        tables of values, from the comments of values.yaml
docs/api-reference.md       from crds/
docs/operations.md          tables of metrics (spec/metrics) and alerts (charts/sos)
docs/performance.md         tables of measured figures (docs/figures, by scripts/figures.py)
docs/sizing.md              tables of measured figures, and the requests of values.yaml
docs/upgrading.md           entries of CHANGELOG.md that an upgrade has to take into account
docs/support.md             tables of what ran with which versions (docs/figures/support.json, by scripts/support.py)

In a page, the text between `<!-- generated: NAME -->` and `<!-- end -->` is generated; the rest is edited by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))  # not on the path with PYTHONSAFEPATH

import figures
import support

TOP = Path(__file__).resolve().parents[1]
CHART = TOP / "charts" / "sos"
KEY = re.compile(r"^( *)([A-Za-z]\w*):")
Json = dict[str, Any]


class Undocumented(Exception):  # noqa: N818 - the name describes the error
    """A key has no description, or a page has no generated part."""


def cell(text: object) -> str:
    """Text for a table cell, with pipes escaped."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Format a Markdown table."""
    lines = [head, tuple("---" for _ in head), *(tuple(cell(each) for each in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# --- values of the chart ------------------------------------------------------------------------------------------------


def commented(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every key of a values file with the comment above it, or an empty string."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        found = KEY.match(line)
        if line.lstrip().startswith("#"):
            comment.append(line.lstrip().removeprefix("#").strip())
        elif found:
            depth = len(found[1])
            path = [*((d, name) for d, name in path if d < depth), (depth, found[2])]
            yield tuple(name for _, name in path), " ".join(comment)
            comment = []
        else:
            comment = []


def value_tables(text: str) -> str:
    """Tables of values by group. Raise Undocumented for a key if neither the key nor its group has a comment."""
    values = yaml.safe_load(text)
    comments = dict(commented(text))
    described = [path for path, comment in comments.items() if comment]
    rows_of: dict[str, list[tuple[str, ...]]] = {}
    for path, words in comments.items():
        below = [other for other in described if len(other) > len(path) and other[: len(path)] == path]
        if below or (not words and any(path[:n] in described and n > 1 for n in range(len(path)))):
            continue
        if not words:
            raise Undocumented(f"charts/sos/values.yaml: {'.'.join(path)} has no comment above it")
        value: Any = values
        for name in path:
            value = value[name]
        rows_of.setdefault(path[0], []).append((f"`{'.'.join(path)}`", f"`{json.dumps(value, ensure_ascii=False)}`", words))
    parts = [f"\n**{group}**: {comments[group,]}\n\n{table(('key', 'default', 'meaning'), rows)}" for group, rows in rows_of.items()]
    return "".join(parts)


def request_table(values: Json) -> str:
    """Table of the requests and limits of each container, by default."""
    parts = {"operator": values["operator"]["resources"], **values["dataPlane"]["resources"]}
    rows = []
    for name, part in parts.items():
        requests, limits = part["requests"], part.get("limits", {})
        rows.append((f"`{name}`", requests["cpu"], requests["memory"], limits.get("memory", "none")))
    return "\n" + table(("container", "CPU request", "memory request", "memory limit"), rows)


# --- the API ------------------------------------------------------------------------------------------------------------


def type_of(schema: Json) -> str:
    """Describe a field's type in words."""
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if schema.get("type") == "array":
        return f"list of {type_of(schema['items'])}"
    if schema.get("type") == "object" and "additionalProperties" in schema:
        return f"map of {type_of(schema['additionalProperties'])}" if isinstance(schema["additionalProperties"], dict) else "map"
    return str(schema.get("type", "any"))


def limits_of(schema: Json) -> str:
    """Describe a schema's limits in words."""
    words = {
        "minimum": "at least {}", "maximum": "at most {}", "minLength": "at least {} characters", "maxLength": "at most {} characters",
        "minItems": "at least {} items", "maxItems": "at most {} items", "format": "format {}", "pattern": "`{}`",
    }  # fmt: skip
    return ", ".join(text.format(schema[key]) for key, text in words.items() if key in schema)


def rules_of(schema: Json) -> list[str]:
    """Messages of the rules that the API server checks beyond types."""
    return [rule["message"] for rule in schema.get("x-kubernetes-validations", []) if "message" in rule]


def fields(schema: Json, path: str, required: bool) -> Iterator[tuple[str, ...]]:
    """A field and all fields below it, each with type, default, meaning and limits."""
    if path:
        default = f"`{json.dumps(schema['default'])}`" if "default" in schema else "**required**" if required else ""
        rules = "; ".join(rules_of(schema) + rules_of(schema.get("items", {})))
        meaning = " ".join(filter(None, (schema.get("description", ""), f"({limits_of(schema)})" if limits_of(schema) else "")))
        yield f"`{path}`", type_of(schema), default, f"{meaning} *{rules}.*" if rules else meaning
    inner = schema.get("items", schema) if schema.get("type") == "array" else schema
    prefix = f"{path}[]" if schema.get("type") == "array" else path
    for name, below in inner.get("properties", {}).items():
        yield from fields(below, f"{prefix}.{name}".lstrip("."), name in inner.get("required", []))


def kind_section(crd: Json) -> str:
    """Section of one kind."""
    spec = crd["spec"]
    (version,) = spec["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    short = ", ".join(f"`{name}`" for name in spec["names"].get("shortNames", []))
    text = f"\n## {spec['names']['kind']}\n\n{schema.get('description', '')}\n\n"
    text += f"{spec['scope']}; `{spec['names']['plural']}`{', ' + short if short else ''}; `{spec['group']}/{version['name']}`.\n"
    for part in ("spec", "status"):
        below = schema["properties"].get(part)
        if below is None:
            continue
        rows = list(fields(below, "", False))
        text += f"\n### {spec['names']['kind']} {part}\n\n{below.get('description', '')}\n\n".replace("\n\n\n", "\n")
        text += "".join(f"- {rule}\n" for rule in rules_of(below)) + ("\n" if rules_of(below) else "")
        text += table(("field", "type", "default", "meaning"), rows)
    return text


def api_reference() -> str:
    """Page of the API reference."""
    crds = [yaml.safe_load(path.read_text()) for path in sorted((TOP / "crds").glob("*.yaml"))]
    head = "# API reference\n\nGenerated from `crds/` by `scripts/generate.py`; `kubectl explain` prints the same texts.\n"
    head += "The API server fills in the defaults and checks the rules in italics.\n\n"
    names = [crd["spec"]["names"]["kind"] for crd in crds]
    return head + "".join(f"- [{name}](#{name.lower()})\n" for name in names) + "".join(kind_section(crd) for crd in crds)


# --- operations ---------------------------------------------------------------------------------------------------------


def metric_tables() -> str:
    """Tables of all metrics, by program."""
    text = ""
    for program in ("operator", "controller", "agent", "node"):
        lines = (TOP / "spec" / "metrics" / f"{program}.tsv").read_text().splitlines()
        rows = [(f"`{name}`", kind, labels.replace(",", ", "), words) for name, kind, labels, words in (line.split("\t") for line in lines)]
        text += f"\n### Metrics of the {program}\n\n{table(('name', 'type', 'labels', 'meaning'), rows)}"
    return text


def alert_table() -> str:
    """Table of the chart's alerts."""
    groups = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    rows = [
        (f"`{r['alert']}`", r["labels"]["severity"], f"`{r['expr']}`", r.get("for", ""), r["annotations"]["description"]) for r in rules
    ]
    return "\n" + table(("alert", "severity", "when", "for", "what it means"), rows)


# --- upgrading ----------------------------------------------------------------------------------------------------------

ACTION = re.compile(r"\*\*Breaking\*\*|\bUpgrade (?:the pods of )?[`\w-]+ |\bReplace the pods\b")
"""Words of an entry of the changelog that an upgrade has to take into account."""


def upgrade_notes(changelog: str) -> str:
    """Entries of the changelog that matter for an upgrade, by release, newest first; links are relative to docs/."""
    found = []
    for section in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        entries = re.findall(r"^- .*\n(?:  .*\n)*", text, re.MULTILINE)
        found.append(f"\n### {title.strip()}\n\n" + ("".join(filter(ACTION.search, entries)) or "Nothing.\n"))
    return "".join(found).replace("](docs/", "](").replace("](CONTRIBUTING.md", "](../CONTRIBUTING.md")


# --- files --------------------------------------------------------------------------------------------------------------


def filled(page: Path, **parts: str) -> str:
    """Replace the generated parts of a page. Raise Undocumented if the page lacks the markers of a part."""
    text = page.read_text()
    for name, content in parts.items():
        before, mark, rest = text.partition(f"<!-- generated: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not mark or not end:
            raise Undocumented(f"{page.relative_to(TOP)}: no <!-- generated: {name} --> ... <!-- end -->")
        text = f"{before}{mark}{content}\n{end}{after}"
    return text


def wanted() -> dict[Path, str]:
    """Every generated file with its up-to-date content."""
    found = {CHART / "files" / "crds" / path.name: path.read_text() for path in sorted((TOP / "crds").glob("*.yaml"))}
    found[CHART / "README.md"] = filled(CHART / "README.md", values=value_tables((CHART / "values.yaml").read_text()))
    found[TOP / "docs" / "api-reference.md"] = api_reference()
    found[TOP / "docs" / "operations.md"] = filled(TOP / "docs" / "operations.md", metrics=metric_tables(), alerts=alert_table())
    found[TOP / "docs" / "performance.md"] = filled(TOP / "docs" / "performance.md", **figures.parts(), **figures.summaries())
    requests = request_table(yaml.safe_load((CHART / "values.yaml").read_text()))
    found[TOP / "docs" / "sizing.md"] = filled(TOP / "docs" / "sizing.md", requests=requests, **figures.sizing())
    found[TOP / "docs" / "support.md"] = filled(TOP / "docs" / "support.md", **support.tables(support.read(support.FILE)))
    notes = upgrade_notes((TOP / "CHANGELOG.md").read_text())
    found[TOP / "docs" / "upgrading.md"] = filled(TOP / "docs" / "upgrading.md", notes=notes)
    return found


def surplus(files: dict[Path, str]) -> list[Path]:
    """Copies of CRDs whose source no longer exists."""
    return [path for path in (CHART / "files" / "crds").glob("*") if path not in files]


def main() -> int:
    """Write or check; exit status 0 = done or fresh, 1 = stale, 2 = Undocumented."""
    parser = argparse.ArgumentParser(description="Write what is generated from other files of the repository.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if anything is stale")
    check = parser.parse_args().check
    try:
        files = wanted()
    except Undocumented as error:
        print(f"generate: {error}")
        return 2
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in (*stale, *surplus(files)):
        print(f"generate: {path.relative_to(TOP)} {'is stale: run scripts/generate.py' if check else 'written'}")
        if not check:
            path.write_text(files[path]) if path in files else path.unlink()
    return 1 if check and (stale or surplus(files)) else 0


if __name__ == "__main__":
    sys.exit(main())
