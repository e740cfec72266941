"""Pairs of sites to diagnose by their agents, and whether a controller is needed, too. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sos_kubectl.diagnose.routed.facts import as_config
from sos_kubectl.targets.agent_configs import Agent

Pair = tuple[str, str]


def routed_pairs(agents: Sequence[Agent], sites: Pair, service: str) -> list[Pair]:
    """Return the pairs of sites without bridges: the two sites, or each pair with a service (with `service`, only this service's pair)."""
    routed = [agent for agent in agents if agent.routed]
    if sites[0]:
        here = any(agent.site in sites for agent in routed)
        return [sites] if here or (routed and len(routed) == len(agents)) else []
    config = as_config(routed)
    declared = [each for each in config["services"] if service in ("", each["id"])]
    return list(dict.fromkeys((each["from"]["site"], each["to"]["site"]) for each in declared))


def asks_controller(agents: Sequence[Agent], sites: Pair, service: str, direct: Sequence[Pair]) -> bool:
    """Return whether a controller knows other pairs: not if the pair or service is found, or if no site has a bridge."""
    if direct and (sites[0] or service):
        return False
    return not agents or any(not agent.routed for agent in agents)
