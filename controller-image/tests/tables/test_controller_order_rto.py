"""Test that orders are retransmitted after an RTO derived from earlier response times."""

from __future__ import annotations

import pytest
from controller_world import World
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.commands import PacketOut
from sos_controller.core.events import PacketIn
from sos_controller.core.tables.order_rto import MAX_S, MIN_S, OrderRto
from sos_controller.core.types import DatapathId, PortNo
from sos_controller.core.wire import order
from sos_controller.core.wire.order import OrderType

SLOW_S = 0.2


@given(st.lists(st.floats(0, 10)))
def test_rto_is_bounded(answers: list[float]) -> None:
    rto = OrderRto()
    for took in answers:
        rto.answered(took)
        assert MIN_S <= rto.seconds <= MAX_S


@given(st.floats(0.001, 0.3))
def test_constant_response_time_yields_a_slightly_larger_rto(took: float) -> None:
    rto = OrderRto()
    for _ in range(50):
        rto.answered(took)
    assert took <= rto.seconds <= max(took * 1.01, MIN_S)


def slow(world: World, sport: int) -> int:
    """Open a session with slow agents and return the number of Prepare orders sent."""
    for agent in world.agents.values():
        agent.mode = "silent"
    world.delivered.clear()
    world.syn(sport)
    world.tick(SLOW_S)
    asked = [c for c in world.delivered if is_prepare(c)]
    for agent in world.agents.values():
        agent.mode = "ready"
    for command in asked:
        dpid, port, frame = world.answer(command) or pytest.fail("no answer")
        world.do(PacketIn(DatapathId(dpid), PortNo(port), 0, frame))
    return len(asked)


def is_prepare(command: PacketOut) -> bool:
    data = command.data[42:]
    return data[:4] == order.MAGIC and order.decode_header(data).type == OrderType.PREPARE


def test_agent_known_to_be_slow_gets_no_retransmissions(world: World) -> None:
    assert slow(world, 40000) == 6, "to both agents at 0, 50 and 150 ms"
    for sport in range(40001, 40010):
        slow(world, sport)
    assert slow(world, 40010) == 2, "the RTO covers the known response time"
    assert len(world.engine.state.sessions) == 11


def test_answers_to_retransmitted_orders_do_not_change_the_rto(world: World) -> None:
    """An agent that lost the first order and answers the second order immediately is not slow."""
    for agent in world.agents.values():
        agent.mode = "silent"
    world.syn(40000)
    world.tick(0.04)
    for agent in world.agents.values():
        agent.mode = "ready"
    world.tick(0.1)
    assert len(world.engine.state.sessions) == 1
    assert [agent.order_rto.seconds for agent in world.engine.state.agents.all()] == [MIN_S, MIN_S]
