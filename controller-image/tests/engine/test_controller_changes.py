"""Test changes during running sessions: configuration, leases, and datapaths that disconnect and reconnect."""

from __future__ import annotations

from typing import Any

import pytest
from controller_fake import C1, C2, E1, E2
from controller_lab import MACS, document
from controller_views import (
    changed,
    kinds,
    parsed,
)
from controller_world import World
from sos_controller.core import snapshot
from sos_controller.core.events import ConfigChanged, DatapathUp, Rejected
from sos_controller.core.openflow.pipeline import Kind, cookie_kind
from sos_controller.core.types import DatapathId, Port, PortNo, parse_mac
from sos_controller.core.wire.order import ENDS
from sos_controller.files.config import document_hash

PEER_LOST = ENDS.index("peer-lost")


def test_leases_are_renewed_and_expire_without_the_controller(world: World) -> None:
    world.tick(20, step=0.1)
    world.network.expire(world.now)
    assert 1 in kinds(world, E1)
    world.syn(40000)
    world.network.expire(world.now + 6)
    assert 1 not in kinds(world, E1)
    assert 3 in kinds(world, E1), "redirects have no timeout"


def test_removed_service_withdraws_punts_immediately_and_keeps_sessions(world: World) -> None:
    world.syn(40000)
    world.do(ConfigChanged(changed(2, services=False)))
    assert 1 not in kinds(world, E1) and 3 in kinds(world, E1)
    assert 4 in kinds(world, C1), "the session's path stays"
    (session,) = world.engine.state.sessions
    world.end(session.uuid)
    world.tick(2)
    assert not world.network.entries(C1) and not kinds(world, E1) & {1, 3, 4}


def test_changed_service_moves_its_punts(world: World) -> None:
    world.syn(40000)
    world.do(ConfigChanged(changed(2, ports=(80, 80))))
    world.tick(0.2)
    punts = [e for e in world.network.entries(E1) if cookie_kind(e.cookie) == Kind.PUNT]
    assert [e.match.tcp_dst for e in punts] == [(80, 0xFFFF)]
    assert len(world.engine.state.sessions) == 1


def test_lost_datapath_is_reported_and_synchronised_on_reconnect(world: World) -> None:
    world.syn(40000)
    (session,) = world.engine.state.sessions
    world.disconnect("edge1")
    world.tick(0.5)
    assert world.service() == "Pending/DatapathDisconnected"
    world.network.tables[E1].clear()
    world.connect(["edge1"])
    world.tick(1.5)
    assert world.service() == "Programmed/Programmed"
    assert session.ingress_entries[0][1] in world.network.entries(E1)


def test_reconnecting_datapath_loses_entries_of_ended_sessions(world: World) -> None:
    world.syn(40000)
    (session,) = world.engine.state.sessions
    world.disconnect("edge1")
    world.end(session.uuid, ["agent2"], PEER_LOST)
    world.tick(5)
    assert 3 in kinds(world, E1) and len(world.engine.state.sessions) == 0
    world.connect(["edge1"])
    world.tick(0.2)
    assert 3 not in kinds(world, E1)


def test_sessions_continue_while_a_switch_is_disconnected(world: World) -> None:
    """The controller cannot reach the switch's agents, but they are alive, since no other agent reports them lost."""
    world.syn(40000)
    (session,) = world.engine.state.sessions
    before = {dpid: world.network.entries(dpid) for dpid in (E1, C1, C2, E2)}
    runs = {e for dpid in before for e in before[dpid] if cookie_kind(e.cookie) in (Kind.REDIRECT, Kind.PATH)}
    world.disconnect("edge2")
    world.tick(60, step=0.1)
    assert list(world.engine.state.sessions) == [session] and not session.ended_by
    assert released(world, 40001), "new connections are plain"
    world.connect(["edge2"])
    world.tick(8, step=0.1)
    assert list(world.engine.state.sessions) == [session] and not session.ended_by
    assert runs <= {e for dpid in before for e in world.network.entries(dpid)}
    assert not released(world, 40002)


def test_sessions_continue_while_a_connected_switch_is_silent(world: World) -> None:
    """Packets between the switch and the controller are lost, but no echo has timed out yet. New connections become plain after four
    seconds."""
    world.syn(40000)
    (session,) = world.engine.state.sessions
    world.unheard.add(E2)
    world.tick(14, step=0.1)
    assert list(world.engine.state.sessions) == [session] and not session.ended_by
    assert released(world, 40001)
    assert [a["name"] for a in snapshot.agents(world.engine)["agents"]] == ["agent1"]
    world.unheard.clear()
    world.tick(5, step=0.1)
    assert list(world.engine.state.sessions) == [session] and not session.ended_by
    assert not released(world, 40002)


@pytest.mark.parametrize("reason", ["peer-lost", "expired"])
@pytest.mark.parametrize("told_at", [2, 8])
def test_session_lost_at_one_agent_ends_while_the_other_is_silent(world: World, told_at: int, reason: str) -> None:
    world.syn(40000)
    (session,) = world.engine.state.sessions
    world.unheard.add(E1)
    world.tick(told_at, step=0.1)
    world.end(session.uuid, ["agent2"], ENDS.index(reason))
    world.tick(4, step=0.1)
    assert len(world.engine.state.sessions) == 0
    assert 3 not in kinds(world, E2)


def test_silent_agent_on_a_responsive_switch_is_lost_at_beacon_expiry(world: World) -> None:
    world.syn(40000)
    (session,) = world.engine.state.sessions
    del world.agents["agent2"]
    world.tick(5.5)
    assert session.ended_by == {session.egress: "agent-lost"}


def test_agent_missing_after_its_switch_reconnects_is_lost(world: World) -> None:
    world.syn(40000)
    world.disconnect("edge2")
    world.tick(10, step=0.1)
    del world.agents["agent2"]
    world.connect(["edge2"])
    world.tick(3)
    assert len(world.engine.state.sessions) == 1
    world.tick(2)
    (session,) = world.engine.state.sessions
    assert session.egress in session.ended_by


def released(world: World, sport: int) -> bool:
    """Return whether a new connection is plain."""
    world.delivered.clear()
    world.syn(sport)
    return any(out.data[:6] == parse_mac(MACS["server"]) for out in world.delivered)


def test_status_examines_a_path_once_for_all_services(world: World) -> None:
    made = document(2)
    (service,) = made["services"]
    ports = [{"first": 6000 + i, "last": 6000 + i} for i in range(40)]
    made["services"] = [service | {"id": f"default/s{i:02}", "ports": [port]} for i, port in enumerate(ports)]
    world.do(ConfigChanged(parsed(made)))
    world.tick(2)
    graph, looked = world.engine.state.graph, []
    real = graph.has_edge
    graph.has_edge = lambda *edge: looked.append(edge) or real(*edge)  # type: ignore[method-assign, func-returns-value]
    found = world.engine.plan.status()
    assert len(found) == 40 and {s.state for s in found} == {"Programmed"}
    assert {tuple(s.needed) for s in found} == {tuple(found[0].needed)} and {E1, E2} < set(found[0].needed)
    assert 0 < len(looked) < 10


def test_foreign_entries_are_never_changed(world: World) -> None:
    foreign = next(e for e in world.network.entries(E1) if cookie_kind(e.cookie) == Kind.GUARD)
    alien = type(foreign)(0, 123, foreign.match, (), 0x534F_0107_0300_0001)
    world.network.tables[E1][alien.key] = alien
    world.syn(40000)
    reborn = World(network=world.network, epoch=2, now=world.now + 3)
    reborn.connect()
    reborn.tick(30, step=0.1)
    assert alien in reborn.network.entries(E1)


def test_unclaimed_datapaths_get_no_entries_or_packets(world: World) -> None:
    world.delivered.clear()
    stranger = DatapathId(0xFF)
    world.do(DatapathUp(stranger, (Port(PortNo(1), "p1", bytes(6), True),)))
    world.tick(3)
    assert stranger not in world.network.tables and not any(c.dpid == stranger for c in world.delivered)
    assert snapshot.status(world.engine, "", "")["unclaimed"] == ["00000000000000ff"]


def test_datapath_removed_from_the_configuration_loses_our_entries(world: World) -> None:
    made = document(2)
    made["sites"][3]["datapaths"] = []
    made["sites"][1]["datapaths"] = []
    world.syn(40000)
    world.do(ConfigChanged(parsed(made)))
    world.tick(1)
    assert not world.network.entries(E2)
    (session,) = world.engine.state.sessions
    world.end(session.uuid, ["agent1"])
    world.tick(1.5)
    assert len(world.engine.state.sessions) == 0


def test_removed_datapath_that_rejects_messages_loses_our_entries(world: World) -> None:
    """After a rejection, the controller rereads the entries every few seconds. Most of the time the datapath is not synchronised."""
    world.syn(40000)
    world.disconnect("edge2")
    world.mute.add(E2)
    world.connect(["edge2"])
    for token in range(1, 1_000):  # all tokens of unanswered requests
        world.do(Rejected(E2, token))
    assert not world.engine.state.programmer.is_synced(E2)
    made = document(2)
    made["sites"][3]["datapaths"] = []
    made["sites"][1]["datapaths"] = []
    world.do(ConfigChanged(parsed(made)))
    world.tick(1)
    assert not world.network.entries(E2)
    assert not [host for host in world.engine.state.hosts.all() if host.location.dpid == E2]


def test_declared_link_is_up_while_probes_pass_in_both_directions(world: World) -> None:
    def link(*ends: tuple[str, str]) -> dict[str, Any]:
        return {name: {"site": site, "uplink": uplink} for name, (site, uplink) in zip("ab", ends, strict=True)}

    links = [
        link(("core1", "p1"), ("west", "p1")),
        link(("west", "p2"), ("core1", "p1")),
    ]  # the order of the ends does not matter; the second link does not exist
    made = {**document(2), "links": [{**ends, "cost": 10, "capacityMbps": 0} for ends in links]}
    world.do(ConfigChanged(parsed({**made, "hash": document_hash(made)})))

    def shown() -> list[dict[str, Any]]:
        return list(snapshot.status(world.engine, "", "")["declaredLinks"])

    assert shown() == [{**links[0], "up": True}, {**links[1], "up": False}]
    world.cut("edge1", "core1")
    assert [each["up"] for each in shown()] == [False, False]
    world.cut("edge1", "core1", up=True)
    world.tick(2)
    assert [each["up"] for each in shown()] == [True, False]
