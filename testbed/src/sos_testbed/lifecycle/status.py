"""State of a lab, as data and as lines for a terminal."""

from __future__ import annotations

from typing import Any

from sos_testbed.core import controllers
from sos_testbed.core.model import AgentPlace, LabError, Shape
from sos_testbed.lifecycle import northbound, process
from sos_testbed.lifecycle.lab import Lab


def collect(lab: Lab) -> dict[str, Any]:
    """Status of one lab for `./lab status --json`; unavailable parts are null, with an `error` key."""
    try:
        topology = lab.topology
    except LabError as error:
        return {"id": lab.root.name, "name": lab.name, "error": str(error)}
    found: dict[str, Any] = {
        "id": lab.root.name,
        "name": lab.name,
        "topology": topology.name,
        "folder": str(lab.root),
        "links": [{"name": wire.name, **_shape(wire.shape)} for wire in topology.wires],
        "hosts": {host.name: str(host.address) for host in topology.hosts},
        "programs": {name: process.find(lab.runner.pid_file(name)) is not None for name in lab.spawns()},
        "controllers": dict.fromkeys(lab.plan.controllers),
    }
    for name in lab.plan.controllers:
        try:
            found["controllers"][name] = northbound.get(lab.plan, "/v1/status", name)
        except LabError as error:
            found["error"] = str(error)
    if not lab.plan.controllers:
        found["agents"] = {place.name: _agent(lab, place) for place in topology.agents}
    return found


def _agent(lab: Lab, place: AgentPlace) -> dict[str, Any]:
    """Status of an agent without a controller; only an `error` if the agent does not answer."""
    try:
        status: dict[str, Any] = northbound.agent_status(lab.plan, place.name, lab.documents.agents[place.key])
    except (LabError, KeyError) as error:
        return {"error": str(error)}
    return status


def lines(found: dict[str, Any]) -> list[str]:
    """Format a lab's status as lines of text."""
    if "topology" not in found:
        return [f"lab {found['name']}: {found['error']}"]
    text = [f"lab {found['name']} ({found['topology']}, {found['folder']})"]
    text += ["  hosts     " + ", ".join(f"{name} {address}" for name, address in found["hosts"].items())]
    text += [f"  link      {_link_line(link)}" for link in found["links"]]
    stopped = [name for name, runs in found["programs"].items() if not runs]
    text.append(
        f"  programs  {len(found['programs']) - len(stopped)} running" + (f", not running: {', '.join(stopped)}" if stopped else "")
    )
    for name, status in found["controllers"].items():
        if len(found["controllers"]) > 1 or status is None:
            text.append(f"  {controllers.program(name)}" + ("" if status is not None else f": {found['error']}"))
        text += _told(status) if status is not None else []
    text += [line for name, status in found.get("agents", {}).items() for line in _agent_lines(name, status)]
    return text


def _agent_lines(name: str, status: dict[str, Any]) -> list[str]:
    if "error" in status:
        return [f"  agent     {name}: {status['error']}"]
    services = ", ".join(f"{one['id']} ({one['role']}{'' if one['ready'] else ', not ready'})" for one in status["services"])
    unwilling = "" if status["willing"] else " (unwilling)"
    return [f"  agent     {name} at {status['site']}{unwilling}, {status['sessions']} sessions, services: {services or 'none'}"]


def _told(status: dict[str, Any]) -> list[str]:
    """Lines of text about a controller's status."""
    connected = sum(1 for datapath in status["datapaths"] if datapath["connected"])
    text = [f"  switches  {connected} of {len(status['datapaths'])} connected, {status['links']} links"]
    text += [
        f"  agent     {agent['name']} at {agent['site']}, {agent['address']}" + ("" if agent["willing"] else " (unwilling)")
        for agent in status["agents"]
    ]
    for service in status["services"]:
        why = "" if service["state"] == "Programmed" else f" ({service['reason']}: {service['message']})"
        needed = f"{len(service['acknowledged'])} of {len(service['needed'])} switches"
        text.append(f"  service   {service['id']} {service['state']}{why}, {needed}, {service['sessions']} sessions")
    return text


def _shape(shape: Shape | None) -> dict[str, Any]:
    if shape is None:
        return {}
    return {"rate_bps": shape.rate_bps, "rtt_ms": shape.rtt_us / 1000, "loss": shape.loss, "queue_bytes": shape.queue_bytes}


def _link_line(link: dict[str, Any]) -> str:
    if "rate_bps" not in link:
        return f"{link['name']}: cable"
    rate, rtt = link["rate_bps"] / 1e6, link["rtt_ms"]
    return f"{link['name']}: {rate:g} Mbit/s, {rtt:g} ms, loss {link['loss']:.2%}, queue {link['queue_bytes']} bytes"
