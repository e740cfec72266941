"""The controllers of a lab: one process per SosController. Controllers that share switches have separate slices."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address

from sos_testbed.core.model import LabError

DEFAULT = "default"
"""Name of the controller that every lab with switches has."""
OPENFLOW_PORT = 6653
API_PORT = 8080
MOST = 8  # maximum number of controllers of a SosSite
_FIRST = IPv4Address("172.31.255.1")


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort controllers: default first, then by name. Raise LabError for names without default, or for more than MOST names."""
    found = sorted(set(names), key=lambda name: (name != DEFAULT, name))
    if found and DEFAULT not in found:
        raise LabError(f"no SosController {DEFAULT!r} is declared")
    if len(found) > MOST:
        raise LabError(f"{len(found)} SosControllers; a lab runs {MOST} at most")
    return tuple(found)


def addresses(names: Iterable[str]) -> dict[str, str]:
    """Address of each controller on the management network."""
    return {name: str(_FIRST + number) for number, name in enumerate(in_order(names))}


def program(name: str) -> str:
    """Process name of a controller in a lab."""
    return "controller" if name == DEFAULT else f"controller-{name}"


def config_file(name: str) -> str:
    """Configuration file of a controller in a lab's folder."""
    return f"{program(name)}-config.json"
