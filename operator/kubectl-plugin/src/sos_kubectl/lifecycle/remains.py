"""Nodes that have, or may have, a bridge while no operator runs: their names, and messages about them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sos_kubectl.base.labels import OPERATORS_CHILDREN
from sos_kubectl.lifecycle.removal import Json

NODE_SELECTOR = f"{OPERATORS_CHILDREN},app.kubernetes.io/component=node"
"""Pods of switches, and the ConfigMaps of their node-configs."""
SITE_LABEL = "sos.network/site"
FINALIZER = "sos.network/site-cleanup"
SILENCE_S = 130
"""Without a poll of the operator for 120 s, a node process removes its bridge when its pod is deleted (spec/node-config.md clause 45)."""
NAMED_MAX = 10


@dataclass(frozen=True, slots=True)
class Remains:
    """What is known about the nodes of sites. A node is `ready` if its switch pod is."""

    ready: dict[str, set[str]]
    unready: dict[str, set[str]]
    """Site -> nodes whose switch pod is missing or not ready, although they have a node-config."""

    def of(self, site: str) -> list[str]:
        """All nodes of a site."""
        return sorted(self.ready.get(site, set()) | self.unready.get(site, set()))

    @property
    def ready_nodes(self) -> list[str]:
        """Nodes of all sites with a ready switch pod."""
        return sorted(set[str]().union(*self.ready.values()))

    @property
    def unready_nodes(self) -> list[str]:
        """Nodes of all sites without one."""
        return sorted(set[str]().union(*self.unready.values()))


def remains(items: Iterable[Json]) -> Remains:
    """Read the nodes from pods and ConfigMaps of NODE_SELECTOR."""
    ready, known = dict[str, set[str]](), dict[str, set[str]]()
    for item in items:
        site = item["metadata"]["labels"].get(SITE_LABEL, "")
        if item["kind"] == "Pod":
            named = {item["spec"]["nodeName"]} if item["spec"].get("nodeName") else set[str]()
            if _is_ready(item):
                ready.setdefault(site, set()).update(named)
        else:
            named = {file.removesuffix(".json") for file in item.get("data") or ()}
        known.setdefault(site, set()).update(named)
    unready = {site: nodes - ready.get(site, set()) for site, nodes in known.items()}
    return Remains(ready, unready)


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def is_held_up(site: Json) -> bool:
    """True for a SosSite in deletion that waits for its nodes."""
    meta = site["metadata"]
    return site["kind"] == "SosSite" and bool(meta.get("deletionTimestamp")) and FINALIZER in (meta.get("finalizers") or ())


def held_up(site: str, found: Remains, *, recorded: bool, stopped: str = "") -> str:
    """Message about a SosSite in deletion while no operator runs. `stopped`: the operator's Deployment, if there is one."""
    nodes = found.of(site)
    waits = f"it waits for the bridges of {named(nodes)} to be removed" if nodes else "no node of it is known"
    if stopped:
        return f"being deleted, but {stopped} is not available: {waits}"
    remedy = "kubectl sos uninstall" if recorded else "kubectl sos uninstall --abandon"
    return f"being deleted, but no operator runs: {waits}. Install the chart again, or remove everything: {remedy}"


def named(nodes: list[str]) -> str:
    """The first nodes, and the number of the rest."""
    rest = len(nodes) - NAMED_MAX
    return ", ".join(nodes[:NAMED_MAX]) + (f" and {rest} more" if rest > 0 else "")


def finalizers_without_ours(site: Json) -> Json | None:
    """Merge patch that removes our finalizer from a SosSite; None without it. The resource version protects other clients' finalizers."""
    meta = site["metadata"]
    present = meta.get("finalizers") or []
    if FINALIZER not in present:
        return None
    return {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": [name for name in present if name != FINALIZER]}}


def after_abandonment(found: Remains, waited_s: float) -> list[str]:
    """Sentences about the bridges of nodes after their pods were deleted without waiting for them."""
    removed = found.ready_nodes if waited_s >= SILENCE_S else []
    doubtful = sorted({*found.unready_nodes, *found.ready_nodes} - set(removed))
    said = []
    if removed:
        said.append(f"their bridges are removed while their pods end, within a minute: {named(removed)}")
    if doubtful:
        said.append(f"may keep a bridge: {named(doubtful)}")
        said.append("to remove a bridge, reboot its node, or install the chart and the site again and delete the site")
    return said
