"""Fixtures of the operator's tests and of the plugin's, which share one API server: tests/support."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tests" / "support"))

from operator_fixtures import cluster, example, installed, kube, operator  # noqa: F401
