"""Pairs of agents at two sites without bridges, and the paths between them, from agent-configs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sos_kubectl.targets.agent_configs import Agent

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Path:
    """One path between two agents. `number` counts from 1, as in the documentation; the label counts from 0."""

    number: int
    near: str
    far: str
    port: int
    """Port at the agent that accepts the streams."""
    accepts: str
    """Address of that agent."""

    @property
    def label(self) -> int:
        """The path label."""
        return self.number - 1


def peer_agents(document: Json, site: str) -> list[Json]:
    """The agents of a peer site in an agent-config."""
    return [agent for peer in document["peers"] if peer["site"] == site for agent in peer["agents"]]


def paths(document: Json, site: str, peer: Json) -> list[Path]:
    """Return the paths between an agent and an agent of a peer site, by label (spec/node-config.md clause 37)."""
    near, far = document["wan"], peer.get("addresses") or [peer["address"]] * len(document["wan"])
    dials, first = _dials(document, site, peer), document["streamPorts"]["first"]
    return [
        Path(label + 1, one, other, *((peer["firstStreamPort"] + label, other) if dials else (first + label, one)))
        for label, (one, other) in enumerate(zip(near, far, strict=False))
    ]


def _dials(document: Json, site: str, peer: Json) -> bool:
    """True if the agent opens the streams to the peer's agent."""
    dial = next((row.get("dial", "ByID") for row in document["peers"] if row["site"] == site), "ByID")
    return bool(document["agentId"] < peer["id"]) if dial == "ByID" else bool(dial == "Always")


def beside(agents: Iterable[Agent]) -> dict[str, list[str]]:
    """Return, by agent id, the prefixes of pods on the agent's own node: the agents' peers know them."""
    return {
        agent["id"]: list(agent["prefixes"])
        for known in agents
        for peer in known.document["peers"]
        for agent in peer["agents"]
        if agent.get("prefixes")
    }
