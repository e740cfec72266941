"""State of one agent of a site without bridges, from its agent-config and its own answer. Pure."""

from __future__ import annotations

from typing import Any

from sos_kubectl.targets.agent_configs import Agent, Answer

Json = dict[str, Any]

LIMIT_MARGIN_DIVISOR = 16
"""Agents accept no new sessions from 15/16 of their session limit on (`sos-agent`, `policy/arming.rs`)."""


def why_plain(agent: Agent, answer: Answer) -> tuple[str, str] | None:
    """Return the reason for plain TCP (docs/troubleshooting.md) and its words; None if the agent accepts new sessions."""
    status = answer.status
    if not status:
        return "NoAgent", answer.error
    if status.get("draining"):
        return "AgentDraining", f"it is draining, with {status.get('sessions', 0)} sessions left"
    if is_backup(answer):
        return "NotArmed", f"its node does not have the virtual address {agent.document['intake'].get('virtualAddress', 'of the site')}"
    if status.get("willing"):
        return None
    sessions, limit = int(status.get("sessions", 0)), int(agent.document["limits"]["sessions"])
    if sessions >= limit - limit // LIMIT_MARGIN_DIVISOR:
        return "AgentSessions", f"it has {sessions} sessions, and its limit is {limit}"
    return "AgentMemory", "its memory is used up"


def is_backup(answer: Answer) -> bool:
    """True if the agent leaves its site's connections to the node with the virtual address."""
    return answer.status.get("virtualAddress") == "Backup"


def is_current(agent: Agent, answer: Answer) -> bool:
    """True if the agent has its present agent-config in force."""
    return bool(answer.status.get("hash") == agent.document["hash"])


def outdated(agent: Agent, answer: Answer) -> str:
    """Words for an agent with another agent-config in force than its present one."""
    return f"it has configuration {answer.status.get('generation', 'unknown')} in force, not {agent.document['generation']}"


def has_service(answer: Answer, service: str) -> bool:
    """True if the agent's configuration in force has the service."""
    return any(row.get("id") == service for row in answer.status.get("services") or ())


def peer(answer: Answer, agent_id: str) -> Json:
    """The agent's view of a peer's agent; {} if it does not know the agent."""
    return next((dict(row) for row in answer.status.get("peers") or () if row.get("id") == agent_id), {})
