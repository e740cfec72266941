"""`kubectl sos trace`: the expected outcome of one connection, and the reason."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated

import typer

from sos_kubectl.base.source import Controller, Json, SourceError
from sos_kubectl.commands.options import (
    NO,
    ContextOption,
    Form,
    FormOption,
    LabOption,
    NameOption,
    NamespaceOption,
    UrlOption,
    colour,
    controller,
    show,
)
from sos_kubectl.views import trace as tracing


def trace(  # noqa: PLR0913, PLR0917 - one parameter per option
    client: Annotated[IPv4Address, typer.Argument(parser=IPv4Address, help="Address the connection comes from.", metavar="SRC")],
    server: Annotated[IPv4Address, typer.Argument(parser=IPv4Address, help="Address it goes to.", metavar="DST")],
    port: Annotated[int, typer.Argument(min=1, max=65535, help="TCP port of the server.", metavar="PORT")],
    name: NameOption = "default",
    namespace: NamespaceOption = "",
    url: UrlOption = "",
    lab: LabOption = "",
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """Predict the outcome of a connection, with the reason. No packet is sent."""
    asked = controller(name, namespace, url, context, lab)
    config, known, agents, seen = (asked.get(what) for what in ("/v1/config", "/v1/status", "/v1/agents", "/v1/topology"))
    plain = _recent_plain(asked, f"client={client}&server={server}:{port}")
    found = tracing.trace(tracing.Question(client, server, port), config, known, agents, seen)
    tracing.add_recent_plain(found, plain, known)
    show(output, lambda: tracing.as_json(found), lambda: tracing.lines(found, colour()))
    if found.outcome in ("plain", "refused", "unknown"):
        raise typer.Exit(NO)


def _recent_plain(asked: Controller, query: str) -> Json:
    """Connections that recently went plain; none from a controller of an earlier version."""
    try:
        return asked.get(f"/v1/plain?{query}")
    except SourceError:
        return {"connections": []}
