"""`kubectl sos peer`: pair this cluster with another one."""

from __future__ import annotations

import ipaddress
import re
import secrets
from typing import Any

import click

from sos_kubectl.base import names, tables
from sos_kubectl.base.source import Kubectl, SourceError
from sos_kubectl.cli import completion, options
from sos_kubectl.cli.options import Form, context_option, namespace_option, output_option, say, show
from sos_kubectl.peering import invitation
from sos_kubectl.peering.invitation import End

Json = dict[str, Any]
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


@click.group(no_args_is_help=True, short_help="Pair this cluster with another one.")
def peer() -> None:
    """Pair this cluster with another one, so that services connect their sites."""


@peer.command(short_help="Create a SosPeer, and print the file for the other cluster.")
@click.argument("name", metavar="PEER")
@click.option("--as", "own", required=True, help="Name of this cluster, for its SosPeer in the other cluster.")
@click.option(
    "--prefix", multiple=True, required=True, help="Prefix that the other cluster's sites may have, like 10.20.0.0/16; repeat for more."
)
@click.option(
    "--endpoint", multiple=True, help="ADDRESS:PORT by which the other cluster reaches an agent here. Default: the agents' nodes."
)
@click.option("--no-endpoints", is_flag=True, help="The other cluster cannot reach this one, e.g. due to NAT.")
@click.option("--their-namespace", default="sos-system", show_default=True, help="The operator's namespace in the other cluster.")
@namespace_option
@context_option
def invite(  # noqa: PLR0913 - one parameter per option
    *,
    name: str,
    own: str,
    prefix: tuple[str, ...],
    endpoint: tuple[str, ...],
    no_endpoints: bool,
    their_namespace: str,
    namespace: str,
    context: str,
) -> None:
    """Create the SosPeer PEER and its key in this cluster, and print the file for the other cluster, for `kubectl apply -f`.

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
    us = _this_cluster(kubectl, own, here, () if no_endpoints else endpoint, reachable=not no_endpoints)
    pairing, key = secrets.token_hex(16), secrets.token_hex(32)
    # `apply` would keep the keys of a peer of this name that has been removed.
    kubectl.run("delete", "secret", names.peer_secret(name), "-n", here, "--ignore-not-found")
    kubectl.run("apply", "-f", "-", stdin=invitation.text(invitation.objects(End(name, their_namespace, allowed), here, pairing, key)))
    say(f"SosPeer {name} created; apply the file in the other cluster: kubectl apply -f FILE")
    click.echo(invitation.text(invitation.objects(us, their_namespace, pairing, key)), nl=False)


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


@peer.command("list")
@output_option
@context_option
def list_peers(output: Form, context: str) -> None:
    """List peers with their state and their sites."""
    peers = [obj for obj in options.kubectl(context).objects() if obj["kind"] == "SosPeer"]
    head = ("PEER", "READY", "REASON", "SITES", "MESSAGE")
    show(output, lambda: {"peers": peers}, lambda: tables.table(head, invitation.rows(peers)) if peers else ["no peers"])


@peer.command
@click.argument("name", metavar="PEER", shell_complete=completion.peers)
@namespace_option
@context_option
def remove(name: str, namespace: str, context: str) -> None:
    """Delete the SosPeer PEER and its key. Connections with its sites are plain afterwards."""
    kubectl = options.kubectl(context)
    here = namespace or options.operator_namespace(kubectl)
    done = kubectl.run("delete", "sospeer", name, "--ignore-not-found")
    done += kubectl.run("delete", "secret", names.peer_secret(name), "-n", here, "--ignore-not-found")
    click.echo(done.strip() or f"there is no SosPeer {name}")


def _prefix(text: str) -> str:
    try:
        return str(ipaddress.IPv4Network(text))
    except ValueError as error:
        raise SourceError(f"--prefix {text}: {error}") from None
