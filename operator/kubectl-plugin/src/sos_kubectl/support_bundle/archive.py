"""The archive that `kubectl sos report` writes: tar.gz, with every member scrubbed before it is added."""

from __future__ import annotations

import io
import json
import tarfile
import time
from pathlib import Path
from typing import Any

from sos_kubectl.support_bundle import scrub

Json = dict[str, Any]

MEMBER_MAX_BYTES = 4 * 1024 * 1024
"""Maximum size of a member. Of a longer text, the end is kept, because the last lines of a log matter most."""
MEMBERS_MAX = 2_000


class Bundle:
    """An archive being written. `missing` lists members that could not be read, with the reasons; the list becomes a member, too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name.removesuffix(".tar.gz")
        self.members = 0
        self.missing: list[str] = []
        self._tar = tarfile.open(path, "x:gz")  # noqa: SIM115 - closed by close()

    def add_text(self, name: str, text: str) -> None:
        """Add a member, scrubbed and bounded."""
        if self.members >= MEMBERS_MAX:
            self.missing.append(f"{name}: more than {MEMBERS_MAX} files")
            return
        data = scrub.text(text).encode()[-MEMBER_MAX_BYTES:]
        member = tarfile.TarInfo(f"{self.name}/{name}")
        member.size, member.mtime, member.mode = len(data), int(time.time()), 0o644
        self._tar.addfile(member, io.BytesIO(data))
        self.members += 1

    def add_json(self, name: str, document: Any) -> None:
        """Add a document, indented for readability."""
        self.add_text(name, json.dumps(document, indent=1, sort_keys=True) + "\n")

    def close(self) -> None:
        """Add the list of missing members, and close the archive."""
        self.add_text("missing.txt", "".join(f"{line}\n" for line in self.missing) or "nothing\n")
        self._tar.close()
