"""`kubectl sos drain`: agents take no new sessions; optionally wait for running sessions."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from sos_kubectl.base import tables
from sos_kubectl.base.source import Controller, SourceError
from sos_kubectl.commands import options
from sos_kubectl.commands.options import NO, ContextOption, Form, FormOption, LabOption, NameOption, NamespaceOption, UrlOption, say, show
from sos_kubectl.lifecycle import drain as draining
from sos_kubectl.lifecycle.drain import AmbiguousError, Kept, Progress, Target
from sos_kubectl.targets.lab import Lab

Json = dict[str, Any]
POLL_S = 0.5


def drain(  # noqa: PLR0913, PLR0917 - one parameter per option
    target: Annotated[str, typer.Argument(metavar="NODE|AGENT", help="A node (all of its agents), or one agent: NODE-POOL.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let the agents return; uses the API server only.")] = False,
    timeout: Annotated[float, typer.Option(min=0, max=3600, help="Seconds to wait for running sessions.")] = 120.0,
    name: NameOption = "default",
    namespace: NamespaceOption = "",
    url: UrlOption = "",
    lab: LabOption = "",
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """Drain an agent: it takes no new sessions, running sessions continue for spec.drainSeconds, and new connections go plain or to another
    agent.

    The node gets the label drain.sos.network/POOL, which keeps the pool's agent away until --undo removes it.
    """
    if undo:
        kept = _undone(lab, context, target)
        document = {"agents": [one.name for one in kept], "draining": False}
        show(output, lambda: document, lambda: draining.let_back(kept, target))
        return
    asked = options.controller(name, namespace, url, context, lab)
    config = asked.get("/v1/config")
    try:
        wanted = draining.targets(config, target)
    except AmbiguousError as error:
        raise _unclear(error, "=true") from None
    if not wanted:
        raise SourceError(f"no node or agent {target}; there are {', '.join(draining.known(config)) or 'none'}")
    if lab:
        _stop(options.the_lab(lab), draining.not_yet(asked.get("/v1/agents"), wanted))
    else:
        kubectl = options.kubectl(context)
        for agent in wanted:
            kubectl.run("label", "node", agent.node, f"{agent.label}=true", "--overwrite")
    names = [agent.name for agent in wanted]
    ended = _wait(asked, wanted, timeout)
    done = {"agents": names, "draining": True, "sessions": ended.sessions, "taking": list(ended.taking), "done": ended.done}
    show(output, lambda: done, lambda: ended.outcome(wanted, timeout))
    if not ended.done:
        raise typer.Exit(NO)


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


def _wait(asked: Controller, wanted: list[Target], timeout: float) -> Progress:
    """Wait until no session is left, or the time is over. An unreachable controller is polled again."""
    end, told = time.monotonic() + timeout, ""
    while True:
        try:
            now = draining.progress(asked.get("/v1/agents"), wanted)
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
