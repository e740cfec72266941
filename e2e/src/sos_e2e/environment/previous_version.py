"""The previous version of SOS, built from its sources: sites and clusters are upgraded one by one, so both versions must interoperate."""

import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sos_e2e.environment import base_images, images
from sos_e2e.run import CommandError, run, say
from sos_e2e.settings import ROOT, Settings

# Until the first release: the last commit whose agents support neither compression nor QUIC.
FIXED = "73ce526da7757a9afa1b5528891ea719f974f8ef"
# Until the first release: a commit that has peers and machines, but no selection of pods and no pair transport.
FIXED_WITH_PEERS = "d3662ad4d4c061d5af237340fe0b7e46ff7d9c29"
AGENTS = "agent-image"
SOURCES = {"operator": ("Dockerfile", None, "."), "agent": (f"{AGENTS}/Dockerfile", "agent", AGENTS)}
"""Images of a cluster without bridges: Dockerfile, stage and context, relative to the sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Chart and images of a version, by component."""

    chart: Path
    images: Mapping[str, str]


def chosen(asked: str | None, newest_release: str, fixed: str = FIXED) -> str:
    """SOS_E2E_PREVIOUS, else the newest release before this commit, else the fixed commit."""
    return asked or newest_release or fixed


def _newest_release() -> str:
    """Tag of the newest release among this commit's ancestors; "" if there is none."""
    return run("git", "-C", ROOT, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^", check=False).strip()


def build_agents(settings: Settings, current: Mapping[str, str]) -> str:
    """Build the image of the previous agents and return its reference. Raises CommandError if their sources are not in this clone."""
    folder = _unpacked(settings, chosen(settings.previous, _newest_release()), AGENTS)
    return _build(folder, "agent", current)


def build_release(settings: Settings, current: Mapping[str, str]) -> Release:
    """Build the previous version's images for a cluster without bridges. Raises CommandError if its sources are not in this clone."""
    folder = _unpacked(settings, chosen(settings.previous, _newest_release(), FIXED_WITH_PEERS))
    built = {part: _build(folder, part, current) for part in SOURCES}
    # No controller runs in such a cluster, so its image is only named.
    return Release(chart=folder / "charts" / "sos", images=built | {"controller": current["controller"]})


def _build(folder: Path, part: str, current: Mapping[str, str]) -> str:
    dockerfile, target, context = SOURCES[part]
    say(f"building image {part} of the previous version")
    on = base_images.available(base_images.declared((folder / dockerfile).read_text()))
    image = f"{current[part]}-previous"
    images.build_one(image, folder / dockerfile, target, on, folder / context)
    return image


def _unpacked(settings: Settings, revision: str, *parts: str) -> Path:
    """Return a folder with the sources of a revision, or with some parts of them."""
    say(f"sources of the previous version: {revision}")
    folder = settings.out / "previous"
    shutil.rmtree(folder, ignore_errors=True)  # remove the sources of another revision
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    try:
        run("git", "-C", ROOT, "archive", "--output", archive, revision, *parts)
    except CommandError as problem:
        raise CommandError(f"SOS_E2E_PREVIOUS: {revision} is not in this clone, is it a shallow one?\n{problem}") from problem
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="data")
    return folder
