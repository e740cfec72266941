"""Shell completion of `kubectl sos`, in the form that kubectl's own completion queries.

kubectl's completion for bash, zsh and fish runs the executable `kubectl_complete-sos` with the words after `kubectl sos`, the last one
incomplete. It prints a line for each candidate, `VALUE<tab>HELP`, and then a directive (kubernetes/kubectl, plugin completion, 1.26).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem, ShellComplete

from sos_kubectl.base.source import Kubectl, SourceError
from sos_kubectl.targets import lab

EXECUTABLE = "kubectl_complete-sos"
FILES, NO_FILES = ":0", ":4"
"""Directives: let the shell complete file names; do not."""
QUERY_S = 2.0
"""Time limit for a query of the cluster, for which the user waits while typing."""

Callback = Callable[[click.Context, click.Parameter, str], list[str]]


def answer(app: click.Command, words: Sequence[str]) -> list[str]:
    """Return the lines for kubectl. `words`: the words after `kubectl sos`; the last one is completed."""
    *before, incomplete = words or ("",)
    found = ShellComplete(app, {}, "kubectl sos", "").get_completions(before, incomplete)
    return [*(_line(item) for item in found if item.type == "plain"), NO_FILES if all(item.type == "plain" for item in found) else FILES]


def _line(item: CompletionItem) -> str:
    return f"{item.value}\t{item.help}" if item.help else str(item.value)


def _cluster(*command: str, prefix: str = "") -> Callback:
    """Complete with the lines of a kubectl command, without `prefix`; with nothing if the command fails."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        name = context.params.get("context") or ""
        try:
            said = Kubectl(("--context", name) if name else ()).run(*command, timeout_s=QUERY_S)
        except SourceError:
            return []
        return [word for line in said.splitlines() if (word := line.removeprefix(prefix)).startswith(incomplete)]

    return complete


def _names(kind: str, prefix: str) -> Callback:
    return _cluster("get", kind, "-o", "name", prefix=prefix)


sites = _names("sossites.sos.network", "sossite.sos.network/")
peers = _names("sospeers.sos.network", "sospeer.sos.network/")
controllers = _names("soscontrollers.sos.network", "soscontroller.sos.network/")
nodes = _names("nodes", "node/")
contexts = _cluster("config", "get-contexts", "-o", "name")


def labs(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete with the names of this machine's labs."""
    return [name for name in lab.names() if name.startswith(incomplete)]
