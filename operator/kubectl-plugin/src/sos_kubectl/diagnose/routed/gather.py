"""Gather facts for `kubectl sos diagnose` between sites without bridges: configurations first, then every agent's answer and counters."""

from __future__ import annotations

from collections.abc import Sequence

from sos_kubectl.base.source import SourceError
from sos_kubectl.diagnose.facts import Asked, Facts
from sos_kubectl.diagnose.routed.facts import RoutedFacts, as_config
from sos_kubectl.targets.agent_configs import Agent
from sos_kubectl.targets.agents import Agents


def gather(place: Agents, agents: Sequence[Agent], asked: Asked) -> RoutedFacts:
    """Gather all facts about two sites from their agents in this cluster. SourceError if a site is unknown."""
    routed = [agent for agent in agents if agent.routed]
    config = as_config(routed)
    names = sorted(site["name"] for site in config["sites"])
    for wanted in (asked.from_site, asked.to_site):
        if wanted not in names:
            raise SourceError(f"no site {wanted} without a bridge; there are {', '.join(names) or 'none'}")
    near = [agent for agent in routed if agent.site in (asked.from_site, asked.to_site)]
    common = Facts(asked=asked, config=config, objects=place.objects())
    return RoutedFacts(common, near, place.answers(near), place.metrics(near))
