"""Endpoints of a lab's parts, stored as `reach` in lab.json, for programs without knowledge of labs, such as `kubectl sos --lab`."""

from __future__ import annotations

from typing import Any

from sos_testbed.core import controllers
from sos_testbed.core.model import Host, Router, Topology
from sos_testbed.core.realise import LabPlan
from sos_testbed.lifecycle.declare import Documents


def describe(topology: Topology, plan: LabPlan, documents: Documents) -> dict[str, Any]:
    """Controllers, hosts and agents by name, each with its namespace and an address, URL or pid file; also the path of sos-probe. Pure."""
    control = plan.netns("ctl")
    urls = {name: f"http://{address}:{controllers.API_PORT}" for name, address in controllers.addresses(plan.controllers).items()}
    machines: list[Host | Router] = [*topology.hosts, *topology.routers]
    hosts = [(machine.name, str(machine.address.ip)) for machine in machines]
    return {
        "probe": plan.programs.probe,
        "controllers": {name: {"netns": control, "url": url} for name, url in urls.items()},
        "hosts": [{"name": name, "netns": plan.netns(name), "address": address} for name, address in hosts],
        "agents": [
            {
                "id": documents.agents[place.key]["agentId"],
                "name": place.key,
                "node": place.switch,
                "site": documents.agents[place.key]["site"]["name"],
                "netns": plan.netns(place.name),
                "metrics": "http://127.0.0.1:" + documents.agents[place.key]["metricsAddress"].rpartition(":")[2] + "/metrics",
                "pidFile": str(plan.root / "pids" / place.name),
            }
            for place in topology.agents
            if place.key in documents.agents
        ],
    }
