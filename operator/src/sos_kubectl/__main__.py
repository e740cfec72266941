"""The commands of `kubectl sos`. Arguments in, one view, lines out.

Exit codes: 0 it is so; 1 it is not (something is not ready, the connection would be plain); 2 wrong usage, or nobody answered.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from ipaddress import IPv4Address
from typing import Annotated, Any

import typer

from sos_kubectl import network, overview
from sos_kubectl import trace as tracing
from sos_kubectl.source import Controller, Kubectl, SourceError

app = typer.Typer(
    name="kubectl-sos",
    help="What the SOS objects of a cluster say, what a controller sees, and what becomes of a connection. Reads only.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 it is so; 1 it is not (not ready, plain); 2 wrong usage or nobody answered.",
)

NO, FAILED = 1, 2
POLL_S = 1.0


class Form(StrEnum):
    """How an answer is printed."""

    TEXT = "text"
    JSON = "json"


FormOption = Annotated[Form, typer.Option("-o", "--output", help="text or json.")]
ContextOption = Annotated[str, typer.Option("--context", help="Context of the kubeconfig, as for kubectl.")]
NameOption = Annotated[str, typer.Option("--controller", help="Name of the SosController.")]
NamespaceOption = Annotated[str, typer.Option("-n", "--namespace", help="The operator's namespace. Default: where a controller is found.")]
UrlOption = Annotated[str, typer.Option("--url", help="Ask this controller directly, without kubectl: http://HOST:8080.")]


@app.command()
def status(
    wait: Annotated[bool, typer.Option("--wait", help="Until everything is ready.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds that --wait lasts at most.")] = 120.0,
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """All SOS objects, and why those are not ready that are not."""
    kubectl, end = Kubectl(_options(context)), time.monotonic() + timeout
    rows = overview.rows(kubectl.objects())
    while wait and not overview.is_ready(rows) and time.monotonic() < end:
        time.sleep(min(POLL_S, max(0.0, end - time.monotonic())))
        try:
            rows = overview.rows(kubectl.objects())
        except SourceError:  # an API server that is away for a moment is what --wait is for
            if time.monotonic() >= end:
                raise
    _print(output, lambda: overview.as_json(rows), lambda: overview.lines(rows, _colour()))
    if not overview.is_ready(rows):
        raise typer.Exit(NO)


@app.command()
def topology(
    controller: NameOption = "default",
    namespace: NamespaceOption = "",
    url: UrlOption = "",
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """Datapaths, agents, hosts and links, as a controller sees them."""
    asked = _controller(controller, namespace, url, context)
    known, seen, agents = (asked.get(what) for what in ("/v1/status", "/v1/topology", "/v1/agents"))
    _print(
        output,
        lambda: {**seen, "agents": agents["agents"], "unclaimed": known["unclaimed"]},
        lambda: network.topology(known, seen, agents, _colour()),
    )


@app.command()
def flows(  # noqa: PLR0913, PLR0917 - one parameter per option
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print changes as they happen, until interrupted.")] = False,
    controller: NameOption = "default",
    namespace: NamespaceOption = "",
    url: UrlOption = "",
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """The sessions under way."""
    asked = _controller(controller, namespace, url, context)
    if follow:
        for change in asked.events():
            typer.echo(json.dumps(change) if output is Form.JSON else network.event(change))
        return
    sessions, agents = asked.get("/v1/sessions"), asked.get("/v1/agents")
    _print(output, lambda: sessions, lambda: network.flows(sessions, agents))


@app.command()
def trace(  # noqa: PLR0913, PLR0917 - one parameter per option
    client: Annotated[IPv4Address, typer.Argument(parser=IPv4Address, help="Address the connection comes from.", metavar="SRC")],
    server: Annotated[IPv4Address, typer.Argument(parser=IPv4Address, help="Address it goes to.", metavar="DST")],
    port: Annotated[int, typer.Argument(min=1, max=65535, help="TCP port of the server.", metavar="PORT")],
    controller: NameOption = "default",
    namespace: NamespaceOption = "",
    url: UrlOption = "",
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """What becomes of a connection, and why. Nothing is sent: it is what should happen."""
    asked = _controller(controller, namespace, url, context)
    config, known, agents, seen = (asked.get(what) for what in ("/v1/config", "/v1/status", "/v1/agents", "/v1/topology"))
    found = tracing.trace(tracing.Question(client, server, port), config, known, agents, seen)
    _print(output, lambda: tracing.as_json(found), lambda: tracing.lines(found, _colour()))
    if found.outcome in ("plain", "unknown"):
        raise typer.Exit(NO)


def _controller(name: str, namespace: str, url: str, context: str) -> Controller:
    if url:
        return Controller(url=url)
    kubectl = Kubectl(_options(context))
    return Controller(kubectl=kubectl, path=kubectl.controller_in(namespace, name) if namespace else kubectl.controller_path(name))


def _options(context: str) -> tuple[str, ...]:
    return ("--context", context) if context else ()


def _colour() -> bool:
    return sys.stdout.isatty()


def _print(form: Form, as_json: Callable[[], Any], as_lines: Callable[[], list[str]]) -> None:
    typer.echo(json.dumps(as_json(), indent=2) if form is Form.JSON else "\n".join(as_lines()))


def main() -> None:
    """Entry point of `kubectl-sos`, which kubectl finds by that name."""
    try:
        app()
    except SourceError as error:
        typer.echo(f"kubectl-sos: {error}", err=True)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
