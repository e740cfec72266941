"""The controllers of a lab: one process per SosController. Several controllers over the same switches are slices."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address

from sos_testbed.core.model import LabError

DEFAULT = "default"
"""The controller that every lab has."""
OPENFLOW_PORT = 6653
API_PORT = 8080
MOST = 8  # as many as a SosSite may name
_FIRST = IPv4Address("172.31.255.1")


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Controllers in order: default first, then by name. LabError if default is missing or the management network is too small."""
    found = sorted(set(names), key=lambda name: (name != DEFAULT, name))
    if DEFAULT not in found:
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
