"""`GET /v1/status` with sessions of agents' reports and many services: its counts follow every change that they depend on."""

from __future__ import annotations

from typing import Any

from controller_lab import AGENTS, SWITCHES, document
from controller_world import World, encode
from sos_controller.core import snapshot
from sos_controller.core.events import ConfigChanged
from sos_controller.core.types import AgentId, FlowKey, flow_key, format_dpid
from sos_controller.core.wire.order import ReportedFlow, Role
from sos_controller.files.config import document_hash, parse

CLIENT, SERVER = 10 << 24 | 11, 10 << 24 | 139
EGRESS = AgentId(AGENTS["agent2"][2])


def services(generation: int, *ports: int) -> dict[str, Any]:
    """Return the lab's document with a service for each port, named by the port."""
    made = document(generation)
    del made["hash"]
    bulk = made["services"][0]
    made["services"] = [{**bulk, "id": f"default/{port}", "ports": [{"first": port, "last": port}]} for port in ports]
    return {**made, "hash": document_hash(made)}


def report(world: World, *ports: int) -> None:
    """Let the ingress agent report sessions to these ports of the server."""
    keys: list[FlowKey] = [flow_key(CLIENT, SERVER, 40000 + number, port) for number, port in enumerate(ports)]
    world.agents["agent1"].flows = tuple(ReportedFlow(uuid=key[8:] + bytes(12), key=key, peer=EGRESS, role=Role.INGRESS) for key in keys)
    world.reports()


def sessions(world: World) -> dict[str, int]:
    shown = snapshot.status(world.engine, "", "")
    assert shown["sessions"] == len(world.engine.state.sessions) + len(world.engine.state.agent_sessions)
    return {row["id"].partition("/")[2]: row["sessions"] for row in shown["services"]}


def test_session_counts_follow_reports_orders_and_configurations() -> None:
    world = World(services(1, 5001, 5002))
    world.converge()
    world.tick(1)
    assert sessions(world) == {"5001": 0, "5002": 0}
    report(world, 5001, 5001, 5002)
    assert sessions(world) == {"5001": 2, "5002": 1}
    assert world.engine.plan.accepted() is world.engine.plan.accepted(), "sessions are assigned once for each change"
    world.syn(50000, dport=5002)
    assert sessions(world) == {"5001": 2, "5002": 2}
    report(world, 5002)
    assert sessions(world) == {"5001": 0, "5002": 2}
    world.do(ConfigChanged(parse(encode(services(2, 5001, 5003)))))
    assert sessions(world) == {"5001": 0, "5003": 0}
    world.do(ConfigChanged(parse(encode(services(3, 5002, 5003)))))
    assert sessions(world) == {"5002": 2, "5003": 0}


def test_services_between_the_same_sites_are_programmed_one_by_one() -> None:
    world = World(services(1, 5001, 5002))
    world.mute.add(world.east)
    world.converge()
    rows = snapshot.status(world.engine, "", "")["services"]
    assert {(row["reason"], format_dpid(world.east) in row["acknowledged"]) for row in rows} == {("Programming", False)}
    world = World(services(1, 5001))
    world.converge()
    world.mute.update(SWITCHES.values())
    world.do(ConfigChanged(parse(encode(services(2, 5001, 5002)))))
    first, second = snapshot.status(world.engine, "", "")["services"]
    edge = format_dpid(world.west)
    assert first["needed"] == second["needed"] and edge in first["needed"]
    assert edge not in second["acknowledged"] and second["reason"] == "Programming"
