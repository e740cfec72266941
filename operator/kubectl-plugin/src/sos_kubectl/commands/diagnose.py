"""`kubectl sos diagnose`: test pairs of sites one after the other, in a lab or a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Interface

import click

from sos_kubectl.base.signals import ended_once
from sos_kubectl.base.source import Controller, SourceError
from sos_kubectl.cli import completion
from sos_kubectl.cli.options import NO, Form, agents, colour, kubectl, say, show, source_options, the_lab
from sos_kubectl.diagnose import checks, gather, render
from sos_kubectl.diagnose.facts import Asked
from sos_kubectl.diagnose.gather import Look
from sos_kubectl.diagnose.routed import checks as routed_checks
from sos_kubectl.diagnose.routed import gather as routed_gather
from sos_kubectl.diagnose.routed import render as routed_render
from sos_kubectl.diagnose.routed import selection
from sos_kubectl.diagnose.routed.facts import as_config
from sos_kubectl.targets.agent_configs import Agent
from sos_kubectl.targets.agents import Agents
from sos_kubectl.targets.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Options:
    """Options that select the subject of the diagnosis."""

    name: str
    namespace: str
    url: str
    context: str
    seconds: int
    addresses: tuple[str, str]
    pod_timeout: float


@click.command(short_help="Send TCP with and without SOS, and report the first fault.")
@click.argument("from_site", metavar="[FROM", required=False, default="", shell_complete=completion.sites)
@click.argument("to_site", metavar="TO]", required=False, default="", shell_complete=completion.sites)
@click.option("--service", default="", help="Only this service: namespace/name; its sites need not be named.")
@click.option("--server", default="", metavar="ADDRESS:PORT", help="Also test whether this server of TO listens.")
@click.option(
    "--seconds",
    type=click.IntRange(1, 30),
    default=3,
    show_default=True,
    help="Duration of a transfer. Four to twelve are made.",
)
@click.option("--from-address", default="", metavar="ADDRESS/LENGTH", help="In a cluster: address of the pod at FROM, 10.0.0.120/24.")
@click.option("--to-address", default="", metavar="ADDRESS/LENGTH", help="In a cluster: address of the pod at TO.")
@click.option(
    "--pod-timeout", type=click.FloatRange(1, 300), default=60.0, show_default=True, help="In a cluster: seconds until both pods are ready."
)
@source_options
def diagnose(  # noqa: PLR0913, PLR0917 - one parameter per option
    from_site: str,
    to_site: str,
    service: str,
    server: str,
    seconds: int,
    from_address: str,
    to_address: str,
    pod_timeout: float,
    name: str,
    namespace: str,
    url: str,
    lab: str,
    output: Form,
    context: str,
) -> None:
    """Send real TCP from site FROM to site TO, with and without SOS, and report the first fault.

    Without FROM and TO, every pair of sites with a service is tested.

    In a cluster, a short-lived pod is created at each site with your rights, and deleted afterwards; with --lab, the lab's hosts send.
    Between sites without bridges (wan.type: Routed), the agents are asked, and no traffic is sent.
    """
    if bool(from_site) != bool(to_site):
        raise click.UsageError("name both sites, or none")
    for address in filter(None, (from_address, to_address)):
        _interface(address)
    own = _server(server)
    if own is not None and not from_site and not service:
        raise click.UsageError("--server needs the two sites or --service, too")
    place = None if url else agents(namespace, context, lab)
    known = _agents(place)
    direct = selection.routed_pairs(known, (from_site, to_site), service)
    if direct and own is not None:
        raise SourceError("--server is tested by traffic, and diagnose sends none between sites without bridges")
    results = [_direct(place, known, Asked(*pair, service)) for pair in direct] if place is not None else []
    if selection.asks_controller(known, (from_site, to_site), service, direct):
        options_ = Options(name, namespace, url, context, seconds, (from_address, to_address), pod_timeout)
        results += _by_transfers(_look(lab, options_), (from_site, to_site), service, own)
    if not results:
        gather.pairs(as_config(known), service)  # names the services, if another one was meant
        raise SourceError("no service is declared, so there is nothing to send through; name two sites: kubectl sos diagnose FROM TO")
    show(
        output,
        lambda: {"pairs": [result.document for result in results]},
        lambda: [line for number, result in enumerate(results) for line in ([""] if number else []) + result.lines],
    )
    if any(result.document["verdict"] not in (checks.OK, routed_checks.READY) for result in results):
        raise click.exceptions.Exit(NO)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one pair of sites in both output formats."""

    document: dict[str, object]
    lines: list[str]


def _agents(place: Agents | None) -> list[Agent]:
    try:
        return place.agents() if place is not None else []
    except SourceError as error:  # without the right to read ConfigMaps, sites with bridges can be diagnosed
        say(f"the agents of sites with wan.type Routed are unknown: {error}")
        return []


def _direct(place: Agents, known: list[Agent], asked: Asked) -> Result:
    say(f"asking the agents of {asked.from_site} and {asked.to_site}")
    facts = routed_gather.gather(place, known, asked)
    found = routed_checks.findings(facts)
    return Result(routed_render.as_json(facts, found), routed_render.lines(facts, found, colour()))


def _by_transfers(look: Look, sites: tuple[str, str], service: str, own: tuple[str, int] | None) -> list[Result]:
    results = []
    for one, other in [sites] if sites[0] else gather.pairs(_config(look), service):
        with ended_once():
            facts = gather.gather(look, Asked(one, other, service, own))
        found = checks.findings(facts)
        results.append(Result(render.as_json(facts, found), render.lines(facts, found, colour())))
    return results


def _look(lab: str, options_: Options) -> Look:
    if lab:
        found = the_lab(lab)
        return Look(found, Controller(url=options_.url) if options_.url else found.controller(options_.name), options_.seconds, say)
    cluster = kubectl(options_.context)
    namespace = options_.namespace or _only(cluster.namespaces())
    asked = (
        Controller(url=options_.url) if options_.url else Controller(kubectl=cluster, path=cluster.controller_in(namespace, options_.name))
    )
    return Look(Cluster(cluster, namespace, asked, options_.name, options_.addresses, options_.pod_timeout), asked, options_.seconds, say)


def _only(namespaces: tuple[str, ...]) -> str:
    if len(namespaces) == 1:
        return namespaces[0]
    raise SourceError(
        f"operators in {', '.join(namespaces)}: choose one with --namespace" if namespaces else "SOS is not installed in this cluster"
    )


def _config(look: Look) -> dict[str, object]:
    try:
        return look.controller.get("/v1/config")
    except SourceError:
        return look.place.config()


def _interface(text: str) -> None:
    try:
        IPv4Interface(text)
    except ValueError:
        raise click.UsageError(f"{text}: ADDRESS/LENGTH, say 10.0.0.120/24") from None
    if "/" not in text:
        raise click.UsageError(f"{text}: with the length of the site's subnet, say {text}/24")


def _server(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    address, _, port = text.rpartition(":")
    try:
        found = str(IPv4Address(address)), int(port)
    except (AddressValueError, ValueError):
        raise click.UsageError(f"--server {text}: ADDRESS:PORT, say 10.0.0.139:5001") from None
    if not 1 <= found[1] <= 65535:
        raise click.UsageError(f"--server {text}: a port is 1 to 65535")
    return found
