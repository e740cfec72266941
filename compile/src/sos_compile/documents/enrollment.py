"""The enrollment of a machine outside Kubernetes (spec/card.md clause 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the plugin imports this module without pydantic (scripts/plugin.py)
    from sos_compile.model.world import Json

MAX_AGENTS = 64


def build_enrollment(machine: str, site_id: int, pairing: bytes, secrets: Mapping[int, bytes], agents: Sequence[tuple[str, int]]) -> Json:
    """Return the document of a machine. `secrets`: of the pairing, by key id. `agents`: (address, port) of agents of the cluster; further
    agents than a document can have are left out, because the machine learns the others from its agent-config."""
    return {
        "version": "v1alpha1",
        "machine": machine,
        "siteID": site_id,
        "pairing": pairing.hex(),
        "keys": {str(key_id): secret.hex() for key_id, secret in sorted(secrets.items())},
        "agents": [f"{address}:{port}" for address, port in agents[:MAX_AGENTS]],
    }
