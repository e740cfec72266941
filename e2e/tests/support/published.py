"""A registry with a release: images, chart and plugin, built and pushed by the lines of the README."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sos_e2e import pages
from sos_e2e.environment import registry
from sos_e2e.environment.registry import Registry
from sos_e2e.reader import Reader, environment
from sos_e2e.settings import ROOT, Settings

RELEASE = ROOT / "out" / "release"
PUBLISH_S = 900
"""Time limit of the lines that build and push, if the engine has all layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A release in a registry."""

    registry: Registry
    prefix: str  # the registry and the path in it, as in REGISTRY of the pages
    images: dict[str, str]  # component -> reference
    scratch: Path

    def reader(self, kubeconfig: str, *programs: Path, folder: Path = ROOT, home: Path | None = None, **values: str) -> Reader:
        """Return a reader who has access to the clusters of a kubeconfig. `programs`: folders in front of PATH."""
        more = {"KUBECONFIG": kubeconfig} | ({"HOME": str(home)} if home else {})
        return _reader(self.registry, self.scratch, folder, more, programs, {"REGISTRY": self.prefix} | values)


def _reader(
    where: Registry, scratch: Path, folder: Path, more: dict[str, str], programs: tuple[Path, ...], values: dict[str, str]
) -> Reader:
    # The classic builder has the layers of the suite's own builds.
    own = {"SSL_CERT_FILE": str(where.certificates), "DOCKER_BUILDKIT": "0"} | more
    return Reader(folder=folder, environment=environment(scratch, programs, os.environ, **own), values=values)


@pytest.fixture(scope="session")
def published(config: Settings, built: dict[str, str]) -> Iterator[Published]:
    """A registry on this machine, and the release in it. `built` comes first, so that the README's builds find their layers."""
    with registry.started(config) as where:
        prefix, scratch = f"{where.address}/sos", config.out / "reader"
        builder = _reader(where, scratch, ROOT, {"KUBECONFIG": os.devnull}, (), {"REGISTRY": prefix})
        builder.run(pages.block("readme-publish"), timeout=PUBLISH_S)
        images = (RELEASE / "images.txt").read_text().split()
        by_part = {image.rpartition("/")[2].partition(":")[0].removeprefix("sos-"): image for image in images}
        yield Published(registry=where, prefix=prefix, images=by_part, scratch=scratch)
