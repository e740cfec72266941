"""Add tests/support to the import path: the tests of operator and plugin share its fixtures and one API server."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tests" / "support"))

from operator_fixtures import cluster, example, installed, kube, operator  # noqa: F401
