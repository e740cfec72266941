"""Node by node: which nodes of a site get a changed node-config now, and when to stop.

A node-config that is wrong for one node is mostly wrong for all. So it goes to `update.maxUnavailable` nodes that are well at a time, the
next ones wait until these say that it is in force, and a node that fails with it stops the roll-out: the others keep what they have.

What only follows from other nodes and agents that come and go (tunnels, agents' ports, the base entries that name them) is handed out at
once: a node that joins must not wait for hundreds, and nothing that a node has is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sos_compile
from sos_compile import naming

from sos_operator.core.desired import daemon_set_of
from sos_operator.core.kinds import CONFIG_MAP, SITE
from sos_operator.core.nodes import NodeAnswer
from sos_operator.core.pods import pod_state
from sos_operator.core.world import PREFIX, Object, Seen, leaving

DEFAULT_MAX_UNAVAILABLE = 1
_NAMES_OTHERS = re.compile(r"(in_port|nw_src|nw_dst|arp_[st]pa)=")  # a port or an address in the match of a base entry


@dataclass(frozen=True, slots=True)
class Standing:
    """One node: the hash of the document it shall have, of the one it was given, and how it is."""

    wanted: str
    given: str = ""
    """Empty if it was given none."""
    pod: str = ""
    """State of its pod, empty if there is none."""
    answer: NodeAnswer | None = None
    alike: bool = False
    """True if the two differ only in what follows from other nodes and agents."""

    @property
    def open(self) -> bool:
        """True if its document is still to be handed out. What nobody reads, and what is a node's first, is handed out at once."""
        return self.given not in ("", self.wanted) and bool(self.pod) and not self.alike

    @property
    def well(self) -> bool:
        """True if a wrong document would take something away."""
        return self.pod == "Ready" and (self.answer is None or self.answer.state == "Ready")

    @property
    def failed(self) -> bool:
        """True if it cannot do what it was given."""
        return self.pod == "Failed" or (self.answer is not None and self.answer.state == "Failed")

    @property
    def settled(self) -> bool:
        """True if what it was given is in force, or nobody is there whom one could wait for."""
        said = self.answer is not None and self.answer.state == "Ready" and self.answer.hash == self.given
        return not self.pod or (self.pod == "Ready" and said)


@dataclass(frozen=True, slots=True)
class Rollout:
    """What becomes of one site's documents in a pass."""

    waiting: Mapping[str, str] = field(default_factory=dict)
    """Nodes that keep the document they have -> why."""
    aborted: bool = False
    """True if they do so until somebody acts."""
    busy: frozenset[str] = frozenset()
    """Nodes that have the new document and have not said that it is in force."""


def decide(nodes: Mapping[str, Standing], limit: int) -> Rollout:
    """Who waits. `limit`: how many nodes may be busy with a new document at a time."""
    waiting = sorted(name for name, node in nodes.items() if node.open)
    busy = frozenset(name for name, node in nodes.items() if not node.open and not node.settled)
    failed = sorted(name for name in busy if nodes[name].failed)
    if not waiting:
        return Rollout(busy=busy)
    if failed:
        answer = nodes[failed[0]].answer
        why = f"the roll-out has stopped, because {failed[0]} failed with it" + (f": {answer.message}" if answer and answer.message else "")
        return Rollout(dict.fromkeys(waiting, why), True, busy)
    # Nodes that are not well come last and all at once: nobody waits for them, who may be away for long.
    well = [name for name in waiting if nodes[name].well]
    next_ = well[: max(0, limit - len(busy))] if well else waiting
    told = frozenset([*busy, *next_])
    why = f"its turn comes after {', '.join(sorted(told)[:3])}" + (f" and {len(told) - 3} more" if len(told) > 3 else "")
    return Rollout({name: why for name in waiting if name not in next_}, False, told)


def max_unavailable(site: Object, total: int) -> int:
    """How many nodes may be busy at a time: a number, or a share of `total` rounded down; at least one."""
    value = ((site.get("spec") or {}).get("update") or {}).get("maxUnavailable", DEFAULT_MAX_UNAVAILABLE)
    text = str(value)
    return max(1, total * int(text[:-1]) // 100 if text.endswith("%") else int(text))


def plan_rollouts(seen: Seen, compiled: sos_compile.Compiled, answers: Mapping[str, NodeAnswer]) -> dict[str, Rollout]:
    """The roll-outs of all sites by name."""
    pods = {(daemon_set_of(p), str((p.get("spec") or {}).get("nodeName"))): p for p in sorted(seen.pods, key=leaving, reverse=True)}
    found = {}
    for site in seen.of(SITE.kind):
        name = site["metadata"]["name"]
        child = naming.node(PREFIX, name)
        given = _given(seen, child)
        nodes = {
            node: _standing(document, given.get(node, ""), pods.get((child, node)), answers)
            for node, document in compiled.nodes.items()
            if document["site"] == name
        }
        if nodes and not leaving(site):
            found[name] = decide(nodes, max_unavailable(site, len(nodes)))
    return found


def _standing(document: Mapping[str, Any], text: str, pod: Object | None, answers: Mapping[str, NodeAnswer]) -> Standing:
    before, wanted = _parse(text), str(document["hash"])
    given = str(before.get("hash") or "")
    if pod is None:
        return Standing(wanted, given)
    return Standing(wanted, given, pod_state(pod).state, answers.get(pod["metadata"]["uid"]), _own(before) == _own(document))


def _own(document: Mapping[str, Any]) -> dict[str, Any]:
    """A node-config without what follows from other nodes and agents."""
    flows = [flow for flow in document.get("baseFlows") or [] if not _NAMES_OTHERS.search(str(flow.get("match")))]
    return {key: document.get(key) for key in ("version", "state", "siteID", "bridge", "uplinks", "controllers")} | {"baseFlows": flows}


def _given(seen: Seen, child: str) -> dict[str, str]:
    data = (seen.child(CONFIG_MAP.kind, child) or {}).get("data") or {}
    return {name.removesuffix(".json"): text for name, text in data.items()}


def _parse(text: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text) if text else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def withhold(compiled: sos_compile.Compiled, seen: Seen, rollouts: Mapping[str, Rollout]) -> sos_compile.Compiled:
    """The compilation with the documents that nodes have in place of those they wait for."""
    nodes, kept = dict(compiled.nodes), {}
    for site, rollout in rollouts.items():
        child = naming.node(PREFIX, site)
        given = _given(seen, child)
        kept[child] = {f"{node}.json": given[node] for node in rollout.waiting}
        nodes |= {node: dict(_parse(given[node])) for node in rollout.waiting}
    manifests = tuple(_with_kept(m, kept.get(m["metadata"]["name"], {})) for m in compiled.manifests)
    return replace(compiled, nodes=nodes, manifests=manifests)


def _with_kept(manifest: Object, kept: Mapping[str, str]) -> Object:
    if not kept or manifest["kind"] != CONFIG_MAP.kind:
        return manifest
    return {**manifest, "data": {**manifest["data"], **kept}}


def urgent_pods(seen: Seen, rollouts: Mapping[str, Rollout]) -> frozenset[str]:
    """Uids of pods whose word a roll-out waits for."""
    going = {naming.node(PREFIX, site): rollout for site, rollout in rollouts.items() if rollout.waiting}
    wanted = {(child, node) for child, rollout in going.items() for node in (*rollout.busy, *rollout.waiting)}
    return frozenset(p["metadata"]["uid"] for p in seen.pods if (daemon_set_of(p), str((p.get("spec") or {}).get("nodeName"))) in wanted)
