"""`kubectl sos enroll`: a machine outside Kubernetes becomes a site of this cluster."""

from __future__ import annotations

import ipaddress
import re
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import click
from sos_compile.documents.enrollment import build_enrollment

from sos_kubectl.base.source import Kubectl, SourceError
from sos_kubectl.cli import options
from sos_kubectl.cli.options import context_option, namespace_option, say
from sos_kubectl.enrollment import archive, machine
from sos_kubectl.enrollment.machine import Machine
from sos_kubectl.peering import invitation

Json = dict[str, Any]

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
ID_BYTES, KEY_BYTES = 16, 32


@click.command(short_help="Make a machine outside Kubernetes a site of this cluster.")
@click.argument("name", metavar="MACHINE")
@click.option("--prefix", multiple=True, help="Prefix of the machine's hosts, like 10.20.0.0/16; repeat for more.")
@click.option("--address", multiple=True, help="The machine's own address for streams; one for each path: repeat for more.")
@click.option("--interface", default="", help="The machine's interface towards its hosts.")
@click.option("--blocked", is_flag=True, help="Nothing can connect to the machine, e.g. due to NAT.")
@click.option("--endpoint", multiple=True, help="ADDRESS:PORT by which the machine reaches an agent here. Default: the agents' nodes.")
@click.option("--renew", is_flag=True, help="Write the archive of an enrolled machine again, with a new key.")
@click.option("--again", is_flag=True, help="Write the archive of an enrolled machine again, with the same keys.")
@click.option("--binary", type=click.Path(path_type=Path), help="Add this sos-agent to the archive, as usr/bin/sos-agent.")
@click.option("-f", "--file", type=click.Path(path_type=Path), help="Write the archive to this file. Default: standard output.")
@namespace_option
@context_option
def enroll(  # noqa: PLR0913 - one parameter per option
    *,
    name: str,
    prefix: tuple[str, ...],
    address: tuple[str, ...],
    interface: str,
    blocked: bool,
    endpoint: tuple[str, ...],
    renew: bool,
    again: bool,
    binary: Path | None,
    file: Path | None,
    namespace: str,
    context: str,
) -> None:
    """Create the SosPeer MACHINE for a machine outside Kubernetes, and write the archive for the machine. Its site has the same name.

    On the machine, as root: tar -C / -xf MACHINE.tar && systemctl enable sos-agent && systemctl restart sos-agent.

    The archive contains a key: transfer it like a password.
    The enrollment belongs to the first machine that uses it.
    """
    if file is None and sys.stdout.isatty():
        raise SourceError(f"the archive is no text: redirect it (> {name}.tar), or set --file")
    if binary is not None and not binary.is_file():
        raise SourceError(f"--binary {binary}: there is no such file")
    kubectl = options.kubectl(context)
    here = namespace or options.operator_namespace(kubectl)
    agents = _endpoints(endpoint) or _agents(kubectl, here)
    if renew or again:
        document = _enrolled(kubectl, name, here, agents, renew=renew)
    else:
        document = _create(kubectl, _declared(name, prefix, address, interface, blocked=blocked), here, agents)
    content = archive.build(document, binary, int(time.time()))
    if file is None:
        sys.stdout.buffer.write(content)
    else:
        file.unlink(missing_ok=True)  # an existing file may be readable by other users
        file.touch(mode=0o600)
        file.write_bytes(content)
    archive_name = file.name if file else f"{name}.tar"
    say(f"on the machine, as root: tar -C / -xf {archive_name} && systemctl enable sos-agent && systemctl restart sos-agent")


def _declared(name: str, prefix: tuple[str, ...], address: tuple[str, ...], interface: str, *, blocked: bool) -> Machine:
    if not NAME.fullmatch(name):
        raise SourceError(f"{name!r} is not a valid name: write at most 63 lower-case letters, digits and '-'")
    for option, value in (("--prefix", prefix), ("--address", address), ("--interface", interface)):
        if not value:
            raise SourceError(f"{option} is missing: a new machine needs it")
    prefixes = tuple(_ipv4("--prefix", text, ipaddress.IPv4Network) for text in prefix)
    addresses = tuple(_ipv4("--address", text, ipaddress.IPv4Address) for text in address)
    return Machine(name, prefixes, addresses, interface, blocked)


def _ipv4(option: str, text: str, kind: type[ipaddress.IPv4Network | ipaddress.IPv4Address]) -> str:
    try:
        return str(kind(text))
    except ValueError as error:
        raise SourceError(f"{option} {text}: {error}") from None


def _endpoints(texts: tuple[str, ...]) -> list[tuple[str, int]]:
    found = []
    for text in texts:
        address, _, port = text.rpartition(":")
        if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
            raise SourceError(f"--endpoint {text}: write an address and a port, like 192.0.2.7:14790")
        found.append((_ipv4("--endpoint", address, ipaddress.IPv4Address), int(port)))
    return found


def _agents(kubectl: Kubectl, here: str) -> list[tuple[str, int]]:
    pods = kubectl.json("get", "pods", "-n", here, "-l", invitation.AGENTS, "-o", "json")["items"]
    found = _endpoints(tuple(invitation.own_endpoints(pods)))
    if not found:
        raise SourceError("no agent of a site with wan.type: Routed runs yet: wait for it, or set --endpoint")
    return found


def _create(kubectl: Kubectl, declared: Machine, here: str, agents: list[tuple[str, int]]) -> Json:
    name = declared.name
    if kubectl.named("sospeers.sos.network", [name]):
        raise SourceError(
            f"there is a SosPeer {name} already: set --again to write its archive again, or remove it (kubectl sos peer remove {name})"
        )
    site_id = machine.free_site_id(kubectl.objects())
    pairing, keys = secrets.token_bytes(ID_BYTES), {1: secrets.token_bytes(KEY_BYTES)}
    made = [machine.secret(name, here, pairing, keys), machine.peer(declared, site_id)]
    # `apply` would keep the keys of a machine of this name that has been removed.
    kubectl.run("delete", "secret", _secret_name(name), "-n", here, "--ignore-not-found")
    kubectl.run("apply", "-f", "-", stdin=invitation.text(made))
    say(f"SosPeer {name} created: services can name the site {name}")
    return build_enrollment(name, site_id, pairing, keys, agents)


def _enrolled(kubectl: Kubectl, name: str, here: str, agents: list[tuple[str, int]], *, renew: bool) -> Json:
    found = kubectl.named("sospeers.sos.network", [name])
    declared = found[0]["spec"].get("machine") if found else None
    if declared is None:
        raise SourceError(f"no machine {name} is enrolled: omit --renew and --again to enroll it")
    secret = kubectl.json("get", "secrets", "-n", here, "--field-selector", f"metadata.name={_secret_name(name)}", "-o", "json")["items"]
    pairing, keys = machine.read_secret(name, secret)
    if renew:
        keys = machine.renewed(keys, secrets.token_bytes(KEY_BYTES), (found[0].get("status") or {}).get("keyID"))
        # `apply` would keep the keys that are left out.
        kubectl.run("replace", "-f", "-", stdin=invitation.text([machine.secret(name, here, pairing, keys)]))
        say(f"SosPeer {name} has a new key; the former key works until the next renewal")
    return build_enrollment(name, int(declared["siteID"]), pairing, keys, agents)


def _secret_name(name: str) -> str:
    return str(machine.secret(name, "", b"", {})["metadata"]["name"])
