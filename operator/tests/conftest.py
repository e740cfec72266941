from __future__ import annotations

from collections.abc import Iterator

import pytest
from operator_kube import Kube, kube_apiserver


@pytest.fixture(scope="session")
def kube() -> Iterator[Kube]:
    """One API server for the whole run."""
    with kube_apiserver() as running:
        yield running
