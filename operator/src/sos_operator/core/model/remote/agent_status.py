"""Status that an agent reports itself (spec/node-config.md clause 40), for sites without controllers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CONTAINER = "agent"


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """One answer of an agent."""

    hash: str
    """Hash of the agent-config in force."""
    willing: bool
    """True if the agent accepts new sessions."""
    services: Mapping[str, bool] = field(default_factory=dict)
    """Services by id: True if the agent and an agent of the peer site accept new sessions."""
    backup: bool = False
    """True if another node may have the site's virtual address, so that this agent accepts no sessions."""


def parse_agent_answer(content: bytes) -> AgentAnswer | None:
    """Parse an answer; None for invalid content."""
    try:
        status = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(status, dict) or not isinstance(status.get("hash"), str):
        return None
    rows = status.get("services")
    services = {str(row.get("id")): row.get("ready") is True for row in rows if _is_row(row)} if isinstance(rows, list) else {}
    return AgentAnswer(status["hash"], status.get("willing") is True, services, status.get("virtualAddress") == "Backup")


def _is_row(row: Any) -> bool:
    return isinstance(row, dict)
