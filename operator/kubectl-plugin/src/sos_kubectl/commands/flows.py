"""`kubectl sos flows`: running sessions, or connections that went plain."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sos_kubectl.commands.options import (
    ContextOption,
    Form,
    FormOption,
    LabOption,
    NameOption,
    NamespaceOption,
    UrlOption,
    controller,
    show,
)
from sos_kubectl.views import network


def flows(  # noqa: PLR0913, PLR0917 - one parameter per option
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print changes as they happen, until interrupted.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="List connections of services that went plain, with the reason.")] = False,
    name: NameOption = "default",
    namespace: NamespaceOption = "",
    url: UrlOption = "",
    lab: LabOption = "",
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """List the running sessions; with --plain, the connections that went plain."""
    asked = controller(name, namespace, url, context, lab)
    if plain:
        found = asked.get("/v1/plain")
        show(output, lambda: found, lambda: network.plain(found))
        return
    if follow:
        for change in asked.events():
            typer.echo(json.dumps(change) if output is Form.JSON else "\n".join(network.event(change)))
        return
    sessions, agents = asked.get("/v1/sessions"), asked.get("/v1/agents")
    show(output, lambda: sessions, lambda: network.flows(sessions, agents))
