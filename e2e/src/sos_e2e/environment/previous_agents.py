"""Agents of the previous version, built from its sources: sites are upgraded one by one, so both versions must interoperate."""

import shutil
import tarfile
from collections.abc import Mapping

from sos_e2e.environment import base_images, images
from sos_e2e.run import CommandError, run, say
from sos_e2e.settings import ROOT, Settings

# Until the first release: the last commit whose agents support neither compression nor QUIC.
FIXED = "73ce526da7757a9afa1b5528891ea719f974f8ef"
FOLDER = "agent-image"


def chosen(asked: str | None, newest_release: str) -> str:
    """SOS_E2E_PREVIOUS, else the newest release before this commit, else the fixed commit."""
    return asked or newest_release or FIXED


def _newest_release() -> str:
    """Tag of the newest release among this commit's ancestors; "" if there is none."""
    return run("git", "-C", ROOT, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^", check=False).strip()


def build(settings: Settings, current: Mapping[str, str]) -> str:
    """Build the image of the previous agents and return its reference. Raises CommandError if their sources are not in this clone."""
    revision = chosen(settings.previous, _newest_release())
    say(f"building image agent of {revision}")
    folder = settings.out / "previous"
    shutil.rmtree(folder, ignore_errors=True)  # remove the sources of another revision
    folder.mkdir()
    archive = folder / "source.tar"
    try:
        run("git", "-C", ROOT, "archive", "--output", archive, revision, FOLDER)
    except CommandError as problem:
        raise CommandError(f"SOS_E2E_PREVIOUS: {revision} is not in this clone, is it a shallow one?\n{problem}") from problem
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="data")
    context = folder / FOLDER
    on = base_images.available(base_images.declared((context / "Dockerfile").read_text()))
    image = f"{current['agent']}-previous"
    images.build_one(image, context / "Dockerfile", "agent", on, context)
    return image
