"""The controllers of a lab: one process for each SosController. Several that share switches make slices of them."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address

from sos_testbed.model import LabError

DEFAULT = "default"
"""The one that every lab has."""
OPENFLOW_PORT = 6653
API_PORT = 8080
MOST = 8  # as many as a SosSite may name
_FIRST = IPv4Address("172.31.255.1")


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The default one first, then by name. LabError where it is missing, or there are too many for the management network."""
    found = sorted(set(names), key=lambda name: (name != DEFAULT, name))
    if DEFAULT not in found:
        raise LabError(f"no SosController {DEFAULT!r} is declared")
    if len(found) > MOST:
        raise LabError(f"{len(found)} SosControllers; a lab runs {MOST} at most")
    return tuple(found)


def addresses(names: Iterable[str]) -> dict[str, str]:
    """Where each is on the management network."""
    return {name: str(_FIRST + number) for number, name in enumerate(in_order(names))}


def program(name: str) -> str:
    """What its process is called in a lab."""
    return "controller" if name == DEFAULT else f"controller-{name}"


def config_file(name: str) -> str:
    """Where in a lab's folder its configuration is."""
    return f"{program(name)}-config.json"
