"""A lab of ./lab as a target: lab.json in its folder lists the access to each part (`reach`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sos_kubectl.base.source import Controller, SourceError
from sos_kubectl.targets import agent_configs
from sos_kubectl.targets.agent_configs import Agent, Answer
from sos_kubectl.targets.agents import parsed
from sos_kubectl.targets.ports import inside
from sos_kubectl.targets.transfer import End

Json = dict[str, Any]

STATE = "/run/sos-lab"
TIMEOUT_S = 5
ENDED_STATES = "ZX"
"""States of processes that have ended, in /proc/PID/stat: a zombie stays until its parent has waited for it (proc(5))."""


def _in(netns: str) -> tuple[str, ...]:
    return ("ip", "netns", "exec", netns)


@dataclass(frozen=True, slots=True)
class Lab:
    """A running lab. All commands run by `ip netns exec`, so they need root, like the lab itself."""

    root: Path
    facts: Json

    def controller(self, name: str = "default") -> Controller:
        """The lab's controller, reached from inside its network namespace."""
        found = self.facts["reach"]["controllers"].get(name)
        if found is None:
            there = ", ".join(self.facts["reach"]["controllers"]) or "none"
            raise SourceError(f"lab {self.facts['name']} has no controller {name}; there are {there}")
        return Controller(url=found["url"], inside=_in(found["netns"]))

    def objects(self) -> list[Json]:
        """The custom resources in force."""
        return [loaded["obj"] for loaded in self.facts["objects"]]

    def config(self) -> Json:
        """The last configuration given to the lab's controller, even if the controller has stopped."""
        try:
            found: Json = json.loads((self.root / "controller-config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found

    @contextmanager
    def ends(self, sites: tuple[Json, Json], prefixes: tuple[list[str], list[str]]) -> Iterator[tuple[End | None, End | None, str]]:
        """A host of each of two sites (entries of a controller-config), preferably within some prefixes, and the reason if a host is
        missing."""
        found = [self._end(within) or self._end(site["prefixes"]) for site, within in zip(sites, prefixes, strict=True)]
        missing = [site["name"] for site, end in zip(sites, found, strict=True) if end is None]
        yield found[0], found[1], f"lab {self.facts['name']} has no host at {' and '.join(missing)}" if missing else ""

    def _end(self, prefixes: list[str]) -> End | None:
        probe = self.facts["reach"]["probe"]
        for host in self.facts["reach"]["hosts"]:
            if inside(host["address"], prefixes):
                return End(host["name"], host["address"], (*_in(host["netns"]), probe))
        return None

    def agents(self, _config: Json) -> list[tuple[str, str, str]]:
        """Every agent's id, name and site."""
        return [(agent["id"], agent["name"], agent["site"]) for agent in self.facts["reach"]["agents"]]

    def agent_metrics(self, name: str) -> str:
        """An agent's metrics; SourceError if it does not answer."""
        return _curl(next(agent for agent in self.facts["reach"]["agents"] if agent["name"] == name), "/metrics")

    def stop_agent(self, agent_id: str) -> bool:
        """Send SIGTERM, on which an agent drains; False if it does not run."""
        number = _process(next(agent for agent in self.facts["reach"]["agents"] if agent["id"] == agent_id))
        if number is not None:
            os.kill(number, signal.SIGTERM)
        return number is not None


@dataclass(frozen=True, slots=True)
class LabAgents:
    """Agents of a lab with their agent-configs."""

    lab: Lab

    def agents(self) -> list[Agent]:
        """Agents whose agent-config is in the lab's folder."""
        files = [self.lab.root / "agent-config" / f"{agent['name']}.json" for agent in self.lab.facts["reach"]["agents"]]
        data = {file.name: file.read_text(encoding="utf-8") for file in files if file.exists()}
        return agent_configs.read([{"metadata": {}, "data": data}])

    def objects(self) -> list[Json]:
        """The custom resources in force."""
        return self.lab.objects()

    def metrics(self, agents: Sequence[Agent]) -> dict[str, str]:
        """Query the agents one after the other."""
        names = {agent["id"]: agent["name"] for agent in self.lab.facts["reach"]["agents"]}
        found = dict.fromkeys((agent.id for agent in agents), "")
        for agent in agents:
            with suppress(SourceError):
                found[agent.id] = self.lab.agent_metrics(names[agent.id])
        return found

    def answers(self, agents: Sequence[Agent]) -> dict[str, Answer]:
        """Query the agents one after the other: a lab is small."""
        reach = {agent["id"]: agent for agent in self.lab.facts["reach"]["agents"]}
        return {agent.id: _answer(reach[agent.id]) for agent in agents}


def _answer(agent: Json) -> Answer:
    try:
        return parsed(_curl(agent, "/status"))
    except SourceError as error:
        return Answer(error=str(error), runs=_process(agent) is not None)


def _curl(agent: Json, path: str) -> str:
    url = agent["metrics"].removesuffix("/metrics") + path
    argv = (*_in(agent["netns"]), "curl", "-sSf", "-m", str(TIMEOUT_S), url)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=2 * TIMEOUT_S)
    if done.returncode:
        raise SourceError(f"its process does not answer ({done.stderr.strip()})")
    return done.stdout


def _process(agent: Json) -> int | None:
    """The pid of an agent; None if it does not run. Pids are reused, so compare the recorded start time."""
    try:
        remembered = json.loads(Path(agent["pidFile"]).read_text(encoding="ascii"))
        fields = Path(f"/proc/{remembered['number']}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        state, started = fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
    return int(remembered["number"]) if started == remembered["started"] and state not in ENDED_STATES else None


def find(name: str) -> Lab:
    """The lab of that name; "" = the only one. SourceError lists the existing labs."""
    labs = _all()
    chosen = [lab for lab in labs if name in ("", lab.facts["name"], lab.root.name)]
    if len(chosen) != 1:
        names = ", ".join(sorted(lab.facts["name"] for lab in labs)) or "none (./lab up)"
        raise SourceError(f"{f'no lab {name}' if name else 'which lab?'}; up: {names}")
    return chosen[0]


def names() -> list[str]:
    """Names of the labs that are up."""
    return sorted(lab.facts["name"] for lab in _all())


def _all() -> list[Lab]:
    root = Path(os.environ.get("SOS_STATE", STATE))
    return [lab for path in sorted(root.glob("*/lab.json")) if (lab := _read(path)) is not None]


def _read(path: Path) -> Lab | None:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Lab(path.parent, facts) if "reach" in facts else None
