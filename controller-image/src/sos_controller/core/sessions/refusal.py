"""Refusal: a connection whose service requires acceleration must not stay plain, and is answered with a reset (docs/adr/0054).

The controller builds the reset and sends it out of the SYN's ingress port, so that `connect()` fails immediately with ECONNREFUSED. For
SYNs that are not punted, the base table of the switch does the same (spec/node-config.md 35).
"""

from __future__ import annotations

from sos_controller.core.commands import PacketOut
from sos_controller.core.config import Service, Site
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER
from sos_controller.core.state import State, Switch
from sos_controller.core.tables.policies import Covered
from sos_controller.core.types import PortNo
from sos_controller.core.wire.packets import build_reset, complete_checksum


def requiring(state: State, site: Site | None, flow: Covered) -> Service | None:
    """Return the service that decides about a connection, if it requires more than plain TCP."""
    policy = None if site is None else state.policies.first(site.name, flow)
    return policy.service if policy is not None and policy.service.require else None


def refuse(state: State, switch: Switch, in_port: PortNo, data: bytes) -> None:
    """Answer a segment with a reset; drop a segment that must not be answered with a reset."""
    reset = build_reset(complete_checksum(data))
    if reset:
        state.out.append(PacketOut(switch.dpid, PORT_CONTROLLER, (Output(in_port),), reset))
