"""Add tests/support and tests/simulated to the import path: the tests of operator and plugin share their fixtures and one API server."""

import sys
from pathlib import Path

TESTS = Path(__file__).parent / "tests"
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "simulated")]

from operator_fixtures import cluster, example, installed, kube, operator  # noqa: E402, F401
