"""The commands of `kubectl sos` that only look: status, topology, flows, trace."""

from __future__ import annotations

import json
import time
from ipaddress import IPv4Address
from typing import Annotated

import typer

from sos_kubectl import network, overview
from sos_kubectl import trace as tracing
from sos_kubectl.options import (
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
    kubectl,
    show,
)
from sos_kubectl.source import Controller, Json, SourceError

POLL_S = 1.0


def status(
    wait: Annotated[bool, typer.Option("--wait", help="Until everything is ready.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds that --wait lasts at most.")] = 120.0,
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """All SOS objects, and why those are not ready that are not."""
    cluster, end = kubectl(context), time.monotonic() + timeout
    rows = overview.rows(cluster.objects())
    while wait and not overview.is_ready(rows) and time.monotonic() < end:
        time.sleep(min(POLL_S, max(0.0, end - time.monotonic())))
        try:
            rows = overview.rows(cluster.objects())
        except SourceError:  # an API server that is away for a moment is what --wait is for
            if time.monotonic() >= end:
                raise
    show(output, lambda: overview.as_json(rows), lambda: overview.lines(rows, colour()))
    if not overview.is_ready(rows):
        raise typer.Exit(NO)


def topology(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: NameOption = "default",
    namespace: NamespaceOption = "",
    url: UrlOption = "",
    lab: LabOption = "",
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """Datapaths, agents, hosts and links, as a controller sees them."""
    asked = controller(name, namespace, url, context, lab)
    known, seen, agents = (asked.get(what) for what in ("/v1/status", "/v1/topology", "/v1/agents"))
    show(
        output,
        lambda: {**seen, "agents": agents["agents"], "unclaimed": known["unclaimed"]},
        lambda: network.topology(known, seen, agents, colour()),
    )


def flows(  # noqa: PLR0913, PLR0917 - one parameter per option
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print changes as they happen, until interrupted.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Connections of services that went plain, and why.")] = False,
    name: NameOption = "default",
    namespace: NamespaceOption = "",
    url: UrlOption = "",
    lab: LabOption = "",
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """The sessions under way; with --plain the connections that are none."""
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
    """What becomes of a connection, and why. Nothing is sent: it is what should happen."""
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
