"""Read agent-configs from the API server, and query agents through its pod proxy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from sos_kubectl.base.labels import OPERATORS_CHILDREN, PART_OF
from sos_kubectl.base.source import Kubectl, SourceError
from sos_kubectl.targets import agent_configs, probe_pod
from sos_kubectl.targets.agent_configs import Agent, Answer

Json = dict[str, Any]

SITE, POOL = "sos.network/site", "sos.network/pool"
LIST_S = 30.0
"""Time limit for listing ConfigMaps and pods: a ConfigMap with agent-configs has up to a megabyte."""
AT_ONCE = 8
"""Requests to agents in flight: each is a kubectl process."""


class Agents(Protocol):
    """The agents of a cluster or of a lab."""

    def objects(self) -> list[Json]:
        """All SOS objects."""

    def agents(self) -> list[Agent]:
        """All agents with their agent-configs, by site and node."""

    def answers(self, agents: Sequence[Agent]) -> dict[str, Answer]:
        """The present answer of each of some agents, by agent id."""

    def metrics(self, agents: Sequence[Agent]) -> dict[str, str]:
        """The metrics of each of some agents, by agent id; "" if an agent does not answer."""


@dataclass(frozen=True, slots=True)
class ClusterAgents:
    """Agents of a cluster. Without a namespace, ConfigMaps of all namespaces are read."""

    kubectl: Kubectl
    namespace: str = ""

    def agents(self) -> list[Agent]:
        """Agents of all ConfigMaps that the operator has created."""
        where = ("-n", self.namespace) if self.namespace else ("--all-namespaces",)
        selector = f"{OPERATORS_CHILDREN},app.kubernetes.io/component=agent"
        return agent_configs.read(self.kubectl.json("get", "configmaps", *where, "-l", selector, "-o", "json", timeout_s=LIST_S)["items"])

    def objects(self) -> list[Json]:
        """All SOS objects."""
        return self.kubectl.objects()

    def answers(self, agents: Sequence[Agent]) -> dict[str, Answer]:
        """Query the agents, several at once."""
        return {id_: parsed(found) if isinstance(found, str) else found for id_, found in self._query(agents, "/status").items()}

    def metrics(self, agents: Sequence[Agent]) -> dict[str, str]:
        """Query the agents, several at once."""
        return {id_: found if isinstance(found, str) else "" for id_, found in self._query(agents, "/metrics").items()}

    def _query(self, agents: Sequence[Agent], path: str) -> dict[str, str | Answer]:
        """Return each agent's text, or an Answer with the reason why there is none."""
        pods = {place: pod for namespace, sites in _places(agents) for place, pod in self._pods(namespace, sites)}
        with ThreadPoolExecutor(AT_ONCE) as workers:
            found = workers.map(lambda agent: self._text(pods.get((agent.site, agent.pool, agent.node)), agent, path), agents)
            return {agent.id: text for agent, text in zip(agents, found, strict=True)}

    def _pods(self, namespace: str, sites: Sequence[str]) -> list[tuple[tuple[str, str, str], Json]]:
        """Pods whose agent may run, by site, pool and node."""
        selector = f"{PART_OF},app.kubernetes.io/component=agent,{SITE} in ({','.join(sites)})"
        found = self.kubectl.json("get", "pods", "-n", namespace, "-l", selector, "-o", "json", timeout_s=LIST_S)["items"]
        return [((*_labels(pod), pod["spec"].get("nodeName", "")), pod) for pod in found if agent_configs.runs(pod)]

    def _text(self, pod: Json | None, agent: Agent, path: str) -> str | Answer:
        if pod is None:
            return Answer(error=f"no pod of pool {agent.pool} is on node {agent.node}", runs=False)
        name, port = pod["metadata"]["name"], pod["spec"]["containers"][0]["ports"][0]["containerPort"]
        try:
            return self.kubectl.raw(f"/api/v1/namespaces/{agent.namespace}/pods/{name}:{port}/proxy{path}")
        except SourceError as error:
            why = "" if _ready(pod) else f": {probe_pod.why_not_ready(pod)}"
            return Answer(error=f"pod {name} does not answer{why} ({str(error).strip()})")


def parsed(text: str) -> Answer:
    """Parse an agent's answer."""
    try:
        status = json.loads(text)
    except ValueError:
        status = None
    return Answer(status) if isinstance(status, dict) else Answer(error="its answer is no status")


def _places(agents: Sequence[Agent]) -> list[tuple[str, list[str]]]:
    """Namespaces with the sites of some agents."""
    return [
        (namespace, sorted({agent.site for agent in agents if agent.namespace == namespace}))
        for namespace in sorted({agent.namespace for agent in agents})
    ]


def _labels(pod: Json) -> tuple[str, str]:
    labels = pod["metadata"].get("labels") or {}
    return labels.get(SITE, ""), labels.get(POOL, "")


def _ready(pod: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in (pod.get("status") or {}).get("conditions") or ())
