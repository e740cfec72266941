"""`kubectl sos trace`: the expected outcome of one connection, and the reason."""

from __future__ import annotations

from ipaddress import IPv4Address

import click

from sos_kubectl.base.source import Controller, Json, SourceError
from sos_kubectl.cli.options import NO, Form, agents, colour, controller, say, show, source_options
from sos_kubectl.targets.agents import Agents
from sos_kubectl.views import routed_trace
from sos_kubectl.views import trace as tracing


@click.command(short_help="Predict the outcome of a connection, with the reason.")
@click.argument("client", type=IPv4Address, metavar="SRC")
@click.argument("server", type=IPv4Address, metavar="DST")
@click.argument("port", type=click.IntRange(1, 65535), metavar="PORT")
@source_options
def trace(  # noqa: PLR0913, PLR0917 - one parameter per option
    client: IPv4Address,
    server: IPv4Address,
    port: int,
    name: str,
    namespace: str,
    url: str,
    lab: str,
    output: Form,
    context: str,
) -> None:
    """Predict the outcome of a connection from address SRC to TCP port PORT of server DST, with the reason. No packet is sent."""
    question = tracing.Question(client, server, port)
    found = None if url else _direct(question, agents(namespace, context, lab))
    if found is None:
        found = _by_controller(question, controller(name, namespace, url, context, lab))
    show(output, lambda: tracing.as_json(found), lambda: tracing.lines(found, colour()))
    if found.outcome in ("plain", "refused", "unknown"):
        raise click.exceptions.Exit(NO)


def _direct(question: tracing.Question, place: Agents) -> tracing.Trace | None:
    """The trace between sites without bridges; None if a controller decides about the connection."""
    try:
        known = place.agents()
    except SourceError as error:  # without the right to read ConfigMaps, connections between bridges can be traced
        say(f"the agents of sites with wan.type Routed are unknown: {error}")
        return None
    if not routed_trace.concerns(question, known):
        return None
    return routed_trace.trace(question, known, place.answers(routed_trace.to_query(question, known)))


def _by_controller(question: tracing.Question, asked: Controller) -> tracing.Trace:
    config, known, there, seen = (asked.get(what) for what in ("/v1/config", "/v1/status", "/v1/agents", "/v1/topology"))
    plain = _recent_plain(asked, f"client={question.client}&server={question.server}:{question.port}")
    found = tracing.trace(question, config, known, there, seen)
    tracing.add_recent_plain(found, plain, known)
    return found


def _recent_plain(asked: Controller, query: str) -> Json:
    """Connections that recently went plain; none from a controller of an earlier version."""
    try:
        return asked.get(f"/v1/plain?{query}")
    except SourceError:
        return {"connections": []}
