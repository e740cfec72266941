"""The archive for a machine, laid out as its file system."""

from __future__ import annotations

import io
import json
import tarfile
from importlib.resources import files
from pathlib import Path
from typing import Any

ENROLLMENT = "etc/sos/enrollment.json"
UNIT = "usr/lib/systemd/system/sos-agent.service"  # as in the Debian package, whose upgrades replace it
BINARY = "usr/bin/sos-agent"


def unit() -> str:
    """Return the text of the systemd unit."""
    return (files(__package__) / "sos-agent.service").read_text()


def build(enrollment: dict[str, Any], binary: Path | None, mtime: int) -> bytes:
    """Return a tar archive with the enrollment, the unit and, if given, the agent's binary.

    `mtime`: time of the files, in seconds since 1970.
    """
    parts: list[tuple[str, int, bytes]] = [
        (ENROLLMENT, 0o600, (json.dumps(enrollment, indent=2) + "\n").encode()),
        (UNIT, 0o644, unit().encode()),
    ]
    if binary is not None:
        parts.append((BINARY, 0o755, binary.read_bytes()))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _add_folder(archive, "etc/sos", 0o700, mtime)
        for name, mode, content in parts:
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(content), mode, mtime
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _add_folder(archive: tarfile.TarFile, name: str, mode: int, mtime: int) -> None:
    folder = tarfile.TarInfo(name)
    folder.type, folder.mode, folder.mtime = tarfile.DIRTYPE, mode, mtime
    archive.addfile(folder)
