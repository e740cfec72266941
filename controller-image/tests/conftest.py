"""The world most tests begin in."""

from __future__ import annotations

import pytest
from controller_world import World


@pytest.fixture
def world() -> World:
    made = World()
    made.converge()
    assert made.service() == "Programmed/Programmed"
    return made
