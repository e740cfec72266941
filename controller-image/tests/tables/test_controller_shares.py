"""Test shares of a site's sessions: the limit of a namespace, excess connections, and the remainder for other namespaces."""

from __future__ import annotations

from typing import Any

from controller_lab import document
from controller_world import World
from sos_controller.files.config import document_hash


def shared(percent: int, standing: bool = False, setup: str = "Reactive") -> dict[str, Any]:
    """Return the lab's document with a share for tenant `default` and a service of another tenant on port 6000."""
    made = document()
    made["sites"][0]["shares"] = [{"namespace": "default", "percent": percent, "standing": standing}]
    made["services"][0]["setup"] = setup
    made["services"].append({**made["services"][0], "id": "other/web", "setup": "Reactive", "ports": [{"first": 6000, "last": 6000}]})
    return sealed(made)


def sealed(made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "hash": document_hash(made)}


def outcomes(world: World) -> dict[str, int]:
    return {which: number for (what, which), number in world.engine.state.counters.items() if what == "syns"}


def test_connections_above_the_share_are_plain_and_others_are_not_affected() -> None:
    world = World(shared(50))
    for agent in world.agents.values():
        agent.limit = 8
    world.converge()
    for port in range(40000, 40006):
        world.syn(port)
    found = world.engine.state.sessions
    assert found.by_service["default/bulk"] == 4 and found.by_group["west", "default"] == 4
    assert outcomes(world)["share"] == 2
    world.syn(41000, dport=6000)
    assert found.by_service["other/web"] == 1
    (session, *_) = (each for each in found if each.service == "default/bulk")
    world.end(session.uuid)
    world.tick(2.0)
    assert found.by_group["west", "default"] == 3
    world.syn(40010)
    assert found.by_group["west", "default"] == 4


def test_service_with_a_bounded_share_is_reactive_and_reports_the_reason() -> None:
    assert "bounded at site west" in World(shared(50, setup="Proactive")).engine.state.reactive_because["default/bulk"]
    assert not World(shared(50, standing=True, setup="Proactive")).engine.state.reactive_because


def test_running_sessions_count_towards_a_new_share() -> None:
    world = World(document())
    world.converge()
    world.syn(40000)
    world.engine.state.sessions.group({"default/bulk": (("west", "default"),)})
    assert world.engine.state.sessions.by_group["west", "default"] == 1


def test_service_with_too_many_entries_is_not_proactive() -> None:
    """Wider entries would redirect connections of other tenants to the service's agent."""
    made = shared(100, standing=True, setup="Proactive")
    service = made["services"][0]
    service["ports"] = [{"first": 1 + 1000 * i, "last": 998 + 1000 * i} for i in range(64)]
    service["from"]["prefixes"] = [f"10.0.0.{i}/32" for i in range(1, 21)]
    assert "entries" in World(sealed(made)).engine.state.reactive_because["default/bulk"]
