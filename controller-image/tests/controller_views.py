"""Helpers for a `World`: its locations, tables, punted packets and configuration documents."""

from __future__ import annotations

import json
from typing import Any

from controller_fake import E1, E2
from controller_lab import MACS, document
from controller_world import World, syn_frame
from sos_controller.core.commands import PacketOut
from sos_controller.core.config import Config
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.openflow.pipeline import PORT_NORMAL, cookie_kind
from sos_controller.core.types import DatapathId, Location, PortNo, parse_address, parse_mac
from sos_controller.files.config import document_hash, parse

CLIENT, SERVER = parse_address("10.0.0.11"), parse_address("10.0.0.139")
AT_CLIENT, AT_SERVER = Location(E1, PortNo(3)), Location(E2, PortNo(3))
AT_INGRESS, AT_EGRESS = Location(E1, PortNo(4)), Location(E2, PortNo(4))


def kinds(world: World, dpid: int) -> set[int]:
    return {cookie_kind(e.cookie) for e in world.network.entries(DatapathId(dpid))}


def tables(world: World) -> dict:
    return {dpid: dict(table) for dpid, table in world.network.tables.items()}


def released(world: World) -> list[PacketOut]:
    """Return the SYNs that were forwarded as plain TCP."""
    return [c for c in world.delivered if c.actions == (Output(PORT_NORMAL),) and c.data[12:14] == b"\x08\x00"]


def to_agent(world: World, where: Location) -> list[PacketOut]:
    """Return the TCP packets that were sent to an agent."""
    return [c for c in world.delivered if (c.dpid, c.actions[0].port_no) == where and c.data[23:24] == b"\x06"]


def reverse(sport: int, flags: int = 0x12) -> bytes:
    frame = syn_frame(SERVER, CLIENT, 5001, sport, flags=flags)
    return parse_mac(MACS["client"]) + parse_mac(MACS["server"]) + frame[12:]


def signed(made: dict[str, Any]) -> dict[str, Any]:
    """Return a document with the correct hash."""
    return {**made, "hash": document_hash(made)}


def parsed(made: dict[str, Any]) -> Config:
    """Return the configuration in a changed document."""
    return parse(json.dumps(signed(made)).encode())


def changed(generation: int, **more: Any) -> Config:
    """Return the lab's configuration with changes."""
    return parsed(document(generation, **more))
