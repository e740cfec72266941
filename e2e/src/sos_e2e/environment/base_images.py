"""Base images: the images named in the Dockerfiles, or local substitutes if the engine cannot reach a registry."""

import contextlib
import re
from collections.abc import Iterable, Iterator

from sos_e2e.run import CommandError, run, say

_ARGUMENT = re.compile(r"^ARG (BASE|BUILDER)=(\S+)$", re.MULTILINE)
# Moving tag by repository: the tag that preloaded images have in engines without a registry.
MOVING = {
    "docker.io/library/debian": "debian:bookworm-slim",
    "docker.io/library/python": "python:3.11-slim-bookworm",
    "docker.io/library/rust": "rust:1-bookworm",
}


def declared(dockerfile: str) -> dict[str, str]:
    """Base images named in a Dockerfile, by build argument."""
    return dict(_ARGUMENT.findall(dockerfile))


def size_of(image: str) -> int | None:
    """Size of an image in bytes; None if the engine does not have the image."""
    try:
        return int(run("docker", "image", "inspect", "--format", "{{.Size}}", image))
    except CommandError:
        return None


def available(wanted: dict[str, str]) -> dict[str, str]:
    """Base images by build argument; an unavailable image is replaced by its moving tag if the engine has the tag."""
    return {argument: _available(base) for argument, base in wanted.items()}


@contextlib.contextmanager
def named(wanted: Iterable[str]) -> Iterator[None]:
    """Give substitutes the names of the images that they replace, so that Dockerfiles build without arguments, as in the README's lines."""
    with contextlib.ExitStack() as undo:
        for base in wanted:
            if (found := _available(base)) != base:
                run("docker", "tag", found, base)
                undo.callback(run, "docker", "image", "rm", base, check=False)
        yield


def _available(base: str) -> str:
    if size_of(base) is not None:
        return base
    try:
        run("docker", "pull", "-q", base, timeout=600)
    except CommandError:
        moving = MOVING.get(base.partition("@")[0].rpartition(":")[0] or base.partition("@")[0], "")
        if not moving or size_of(moving) is None:
            raise
        say(f"{base} cannot be pulled: building on {moving}, which the engine has")
        return moving
    return base
