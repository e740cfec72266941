"""`kubectl sos peer`: pair this cluster with another one."""

from __future__ import annotations

import ipaddress
import re
import secrets
from typing import Annotated, Any

import typer

from sos_kubectl.base import names, tables
from sos_kubectl.base.source import Kubectl, SourceError
from sos_kubectl.commands import options
from sos_kubectl.commands.options import ContextOption, Form, FormOption, say, show
from sos_kubectl.peering import invitation
from sos_kubectl.peering.invitation import End

Json = dict[str, Any]
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")

app = typer.Typer(help="Pair this cluster with another one, so that services connect their sites.", no_args_is_help=True)
NamespaceOption = Annotated[str, typer.Option("-n", "--namespace", help="The operator's namespace here. Default: where it is found.")]


@app.command()
def invite(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: Annotated[str, typer.Argument(metavar="PEER", help="Name of the other cluster, for its SosPeer in this cluster.")],
    own: Annotated[str, typer.Option("--as", help="Name of this cluster, for its SosPeer in the other cluster.")],
    prefix: Annotated[list[str], typer.Option(help="Prefix that the other cluster's sites may have, like 10.20.0.0/16; repeat for more.")],
    endpoint: Annotated[
        list[str] | None, typer.Option(help="ADDRESS:PORT by which the other cluster reaches an agent here. Default: the agents' nodes.")
    ] = None,
    no_endpoints: Annotated[bool, typer.Option("--no-endpoints", help="The other cluster cannot reach this one, e.g. due to NAT.")] = False,
    their_namespace: Annotated[str, typer.Option(help="The operator's namespace in the other cluster.")] = "sos-system",
    namespace: NamespaceOption = "",
    context: ContextOption = "",
) -> None:
    """Create a SosPeer and its key in this cluster, and print the file for the other cluster, for `kubectl apply -f`.

    The file contains the key of the pairing: transfer it like a password. The pairing belongs to the first cluster that uses the file.
    """
    for word in (name, own):
        if not NAME.fullmatch(word) or len(word) > 63:
            raise SourceError(f"{word!r} is not a valid name: write at most 63 lower-case letters, digits, '.' and '-'")
    allowed = tuple(_prefix(text) for text in prefix)
    kubectl = options.kubectl(context)
    here = namespace or options.operator_namespace(kubectl)
    if kubectl.named("sospeers.sos.network", [name]):
        raise SourceError(f"there is a SosPeer {name} already: remove it first (kubectl sos peer remove {name}), or choose another name")
    us = _this_cluster(kubectl, own, here, () if no_endpoints else tuple(endpoint or ()), reachable=not no_endpoints)
    pairing, key = secrets.token_hex(16), secrets.token_hex(32)
    # `apply` would keep the keys of a peer of this name that has been removed.
    kubectl.run("delete", "secret", names.peer_secret(name), "-n", here, "--ignore-not-found")
    kubectl.run("apply", "-f", "-", stdin=invitation.text(invitation.objects(End(name, their_namespace, allowed), here, pairing, key)))
    say(f"SosPeer {name} created; apply the file in the other cluster: kubectl apply -f FILE")
    typer.echo(invitation.text(invitation.objects(us, their_namespace, pairing, key)), nl=False)


def _this_cluster(kubectl: Kubectl, own: str, here: str, endpoints: tuple[str, ...], *, reachable: bool) -> End:
    sites = [obj for obj in kubectl.objects() if obj["kind"] == "SosSite"]
    prefixes = invitation.own_prefixes(sites)
    if not prefixes:
        raise SourceError("this cluster has no SosSite with wan.type: Routed and prefixes: create one first")
    if reachable and not endpoints:
        endpoints = invitation.own_endpoints(kubectl.json("get", "pods", "-n", here, "-l", invitation.AGENTS, "-o", "json")["items"])
        if not endpoints:
            raise SourceError("no agent of a site with wan.type: Routed runs yet: wait for it, or give --endpoint or --no-endpoints")
    return End(own, here, prefixes, endpoints)


@app.command("list")
def list_peers(output: FormOption = Form.TEXT, context: ContextOption = "") -> None:
    """List peers with their state and their sites."""
    peers = [obj for obj in options.kubectl(context).objects() if obj["kind"] == "SosPeer"]
    head = ("PEER", "READY", "REASON", "SITES", "MESSAGE")
    show(output, lambda: {"peers": peers}, lambda: tables.table(head, invitation.rows(peers)) if peers else ["no peers"])


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="PEER", help="Name of the SosPeer.")],
    namespace: NamespaceOption = "",
    context: ContextOption = "",
) -> None:
    """Delete a SosPeer and its key. Connections with its sites are plain afterwards."""
    kubectl = options.kubectl(context)
    here = namespace or options.operator_namespace(kubectl)
    done = kubectl.run("delete", "sospeer", name, "--ignore-not-found")
    done += kubectl.run("delete", "secret", names.peer_secret(name), "-n", here, "--ignore-not-found")
    typer.echo(done.strip() or f"there is no SosPeer {name}")


def _prefix(text: str) -> str:
    try:
        return str(ipaddress.IPv4Network(text))
    except ValueError as error:
        raise SourceError(f"--prefix {text}: {error}") from None
