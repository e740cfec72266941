"""`kubectl sos flows`: running sessions, or connections that went plain."""

from __future__ import annotations

import json

import click

from sos_kubectl.cli.options import Form, controller, show, source_options
from sos_kubectl.views import network


@click.command(short_help="List running sessions, or connections that went plain.")
@click.option("-f", "--follow", is_flag=True, help="Print changes as they happen, until interrupted.")
@click.option("--plain", is_flag=True, help="List connections of services that went plain, with the reason.")
@source_options
def flows(  # noqa: PLR0913 - one parameter per option
    *,
    follow: bool,
    plain: bool,
    name: str,
    namespace: str,
    url: str,
    lab: str,
    output: Form,
    context: str,
) -> None:
    """List the running sessions; with --plain, the connections that went plain."""
    asked = controller(name, namespace, url, context, lab)
    if plain:
        found = asked.get("/v1/plain")
        show(output, lambda: found, lambda: network.plain(found))
        return
    if follow:
        for change in asked.events():
            click.echo(json.dumps(change) if output is Form.JSON else "\n".join(network.event(change)))
        return
    sessions, agents = asked.get("/v1/sessions"), asked.get("/v1/agents")
    show(output, lambda: sessions, lambda: network.flows(sessions, agents))
