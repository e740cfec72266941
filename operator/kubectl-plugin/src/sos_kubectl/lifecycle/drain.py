"""Agents that a name selects, and the progress of draining them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sos_kubectl.base import names, tables
from sos_kubectl.targets import agent_configs
from sos_kubectl.targets.agent_configs import Agent, Answer

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """An agent to drain."""

    id: str
    name: str
    node: str
    pool: str
    site: str

    @property
    def label(self) -> str:
        """The node label that keeps the agent off its node."""
        return names.drain_label(self.pool)


class AmbiguousError(ValueError):
    """A name with two meanings."""


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


def direct_targets(agents: Sequence[Agent], name: str) -> list[Target]:
    """The agents of that name, if all of them are at sites without bridges, so that no controller knows them; [] otherwise."""
    routed = {agent.id for agent in agents if agent.routed}
    found = targets(agent_configs.as_sites(agents), name)
    return found if all(target.id in routed for target in found) else []


def rows(answers: Mapping[str, Answer]) -> Json:
    """The agents' own answers, in the form of a controller's list of agents. An agent without a process is not listed."""
    return {"agents": [_row(id_, answer) for id_, answer in answers.items() if answer.runs]}


def _row(id_: str, answer: Answer) -> Json:
    status = answer.status
    draining = bool(status.get("draining"))
    # An agent at a limit accepts sessions again later, so only `draining` ends the acceptance.
    known = {"draining": draining, "willing": bool(status) and not draining, "sessions": int(status.get("sessions", 0))}
    return {"id": id_, **known, "error": answer.error}


def nodes_named(name: str) -> list[str]:
    """The nodes that a name may mean: a node of that name, or the NODE of NODE-POOL."""
    parts = name.split("-")
    return [name, *("-".join(parts[:count]) for count in range(1, len(parts)))]


@dataclass(frozen=True, slots=True)
class Kept:
    """An agent that a label keeps off a node."""

    node: str
    label: str
    name: str


def kept_away(nodes: list[Json], name: str) -> list[Kept]:
    """Return the agents that a name selects among those kept away by node labels; [] for none. The controller's configuration is not read,
    so the result may contain agents of deleted sites."""
    drained = {node["metadata"]["name"]: _drain_labels(node) for node in nodes}
    whole = [Kept(name, label, _shown(name, label)) for label in drained.get(name, ())]
    split = [(node, names.drain_label(name.removeprefix(f"{node}-"))) for node in drained if name.startswith(f"{node}-")]
    one = [Kept(node, label, name) for node, label in split if label in drained[node]]
    if len(one) + bool(whole) > 1:
        means = " and ".join([*(["a node"] if whole else []), *(f"an agent of node {kept.node}" for kept in one)])
        raise AmbiguousError(f"{name} is {means}")
    return one or whole


def _drain_labels(node: Json) -> list[str]:
    return sorted(key for key in node["metadata"].get("labels") or () if key.startswith(names.drain_label("")))


def _shown(node: str, label: str) -> str:
    return node if label == names.drain_label("default") else f"{node}-{label.partition('/')[2]}"


def known(config: Json) -> list[str]:
    """The valid names."""
    agents = [agent for site in config["sites"] for agent in site["agents"]]
    return sorted({agent["node"] for agent in agents} | {_name(agent) for agent in agents})


def _name(agent: Json) -> str:
    return str(agent["node"]) if agent["pool"] == "default" else f"{agent['node']}-{agent['pool']}"


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress: agents `taking` still accept sessions; `sessions` is the number of open sessions."""

    taking: tuple[str, ...]
    sessions: int
    left: tuple[str, ...]
    """Agents that the controller still lists, taking sessions or not."""
    silent: tuple[str, ...] = ()
    """Agents without an answer, which may have sessions."""
    error: str = ""
    """Reason of the first missing answer."""

    @property
    def done(self) -> bool:
        """True if the agents have no sessions and accept no new ones."""
        return not self.taking and not self.sessions and not self.silent

    @property
    def line(self) -> str:
        """Format the progress for people."""
        if self.taking:
            return f"{', '.join(self.taking)}: still taking sessions"
        if self.silent:
            return f"{', '.join(self.silent)}: no answer: {self.error}"
        return f"{self.sessions} sessions left at {', '.join(self.left)}" if self.sessions else "no sessions left"

    def outcome(self, wanted: list[Target], timeout: float) -> list[str]:
        """Return the final message."""
        how = "drained" if self.done else f"not within {timeout:g} s: {self.line}"
        return tables.wrapped(f"{', '.join(target.name for target in wanted)}: {how}", indent="")


def not_yet(agents: Json, wanted: list[Target]) -> list[Target]:
    """Return the agents that are not draining yet. A second SIGTERM would end an agent immediately, with all its sessions."""
    busy = {agent["id"] for agent in agents["agents"] if agent["draining"]}
    return [target for target in wanted if target.id not in busy]


def let_back(kept: list[Kept], target: str) -> list[str]:
    """Return the lines printed after removing labels."""
    if not kept:
        return tables.wrapped(f"{target}: no agent is kept away", indent="")
    return tables.wrapped(f"{', '.join(one.name for one in kept)} may come back", indent="")


def progress(agents: Json, wanted: list[Target]) -> Progress:
    """Compute progress from the list of agents; an agent missing there has no sessions."""
    known = {agent["id"]: agent for agent in agents["agents"]}
    there = [(target, known[target.id]) for target in wanted if target.id in known]
    return Progress(
        taking=tuple(target.name for target, row in there if row["willing"] and not row["draining"]),
        sessions=sum(row["sessions"] for _, row in there),
        left=tuple(target.name for target, _ in there),
        silent=tuple(target.name for target, row in there if row.get("error")),
        error=next((str(row["error"]) for _, row in there if row.get("error")), ""),
    )
