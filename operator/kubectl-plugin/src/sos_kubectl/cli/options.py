"""Options that several commands of `kubectl sos` share, and the values they select."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import click

from sos_kubectl.base.source import Controller, Kubectl, SourceError
from sos_kubectl.cli import completion
from sos_kubectl.targets import lab
from sos_kubectl.targets.agents import Agents, ClusterAgents

NO, FAILED = 1, 2
"""Exit codes: negative result; wrong usage, or no answer."""


Command = Callable[..., Any]


class Form(StrEnum):
    """Output format."""

    TEXT = "text"
    JSON = "json"


output_option = click.option(
    "-o", "--output", type=click.Choice(Form, case_sensitive=False), default="text", show_default=True, help="Format of the output."
)
context_option = click.option(
    "--context", default="", is_eager=True, shell_complete=completion.contexts, help="Context of the kubeconfig, as for kubectl."
)
namespace_option = click.option("-n", "--namespace", default="", help="The operator's namespace. Default: where it is found.")


def source_options(command: Command) -> Command:
    """Add the options that select a controller, and the output format."""
    for option in (
        context_option,
        output_option,
        click.option(
            "--lab",
            default="",
            shell_complete=completion.labs,
            help="A lab of this machine instead of a cluster, by name; '-' for the only one.",
        ),
        click.option("--url", default="", help="Query this controller directly, without kubectl: http://HOST:8080."),
        click.option("-n", "--namespace", default="", help="The operator's namespace. Default: where a controller is found."),
        click.option(
            "--controller",
            "name",
            default="default",
            show_default=True,
            shell_complete=completion.controllers,
            help="Name of the SosController.",
        ),
    ):
        command = option(command)
    return command


def controller(name: str, namespace: str, url: str, context: str, lab: str = "") -> Controller:
    """The controller that these options select."""
    if url:
        return Controller(url=url)
    if lab:
        return the_lab(lab).controller(name)
    found = kubectl(context)
    return Controller(kubectl=found, path=found.controller_in(namespace, name) if namespace else found.controller_path(name))


def agents(namespace: str, context: str, lab_name: str = "") -> Agents:
    """The agents of the lab or cluster that these options select."""
    return lab.LabAgents(the_lab(lab_name)) if lab_name else ClusterAgents(kubectl(context), namespace)


def the_lab(name: str) -> lab.Lab:
    """A lab by name."""
    return lab.find("" if name == "-" else name)


def kubectl(context: str) -> Kubectl:
    """Return kubectl with this context."""
    return Kubectl(("--context", context) if context else ())


def operator_namespace(kubectl: Kubectl) -> str:
    """Return the namespace of the only operator. Raises SourceError if there is none, or more than one."""
    found = kubectl.namespaces()
    if len(found) != 1:
        raise SourceError(f"found operators in {', '.join(found) or 'no namespace'}: set --namespace")
    return found[0]


def colour() -> bool:
    """True if the output is a terminal that shows colours."""
    return sys.stdout.isatty()


def show(form: Form, as_json: Callable[[], Any], as_lines: Callable[[], list[str]]) -> None:
    """Print an answer."""
    click.echo(json.dumps(as_json(), indent=2) if form is Form.JSON else "\n".join(as_lines()))


def say(line: str) -> None:
    """Print progress to standard error, so that standard output stays machine-readable."""
    click.echo(line, err=True)
