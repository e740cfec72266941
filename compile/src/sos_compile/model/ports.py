"""Conflicts among the ports on nodes' own addresses, which agents and sos-node share."""

from __future__ import annotations

from sos_compile.model.formats.shared import FIRST_STREAM_PORT, STREAM_PORTS
from sos_compile.model.network import MAX_SLOTS
from sos_compile.model.site_card import CARD_PORT
from sos_compile.model.world import Ports

MAX_PORT = 65_535


def find_port_conflict(ports: Ports) -> tuple[str, str] | None:
    """Return the field of `ports` that cannot be used and the reason, or None."""
    lengths = {"node": 1, "agents": MAX_SLOTS, "tunnels": 1}
    for name, length in lengths.items():
        first, highest = getattr(ports, name), MAX_PORT - length + 1
        if not 1 <= first <= highest:
            return name, f"{first} is not 1 to {highest}"
    agents = range(ports.agents, ports.agents + MAX_SLOTS)
    fixed = {
        "streams": range(FIRST_STREAM_PORT, FIRST_STREAM_PORT + MAX_SLOTS * STREAM_PORTS),
        "site cards": range(CARD_PORT, CARD_PORT + 1),
    }
    node = range(ports.node, ports.node + 1)
    for name, own, others in (("node", node, fixed), ("agents", agents, {**fixed, "sos-node": node})):
        for other, taken in others.items():
            if own.start < taken.stop and taken.start < own.stop:
                return name, f"{_shown(own)}: {_shown(taken)} is for {other}"
    return None


def _shown(ports: range) -> str:
    return str(ports.start) if len(ports) == 1 else f"{ports.start} to {ports.stop - 1}"
