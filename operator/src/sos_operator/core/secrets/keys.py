"""Key Secrets that must exist, and their content (spec/README.md clauses 4 and 5; derivation in sos_compile.keys)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sos_compile import keys

RANDOM_BYTES = keys.KEY_BYTES  # of a master key and of a bearer token
FIRST_KEY_ID = 1  # 0 is not a key id
TOKEN_FILE = "token"  # noqa: S105 - the name of a key in a Secret, not a secret


def master_file(key_id: int) -> str:
    """Name of a master key inside the master Secret."""
    return f"master-{key_id}"


def parse_masters(files: Mapping[str, bytes]) -> dict[int, bytes]:
    """Master keys by key id from a Secret's data (`master-<key id>` -> 64 hex digits); invalid entries are left out."""
    found: dict[int, bytes] = {}
    for name, content in files.items():
        prefix, _, number = name.partition("-")
        if prefix != "master" or not (number.isascii() and number.isdecimal()) or not 1 <= int(number) <= keys.MAX_KEY_ID:
            continue
        try:
            key = bytes.fromhex(content.decode("ascii").strip())
        except ValueError:
            continue
        if len(key) == keys.KEY_BYTES:
            found[int(number)] = key
    return found


@dataclass(frozen=True, slots=True)
class Masters:
    """Master keys by key id (two while keys are being rotated), and the id of the key to sign with."""

    keys: Mapping[int, bytes]
    sending: int

    def _folder(self, files: Iterable[Mapping[str, str]]) -> dict[str, str]:
        # The sending file is always present: a kubelet swaps the content of all files atomically, but creates the names of new files one
        # after the other.
        return {name: text for found in files for name, text in found.items()} | keys.sending_file(self.sending)

    def controller_files(self, site_ids: Iterable[int]) -> dict[str, str]:
        """Key folder of a controller."""
        ids = sorted(set(site_ids))
        return self._folder(keys.files_for_controller(self.keys[key_id], key_id, ids) for key_id in sorted(self.keys))

    def site_files(self, own: int, site_ids: Iterable[int]) -> dict[str, str]:
        """Key folder of the agents of site `own`."""
        ids = sorted(set(site_ids))
        return self._folder(keys.files_for_site(self.keys[key_id], key_id, own, ids) for key_id in sorted(self.keys))
