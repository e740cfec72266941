"""Agents as their agent-configs declare them, and the agents' own answers to GET /status. Pure.

At sites without bridges no controller knows the agents, so these two are the only sources (spec/node-config.md, section 3).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent with its agent-config."""

    document: Json
    namespace: str = ""

    @property
    def id(self) -> str:
        """The agent's id."""
        return str(self.document["agentId"])

    @property
    def node(self) -> str:
        """Node of the agent."""
        return str(self.document["node"])

    @property
    def pool(self) -> str:
        """Pool of the agent."""
        return str(self.document["pool"])

    @property
    def site(self) -> str:
        """Name of the agent's site."""
        return str(self.document["site"]["name"])

    @property
    def name(self) -> str:
        """The agent's name for people: NODE, or NODE-POOL for a pool that is not the default pool."""
        return self.node if self.pool == "default" else f"{self.node}-{self.pool}"

    @property
    def routed(self) -> bool:
        """True if the agent's site has no bridge."""
        return bool(self.document.get("wan"))


@dataclass(frozen=True, slots=True)
class Answer:
    """An agent's status, or the reason why there is none."""

    status: Json = field(default_factory=dict)
    error: str = ""
    runs: bool = True
    """False if the agent has no process, so that it certainly has no session."""


def read(config_maps: Iterable[Json]) -> list[Agent]:
    """Return the agents of some ConfigMaps, by site and node. Other data of the ConfigMaps is skipped."""
    found = [
        Agent(document, str(one["metadata"].get("namespace", "")))
        for one in config_maps
        for text in (one.get("data") or {}).values()
        if (document := _document(text)) is not None
    ]
    return in_order(found)


def in_order(agents: Iterable[Agent]) -> list[Agent]:
    """Sort agents by site, node and pool."""
    return sorted(agents, key=lambda agent: (agent.site, agent.node, agent.pool))


def _document(text: str) -> Json | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "agentId" in found else None


def as_sites(agents: Iterable[Agent]) -> Json:
    """Return the sites with their agents, in the form of a controller-config."""
    sites: dict[str, list[Json]] = {}
    for agent in agents:
        sites.setdefault(agent.site, []).append({"id": agent.id, "node": agent.node, "pool": agent.pool})
    return {"sites": [{"name": name, "agents": rows} for name, rows in sites.items()]}


def runs(pod: Json) -> bool:
    """True if the agent's process in a pod may still run: neither the pod nor its container has ended."""
    status = pod.get("status") or {}
    states = [one.get("state") or {} for one in status.get("containerStatuses") or () if one.get("name") == "agent"]
    ended = any("terminated" in state for state in states) and bool(pod["metadata"].get("deletionTimestamp"))
    return status.get("phase") not in ENDED and not ended
