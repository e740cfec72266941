"""Provide a converged world, and one controller process per test module.

Hypothesis runs without deadlines; compile/tests/conftest.py gives the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from controller_process import WAIT_S, Process, wait
from controller_world import World
from hypothesis import HealthCheck, settings
from sos_controller.core import engine

EXAMPLES = int(os.environ.get("SOS_EXAMPLES", "50"))  # per property; .ci/run sets a higher number

settings.register_profile("busy-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=EXAMPLES)
settings.load_profile("busy-machine")


def pytest_configure() -> None:
    """Fail `make test-compiled` if the tests import an uncompiled controller."""
    wanted, found = os.environ.get("SOS_COMPILED"), str(engine.__file__)
    if wanted and not (found.startswith(wanted) and found.endswith(".so")):
        raise pytest.UsageError(f"the controller is not the compiled one of {wanted}: {found}")


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
