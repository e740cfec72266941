"""`kubectl sos topology`: datapaths, agents, hosts and links, as a controller sees them."""

from __future__ import annotations

import click

from sos_kubectl.cli.options import Form, colour, controller, show, source_options
from sos_kubectl.views import network


@click.command(short_help="List datapaths, agents, hosts and links.")
@source_options
def topology(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: str,
    namespace: str,
    url: str,
    lab: str,
    output: Form,
    context: str,
) -> None:
    """List datapaths, agents, hosts and links, as a controller sees them."""
    asked = controller(name, namespace, url, context, lab)
    known, seen, agents = (asked.get(what) for what in ("/v1/status", "/v1/topology", "/v1/agents"))
    show(
        output,
        lambda: {**seen, "agents": agents["agents"], "unclaimed": known["unclaimed"]},
        lambda: network.topology(known, seen, agents, colour()),
    )
