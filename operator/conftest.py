"""Import path of the fixtures in tests/support, shared by the tests of operator and plugin, which use one API server."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tests" / "support"))

from operator_fixtures import cluster, example, installed, kube, operator  # noqa: F401
