"""Certificates of a lab's OpenFlow channels; the testbed replaces the operator.

Each controller and each switch has a TLS folder `tls/PART`, a symbolic link to a folder with the files. `replace` changes the link, so that
all files of a folder change at once, as in a mounted Secret.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from pathlib import Path

from sos_compile.certificates import Certified, certify_controller, certify_switches, tls_files

from sos_testbed.core import controllers
from sos_testbed.lifecycle.declare import Documents
from sos_testbed.lifecycle.runner import write_file

FOLDER = "tls"


def folders(documents: Documents, ca: Certified, now: datetime, trusted: tuple[Certified, ...] = ()) -> dict[str, dict[str, str]]:
    """TLS folder of each part, as file name -> text: certificates of `ca`, which trust it and the `trusted`."""
    found = {controllers.program(name): certify_controller(ca, name, now) for name in documents.controllers}
    found |= {node: certify_switches(ca, str(document["site"]), now) for node, document in documents.nodes.items()}
    return {part: tls_files(certified, [ca, *trusted]) for part, certified in found.items()}


def replace(root: Path, part: str, files: dict[str, str]) -> None:
    """Replace the TLS folder of a part at once."""
    version = root / FOLDER / f".{part}-{secrets.token_hex(4)}"
    for name, text in files.items():
        write_file(version / name, text, mode=0o600)
    link = root / FOLDER / f".{part}.new"
    link.symlink_to(version.name)
    link.replace(root / FOLDER / part)
