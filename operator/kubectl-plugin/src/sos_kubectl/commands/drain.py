"""`kubectl sos drain`: agents take no new sessions; optionally wait for running sessions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from sos_kubectl.base import tables
from sos_kubectl.base.source import Controller, SourceError
from sos_kubectl.cli import completion, options
from sos_kubectl.cli.options import NO, Form, say, show, source_options
from sos_kubectl.lifecycle import drain as draining
from sos_kubectl.lifecycle.drain import AmbiguousError, Kept, Progress, Target
from sos_kubectl.targets import agent_configs
from sos_kubectl.targets.agents import Agents
from sos_kubectl.targets.lab import Lab

Json = dict[str, Any]
Look = Callable[[], Json]
"""Returns the present list of agents, in the form of a controller's /v1/agents."""
POLL_S = 0.5


@click.command(short_help="Drain the agents of a node, or one agent.")
@click.argument("target", metavar="NODE|AGENT", shell_complete=completion.nodes)
@click.option("--undo", is_flag=True, help="Let the agents return; uses the API server only.")
@click.option("--timeout", type=click.FloatRange(0, 3600), default=120.0, show_default=True, help="Seconds to wait for running sessions.")
@source_options
def drain(  # noqa: PLR0913 - one parameter per option
    target: str,
    *,
    undo: bool,
    timeout: float,
    name: str,
    namespace: str,
    url: str,
    lab: str,
    output: Form,
    context: str,
) -> None:
    """Drain all agents of a node (NODE), or one agent (NODE-POOL).

    A draining agent takes no new sessions, running sessions continue for spec.drainSeconds, and new connections go plain or to another
    agent. The node gets the label drain.sos.network/POOL, which keeps the pool's agent away until --undo removes it.
    """
    if undo:
        kept = _undone(lab, context, target)
        document = {"agents": [one.name for one in kept], "draining": False}
        show(output, lambda: document, lambda: draining.let_back(kept, target))
        return
    try:
        direct = None if url else _direct(target, options.agents(namespace, context, lab))
        wanted, look = direct or _known(target, options.controller(name, namespace, url, context, lab))
    except AmbiguousError as error:
        raise _unclear(error, "=true") from None
    if lab:
        _stop(options.the_lab(lab), draining.not_yet(look(), wanted))
    else:
        kubectl = options.kubectl(context)
        for agent in wanted:
            kubectl.run("label", "node", agent.node, f"{agent.label}=true", "--overwrite")
    ended = _wait(look, wanted, timeout)
    names, left = [agent.name for agent in wanted], {"taking": list(ended.taking), "silent": list(ended.silent)}
    done = {"agents": names, "draining": True, "sessions": ended.sessions, **left, "done": ended.done}
    show(output, lambda: done, lambda: ended.outcome(wanted, timeout))
    if not ended.done:
        raise click.exceptions.Exit(NO)


def _direct(target: str, place: Agents) -> tuple[list[Target], Look] | None:
    """Agents of sites without bridges, and the way to query them; None if a controller knows the agents of that name."""
    try:
        found = place.agents()
    except SourceError as error:  # without the right to read ConfigMaps, agents that a controller knows can be drained
        say(f"the agents of sites with wan.type Routed are unknown: {error}")
        return None
    wanted = draining.direct_targets(found, target)
    if not wanted:
        if found and all(agent.routed for agent in found):
            raise _unknown(target, agent_configs.as_sites(found))
        return None
    ids = {each.id for each in wanted}
    queried = [agent for agent in found if agent.id in ids]
    return wanted, lambda: draining.rows(place.answers(queried))


def _known(target: str, asked: Controller) -> tuple[list[Target], Look]:
    """Agents that a controller knows, and its list of agents."""
    config = asked.get("/v1/config")
    wanted = draining.targets(config, target)
    if not wanted:
        raise _unknown(target, config)
    return wanted, lambda: asked.get("/v1/agents")


def _unknown(target: str, config: Json) -> SourceError:
    return SourceError(f"no node or agent {target}; there are {', '.join(draining.known(config)) or 'none'}")


def _unclear(error: AmbiguousError, change: str) -> SourceError:
    return SourceError(f"{error}: which one is meant? Label its node by hand: kubectl label node NODE drain.sos.network/POOL{change}")


def _undone(lab: str, context: str, target: str) -> list[Kept]:
    """Remove the labels. This uses the API server only: agents must return even if the controller does not answer."""
    if lab:
        raise SourceError("a lab's agent is started again with ./lab fault agent NAME --up")
    kubectl = options.kubectl(context)
    nodes = kubectl.named("nodes", draining.nodes_named(target))
    if not nodes:
        raise SourceError(f"no node or agent {target}: there is no such node")
    try:
        kept = draining.kept_away(nodes, target)
    except AmbiguousError as error:
        raise _unclear(error, "-") from None
    for one in kept:
        kubectl.run("label", "node", one.node, f"{one.label}-")
    return kept


def _stop(lab: Lab, wanted: list[Target]) -> None:
    for agent in wanted:
        if not lab.stop_agent(agent.id):
            say(f"{agent.name} does not run")


def _wait(look: Look, wanted: list[Target], timeout: float) -> Progress:
    """Wait until no session is left, or the time is over. An unreachable controller or API server is polled again."""
    end, told = time.monotonic() + timeout, ""
    while True:
        try:
            now = draining.progress(look(), wanted)
        except SourceError:
            if time.monotonic() >= end:
                raise
            time.sleep(POLL_S)
            continue
        if now.done or time.monotonic() >= end:
            return now
        if now.line != told:
            say("\n".join(tables.wrapped(told := now.line, indent="")))
        time.sleep(POLL_S)
