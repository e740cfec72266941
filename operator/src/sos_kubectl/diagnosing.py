"""`kubectl sos diagnose`: one command, one place, the pairs of sites one after the other."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address
from typing import Annotated

import typer

from sos_kubectl import diagnosis, gather, shown
from sos_kubectl.facts import Asked, Facts
from sos_kubectl.findings import Finding
from sos_kubectl.gather import Look
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
    say,
    show,
    the_lab,
)
from sos_kubectl.source import Controller, SourceError


def diagnose(  # noqa: PLR0913, PLR0917 - one parameter per option
    from_site: Annotated[str, typer.Argument(metavar="[FROM", help="Site that opens connections.")] = "",
    to_site: Annotated[str, typer.Argument(metavar="TO]", help="Site they go to. Without both: every pair of sites with a service.")] = "",
    service: Annotated[str, typer.Option("--service", help="This service: namespace/name.")] = "",
    server: Annotated[str, typer.Option("--server", metavar="ADDRESS:PORT", help="And ask whether this server of TO listens.")] = "",
    seconds: Annotated[int, typer.Option(min=1, max=30, help="How long each of the four transfers lasts.")] = 3,
    name: NameOption = "default",
    namespace: NamespaceOption = "",
    url: UrlOption = "",
    lab: LabOption = "",
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """Send real TCP between two sites, through SOS and beside it, and name the first broken thing.

    In a cluster a short-lived pod is made at either site, with your rights, and removed again; with --lab the lab's hosts send.
    """
    if bool(from_site) != bool(to_site):
        raise typer.BadParameter("name both sites, or none")
    own = _server(server)
    if own is not None and not from_site:
        raise typer.BadParameter("--server needs the two sites, too")
    look = _look(lab, (name, namespace, url, context), seconds)
    wanted = [(from_site, to_site)] if from_site else list(gather.pairs(_config(look)))
    if not wanted:
        raise SourceError("no service is declared, so there is nothing to send through; name two sites: kubectl sos diagnose FROM TO")
    results: list[tuple[Facts, list[Finding]]] = []
    for one, other in wanted:
        facts = gather.gather(look, Asked(one, other, service, own))
        results.append((facts, diagnosis.findings(facts)))
    show(
        output,
        lambda: {"pairs": [shown.as_json(*result) for result in results]},
        lambda: [line for number, result in enumerate(results) for line in ([""] if number else []) + shown.lines(*result, colour())],
    )
    if any(diagnosis.verdict(*result) != diagnosis.OK for result in results):
        raise typer.Exit(NO)


def _look(lab: str, options: tuple[str, str, str, str], seconds: int) -> Look:
    name, _namespace, url, _context = options
    if lab:
        found = the_lab(lab)
        return Look(found, Controller(url=url) if url else found.controller(name), seconds, say)
    raise SourceError("only labs so far: --lab NAME")


def _config(look: Look) -> dict[str, object]:
    try:
        return look.controller.get("/v1/config")
    except SourceError:
        return look.place.config()


def _server(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    address, _, port = text.rpartition(":")
    try:
        found = str(IPv4Address(address)), int(port)
    except (AddressValueError, ValueError):
        raise typer.BadParameter(f"--server {text}: ADDRESS:PORT, say 10.0.0.139:5001") from None
    if not 1 <= found[1] <= 65535:
        raise typer.BadParameter(f"--server {text}: a port is 1 to 65535")
    return found
