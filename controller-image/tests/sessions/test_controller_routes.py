"""Test the choice of a route: one call returns all that set-up needs, or the outcome that makes the connection plain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from controller_lab import HOSTS, MACS, document
from controller_views import parsed, signed
from controller_world import World, syn_frame
from sos_controller.core.events import ConfigChanged
from sos_controller.core.plain.outcome import Outcome
from sos_controller.core.sessions.admission import Admission
from sos_controller.core.sessions.routes import MAX_EGRESS_DATAPATHS, Route, Routes
from sos_controller.core.types import Location, PortNo, parse_address, parse_mac
from sos_controller.core.wire import beacon
from sos_controller.core.wire.packets import Syn, parse_syn

CLIENT, SERVER = (parse_address(HOSTS[name][1]) for name in ("client", "server"))


def up(mode: str = "Shortest", accept: str = "Early", rewritten: str = "", datapaths: int = 1) -> World:
    made: dict[str, Any] = document()
    made["services"][0] |= {"accept": accept, "paths": {"mode": mode, "max": 1 if mode == "Shortest" else 2}}
    for site in made["sites"]:
        site["rewrite"] = "OpenFlow" if site["name"] == rewritten else "Transparent"
    more = [{"dpid": f"{0x5000 + number:016x}", "name": f"more{number}", "forwarding": "Node"} for number in range(1, datapaths)]
    made["sites"][1]["datapaths"] += more
    made.pop("hash")
    world = World(signed(made))
    world.converge()
    return world


def a_syn(port: int = 40000, server: int = SERVER) -> Syn:
    found = parse_syn(syn_frame(CLIENT, server, port, 5001))
    assert found is not None
    return found


def choose(world: World, syn: Syn, routes: Routes | None = None) -> Route | Outcome:
    state = world.engine.state
    return (routes or Routes(state, world.engine.plan)).choose(state.services[0], world.west, syn)


def chosen(world: World, syn: Syn, routes: Routes | None = None) -> Route:
    found = choose(world, syn, routes)
    assert isinstance(found, Route)
    return found


def test_route_names_both_agents_and_changes_nothing() -> None:
    world = up()
    world.engine.state.out = []
    route = chosen(world, a_syn())
    assert (route.ingress.agent.agent_id, route.egress.agent.agent_id) == (world.agents["agent1"].id, world.agents["agent2"].id)
    assert (route.ingress.ingress, route.egress.ingress) == (True, False)
    assert (route.ingress.port, route.egress.port, route.labels, route.confirms) == (0, 0, 1, False)
    assert route.service is world.engine.state.services[0] and route.egress_dpids == (world.east,)
    assert not world.engine.state.out and not len(world.engine.state.sessions) and not route.egress.agent.assigned


def test_same_state_gives_the_same_route() -> None:
    world = up()
    assert choose(world, a_syn()) == choose(world, a_syn())


@pytest.mark.parametrize(("accept", "confirms"), [("Early", False), ("Learned", True), ("Confirmed", True)])
def test_route_confirms_as_the_service_and_known_servers_require(accept: str, confirms: bool) -> None:
    world, syn = up(accept=accept), a_syn()
    route = chosen(world, syn)
    assert (route.confirms, route.in_order) == (confirms, confirms)
    world.engine.state.accepting_servers.note(syn.key, world.now)
    assert chosen(world, syn).confirms == (accept == "Confirmed")


def test_orders_do_not_follow_the_entries_of_other_datapaths() -> None:
    world = up(accept="Confirmed", datapaths=2)
    assert choose(world, a_syn()) is Outcome.EGRESS_DATAPATH, "the second datapath is not connected"
    state, syn = world.engine.state, a_syn()
    state.hosts.learn(parse_mac(MACS["server"]), syn.server, Location(world.east, PortNo(3)), world.now)
    assert chosen(world, syn).in_order, "the server's datapath is known, and is the agent's"


@pytest.mark.parametrize("mode", ["RoundRobin", "LeastLoaded", "Measured"])
def test_route_has_one_label_in_modes_with_one_path(mode: str) -> None:
    world = up(mode)
    routes = Routes(world.engine.state, world.engine.plan)
    labels = [chosen(world, a_syn(40000 + number), routes).labels for number in range(4)]
    assert set(labels) <= {1, 2}
    assert mode != "RoundRobin" or labels == [1, 2, 1, 2]


def test_route_has_all_labels_in_other_modes() -> None:
    assert chosen(up("Disjoint"), a_syn()).labels == 3


def drain(world: World) -> None:
    world.agents["agent2"].flags |= beacon.FLAG_DRAINING
    world.tick(1)


def lose_egress(world: World) -> None:
    world.engine.state.programmer.disconnect(world.east)


def lose_ingress(world: World) -> None:
    world.engine.state.programmer.disconnect(world.west)


def use_port(world: World) -> None:
    world.syn(40000)


REFUSALS: dict[str, tuple[Callable[[World], None], dict[str, Any], Outcome]] = {
    "draining": (drain, {}, Outcome.NO_AGENTS),
    "egress": (lose_egress, {}, Outcome.EGRESS_DATAPATH),
    "ingress": (lose_ingress, {}, Outcome.INGRESS_DATAPATH),
    "many": (lambda _world: None, {"datapaths": MAX_EGRESS_DATAPATHS + 1}, Outcome.EGRESS_DATAPATH),
    "port": (use_port, {"rewritten": "west"}, Outcome.PORT_TAKEN),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal_is_the_reason_for_plain_tcp(name: str) -> None:
    prepare, settings, outcome = REFUSALS[name]
    world = up(**settings)
    choose(world, a_syn(50000))  # candidates are kept until the next planning
    prepare(world)
    server = parse_address("10.0.0.140")  # unknown; at a rewriting site, another server of the same client port
    found = choose(world, a_syn(server=server))
    assert found is outcome and outcome.reason is not None


def test_refused_flow_takes_no_turn_of_its_path() -> None:
    world = up("RoundRobin", rewritten="west")
    routes = Routes(world.engine.state, world.engine.plan)
    world.syn(40000)
    assert chosen(world, a_syn(40001), routes).labels == 1
    assert choose(world, a_syn(40000, parse_address("10.0.0.140")), routes) is Outcome.PORT_TAKEN
    assert chosen(world, a_syn(40002), routes).labels == 2


def test_admission_decides_a_retransmission_like_its_first_syn() -> None:
    world = up()
    state, syn = world.engine.state, a_syn()
    admission, at = Admission(state, world.engine.plan), Location(world.west, PortNo(3))
    assert isinstance(admission.decide(state.switches[world.west], at, syn), Route)
    admission.remember(syn.key + syn.isn, Outcome.NO_AGENTS)
    assert admission.decide(state.switches[world.west], at, syn) is Outcome.DECIDED
    admission.leaving = True
    assert admission.decide(state.switches[world.west], at, a_syn(40001)) is Outcome.LEAVING


def test_both_agents_get_the_transport_in_force_at_the_syn() -> None:
    made: dict[str, Any] = document()
    made["services"][0] |= {"accept": "Confirmed"}
    made["services"][0]["transport"]["streams"] = 4
    made.pop("hash")
    world = World(signed(made))
    world.converge()
    world.agents["agent2"].server = "silent"
    world.syn(40000)
    made |= {"generation": 2}
    made["services"][0]["transport"]["streams"] = 7
    made.pop("hash", None)
    world.do(ConfigChanged(parsed(made)))
    world.tick(0.4)
    asked = world.agents["agent2"].asked
    assert len(asked) > 1 and {prepare.streams for prepare in asked} == {4}, "retransmissions repeat the first order"
    world.agents["agent2"].server = "accepts"
    world.tick(2)
    world.syn(40001)
    world.tick(0.9)
    assert asked[-1].streams == 7
