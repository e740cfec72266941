"""Which agents a name means, and how far their draining has come. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sos_kubectl import names

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """One agent that is to take nothing more."""

    id: str
    name: str
    node: str
    pool: str
    site: str

    @property
    def label(self) -> str:
        """The label of its node that keeps it away."""
        return names.drain_label(self.pool)


class AmbiguousError(ValueError):
    """A name that means two things."""


def targets(config: Json, name: str) -> list[Target]:
    """The agents of a node, or the one agent of that name; [] for neither."""
    found = [
        Target(agent["id"], _name(agent), agent["node"], agent["pool"], site["name"])
        for site in config["sites"]
        for agent in site["agents"]
    ]
    one = [target for target in found if target.name == name and target.name != target.node]
    node = [target for target in found if target.node == name]
    if one and node:
        raise AmbiguousError(f"{name} is a node, and also the agent of pool {one[0].pool} on node {one[0].node}")
    return one or node


def known(config: Json) -> list[str]:
    """The names one may give."""
    agents = [agent for site in config["sites"] for agent in site["agents"]]
    return sorted({agent["node"] for agent in agents} | {_name(agent) for agent in agents})


def _name(agent: Json) -> str:
    return str(agent["node"]) if agent["pool"] == "default" else f"{agent['node']}-{agent['pool']}"


@dataclass(frozen=True, slots=True)
class Progress:
    """How the agents stand: `taking` still take sessions, `sessions` are under way at the others."""

    taking: tuple[str, ...]
    sessions: int
    left: tuple[str, ...]
    """Those that are there still, taking or not."""

    @property
    def done(self) -> bool:
        """Nothing of theirs is under way, and nothing new will be."""
        return not self.taking and not self.sessions

    @property
    def line(self) -> str:
        """For people."""
        if self.taking:
            return f"{', '.join(self.taking)}: still taking sessions"
        return f"{self.sessions} sessions left at {', '.join(self.left)}" if self.sessions else "no sessions left"


def not_yet(agents: Json, wanted: list[Target]) -> list[Target]:
    """Those that are not draining already. To be told a second time ends an agent at once, with all that it has."""
    busy = {agent["id"] for agent in agents["agents"] if agent["draining"]}
    return [target for target in wanted if target.id not in busy]


def progress(agents: Json, wanted: list[Target]) -> Progress:
    """From the controller's list of agents; one that is not there has nothing under way."""
    rows = {agent["id"]: agent for agent in agents["agents"]}
    there = [(target, rows[target.id]) for target in wanted if target.id in rows]
    return Progress(
        taking=tuple(target.name for target, row in there if row["willing"] and not row["draining"]),
        sessions=sum(row["sessions"] for _, row in there),
        left=tuple(target.name for target, _ in there),
    )
