"""Replans take a bounded share of time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scale_world import ScaleWorld, scale_document
from sos_controller.core.replan_gap import MAX_SHARE, MIN_GAP_S, ReplanGap


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 0.1), st.booleans()), min_size=1))
def test_gap_is_counted_from_the_end_and_not_shorter_than_the_last_replan(history: list[tuple[float, float, bool]]) -> None:
    """`history`: how long each replan takes, the steps in which time advances, and its urgency."""
    gap, now = ReplanGap(), 100.0
    assert gap.is_due(now)
    for took, step, urgent in history:
        gap.begin(now)
        began, now = now, now + took
        gap.end(now)
        ended = now
        if urgent:
            gap.hurry()
        while not gap.is_due(now):
            now += step + 0.001
        assert now - ended >= took * (1 - MAX_SHARE) / MAX_SHARE - 1e-9
        assert urgent or now - ended >= MIN_GAP_S - 1e-9
        assert now - ended <= max(0.0 if urgent else MIN_GAP_S, took) + step + 0.0011, "no replan waits longer than necessary"
        assert took > now - began or took <= MAX_SHARE * (now - began) + 1e-9


def test_urgent_replan_does_not_wait_for_the_minimum_gap() -> None:
    gap = ReplanGap()
    gap.begin(1.0)
    assert not gap.is_due(1.001)
    gap.hurry()
    assert gap.is_due(1.0)
    gap.end(1.5)
    assert not gap.is_due(1.9) and gap.is_due(2.0)


def test_change_during_the_gap_is_planned_by_a_later_tick() -> None:
    world = ScaleWorld(scale_document(3, 2, 1, 3), slowness=0.0)
    world.connect()
    world.run(3.0)
    engine = world.engine
    engine.replan_gap.begin(world.now)
    engine.replan_gap.end(world.now + 0.4)  # as if it had taken 0.4 s
    world.turn_agent(1)
    world.run(0.75)
    assert engine.state.dirty
    world.run(0.2)
    assert not engine.state.dirty
