"""Status of a node as its `sos-node` reports it (spec/node-config.md), and the nodes to query next."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sos_operator.core.model.cluster_objects import Pod

STATUS_PATH = "/status"
CONTAINER = "node"
USER_AGENT = "sos-operator"  # by which the node process recognises polls of the operator (spec/node-config.md clause 45)
ASK_AGAIN_S = 5.0  # polling interval of healthy nodes, as no status may be older than 10 s
ASKED_PER_PASS = 64  # maximum number of nodes queried in a pass, so that a thousand silent nodes do not delay a pass by minutes
MESSAGE_MAX = 300
INTERFACES_MAX = 128  # maximum number of uplinks and LAN ports of a node (spec/node-config.md clause 6)
TEXT_MAX = 15  # maximum length of an interface's name; states are shorter


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """One answer of a node."""

    hash: str
    """Hash of the node-config in force."""
    state: str
    """Pending, Progressing, Ready or Failed."""
    bridge: str
    """Name of the bridge, empty if there is none."""
    message: str
    generation: int = 0
    """Generation of the node-config in force."""
    interfaces: tuple[tuple[str, str], ...] = ()
    """Uplinks and LAN ports of the node-config in force: name and state."""

    @property
    def noteworthy(self) -> str:
        """The message, empty if it only reports normal operation."""
        return "" if self.message in ("as configured", "removed") else self.message


def parse_answer(content: bytes) -> NodeAnswer | None:
    """Parse an answer; None for invalid content."""
    try:
        status = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(status, dict) or not isinstance(status.get("state"), str) or not isinstance(status.get("hash"), str):
        return None
    message = str(status.get("message") or "")[:MESSAGE_MAX]
    generation = status.get("generation")
    known = generation if isinstance(generation, int) and not isinstance(generation, bool) else 0
    interfaces = _interfaces(status.get("ports"))
    return NodeAnswer(status["hash"], status["state"], str(status.get("bridge") or ""), message, known, interfaces)


def _interfaces(ports: object) -> tuple[tuple[str, str], ...]:
    rows = [port for port in ports if isinstance(port, dict) and port.get("kind") in ("Uplink", "Lan")] if isinstance(ports, list) else []
    return tuple((str(port.get("name"))[:TEXT_MAX], str(port.get("state"))[:TEXT_MAX]) for port in rows[:INTERFACES_MAX])


def address_of(pod: Pod, container: str = CONTAINER) -> str:
    """host:port of the HTTP server of a pod's container, empty while the pod has no address or no such container."""
    ports = [port for each in pod.containers if each.name == container for port in each.ports]
    host = f"[{pod.address}]" if ":" in pod.address else pod.address
    return f"{host}:{ports[0]}" if host and ports else ""


def whom_to_ask(present: Iterable[str], asked: Mapping[str, float], urgent: frozenset[str], now: float) -> list[str]:
    """Return at most ASKED_PER_PASS uids to query now: urgent uids first, then uids not queried for ASK_AGAIN_S, oldest query first."""
    due = [uid for uid in present if uid in urgent or now - asked.get(uid, float("-inf")) >= ASK_AGAIN_S]
    return sorted(due, key=lambda uid: (uid not in urgent, asked.get(uid, float("-inf")), uid))[:ASKED_PER_PASS]
