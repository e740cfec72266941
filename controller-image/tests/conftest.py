"""The world most tests begin in, and a controller process for each file that wants one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from controller_process import WAIT_S, Process, wait
from controller_world import World


@pytest.fixture
def world() -> World:
    made = World()
    made.converge()
    assert made.service() == "Programmed/Programmed"
    return made


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    made = Process(tmp_path_factory.mktemp("controller"))
    try:
        wait("the controller", made.up)
        yield made
    finally:
        made.process.kill()
        made.process.wait(WAIT_S)
