"""Every reason of a condition is documented in docs/troubleshooting.md or the API reference."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from operator_kube import ROOT
from sos_compile.model.problem import Reason

SOURCES = (ROOT / "operator" / "src" / "sos_operator", ROOT / "controller-image" / "src" / "sos_controller")
PAGES = [ROOT / "docs" / name for name in ("troubleshooting.md", "api-reference.md")]
CAMEL = re.compile(r"[A-Z][A-Za-z0-9]{2,62}")


def constants(node: ast.AST) -> Iterator[str]:
    """Strings that an expression can evaluate to, without strings in its conditions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and CAMEL.fullmatch(node.value):
        yield node.value
    if isinstance(node, ast.IfExp):
        yield from (*constants(node.body), *constants(node.orelse))
    if isinstance(node, ast.BoolOp):
        yield from (text for value in node.values for text in constants(value))


def name_of(node: ast.AST) -> str:
    return str(getattr(node, "id", ""))


def reasons(function: ast.FunctionDef) -> Iterator[str]:
    """Reasons in calls of Verdict and Expected, in assignments to `reason` beside a Verdict, and in results of `_reason`."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    verdicts = [call.args[2:3] for call in calls if name_of(call.func) == "Verdict"]
    given = [*verdicts, *(call.args[3:5] for call in calls if name_of(call.func) == "Expected")]
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and verdicts and "reason" in map(name_of, node.targets):
            given.append([node.value])
        if isinstance(node, ast.Return) and node.value and function.name == "_reason":
            given.append(node.value.elts[:1] if isinstance(node.value, ast.Tuple) else [node.value])
    yield from (reason for nodes in given for node in nodes for reason in constants(node))


def functions(folder: Path) -> Iterator[ast.FunctionDef]:
    for path in sorted(folder.rglob("*.py")):
        yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))


def members(folder: Path) -> Iterator[str]:
    """Values of the enums of reasons."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Reason"):
                yield from (text for each in node.body if isinstance(each, ast.Assign) for text in constants(each.value))


def test_each_reason_of_a_condition_is_documented() -> None:
    said = {reason for folder in SOURCES for function in functions(folder) for reason in reasons(function)}
    said |= {reason for folder in SOURCES for reason in members(folder)}
    seen = {"NoIPv4", "WhollyShadowed", "NodeFailed", "NotConnected", "NoPath", "NoUplink"}
    assert seen <= said, "this test no longer finds the reasons in the sources"
    said |= {str(reason) for reason in Reason}
    documented = set(re.findall(r"`([A-Za-z0-9]+)`|^### ([A-Za-z0-9]+)$", "\n".join(page.read_text() for page in PAGES), re.MULTILINE))
    assert sorted(said - {word for pair in documented for word in pair}) == []
