"""Identity of this run of the controller: epoch, boot id, seeds (spec/README.md 7; the cookie's epoch)."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

from sos_controller.core.state import Identity


def new_identity(state: Path | None) -> Identity:
    """Return a new identity. With a state folder, epoch and boot id increase regardless of the clock. Without a folder, or with an empty
    folder, they come from the clock, so that entries of a predecessor with another folder do not look like ours. Raise OSError if the
    folder cannot be written, ValueError if its file does not contain two numbers.
    """
    now = time.time_ns()
    epoch, boot_id = now // 1_000_000_000 & 0x7FFFFFFF, now
    if state is not None:
        state.mkdir(parents=True, exist_ok=True)
        path = state / "epoch"
        before = [int(n) for n in path.read_text().split()] if path.exists() else [epoch - 1, 0]
        if len(before) != 2:
            raise ValueError(f"{path}: expected an epoch and a boot id")
        epoch, boot_id = before[0] + 1, max(now, before[1] + 1)
        _write(path, f"{epoch} {boot_id}\n")
    return Identity(epoch, boot_id, secrets.randbits(80), secrets.token_bytes(32))


def identity_of_term(term: int, former: Identity) -> Identity:
    """Return the identity for a term of this replica (`core.openflow.election`). Terms increase over all replicas whatever their clocks,
    and so do these boot ids, by which agents refuse orders of former terms."""
    boot_id = max(term * 1_000_000_000, former.boot_id + 1)
    return Identity(term & 0x7FFFFFFF, boot_id, secrets.randbits(80), secrets.token_bytes(32))


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
