"""`kubectl sos drain`: agents take nothing new, and what they have ends or is waited for."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from sos_kubectl import drain as draining
from sos_kubectl import options
from sos_kubectl.drain import AmbiguousError, Progress, Target
from sos_kubectl.labs import Lab
from sos_kubectl.options import NO, ContextOption, Form, FormOption, LabOption, NameOption, NamespaceOption, UrlOption, say, show
from sos_kubectl.source import Controller, Kubectl, SourceError

Json = dict[str, Any]
POLL_S = 0.5


def drain(  # noqa: PLR0913, PLR0917 - one parameter per option
    target: Annotated[str, typer.Argument(metavar="NODE|AGENT", help="A node (all of its agents), or one agent: NODE-POOL.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let the agents back.")] = False,
    timeout: Annotated[float, typer.Option(min=0, max=3600, help="Seconds to wait for sessions under way.")] = 120.0,
    name: NameOption = "default",
    namespace: NamespaceOption = "",
    url: UrlOption = "",
    lab: LabOption = "",
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """Let an agent finish: it takes no new sessions, those under way go on for spec.drainSeconds, new connections are plain or another's.

    The node gets the label drain.sos.network/POOL, which keeps the pool's agent away until --undo takes it off.
    """
    asked = options.controller(name, namespace, url, context, lab)
    config = asked.get("/v1/config")
    try:
        wanted = draining.targets(config, target)
    except AmbiguousError as error:
        raise SourceError(
            f"{error}: which one is meant? Label its node by hand: kubectl label node NODE drain.sos.network/POOL=true"
        ) from None
    if not wanted:
        raise SourceError(f"no node or agent {target}; there are {', '.join(draining.known(config)) or 'none'}")
    if lab:
        _stop(options.the_lab(lab), draining.not_yet(asked.get("/v1/agents"), wanted), undo=undo)
    else:
        _label(options.kubectl(context), wanted, undo=undo)
    names = [agent.name for agent in wanted]
    if undo:
        show(output, lambda: {"agents": names, "draining": False}, lambda: [f"{', '.join(names)} may come back"])
        return
    ended = _wait(asked, wanted, timeout)
    document = {"agents": names, "draining": True, "sessions": ended.sessions, "taking": list(ended.taking), "done": ended.done}
    show(
        output, lambda: document, lambda: [f"{', '.join(names)}: {'drained' if ended.done else f'not within {timeout:g} s: {ended.line}'}"]
    )
    if not ended.done:
        raise typer.Exit(NO)


def _label(kubectl: Kubectl, wanted: list[Target], *, undo: bool) -> None:
    for agent in wanted:
        change = f"{agent.label}-" if undo else f"{agent.label}=true"
        kubectl.run("label", "node", agent.node, change, *(() if undo else ("--overwrite",)))


def _stop(lab: Lab, wanted: list[Target], *, undo: bool) -> None:
    if undo:
        raise SourceError("a lab's agent is started again with ./lab fault agent NAME --up")
    for agent in wanted:
        if not lab.stop_agent(agent.id):
            say(f"{agent.name} does not run")


def _wait(asked: Controller, wanted: list[Target], timeout: float) -> Progress:
    """Until nothing is under way, or the time is over. A controller that is away for a moment is asked again."""
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
            say(told := now.line)
        time.sleep(POLL_S)
