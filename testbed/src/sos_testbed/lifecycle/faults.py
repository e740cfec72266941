"""Injection and repair of faults in a lab."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

from sos_testbed.core import controllers
from sos_testbed.core.model import LabError, Shape
from sos_testbed.core.realise import control_socket
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.lifecycle.runner import run

_CONTROL_TIMEOUT_S = 5.0
_MAX_ANSWER = 1 << 20


def link(lab: Lab, name: str, *, up: bool, silent: bool) -> None:
    """Set both ends of a wire down. With `silent`, the ports stay up and the emulator drops all packets instead. `up` repairs either
    fault."""
    wire = lab.topology.wire(name)
    if silent:
        if wire.shape is None:
            names = ", ".join(shaped.name for shaped in lab.topology.shaped())
            raise LabError(f"{wire.name} is a plain cable; only {names} can lose packets silently")
        emulator(lab, {"op": "up" if up else "down", "link": wire.name})
        return
    for end in (wire.a, wire.b):
        namespace = lab.plan.netns(end.switch)
        run(("ip", "-n", namespace, "link", "set", end.port, "up" if up else "down"), what=f"link {end}")


def switch(lab: Lab, name: str, *, up: bool) -> None:
    """Kill a switch's ovs-vswitchd, or start it again."""
    names = [candidate.name for candidate in lab.topology.switches]
    if name not in names:
        raise LabError(f"no switch {name!r}; there are {', '.join(names)}")
    _program(lab, f"{name}-ovs", up=up)


def agent(lab: Lab, name: str, *, up: bool) -> None:
    """Kill an agent, or start it again."""
    names = [place.name for place in lab.topology.agents]
    if name not in names:
        raise LabError(f"no agent {name!r}; there are {', '.join(names)}")
    _program(lab, name, up=up)


def controller(lab: Lab, name: str, *, up: bool) -> None:
    """Kill a controller, or start it again."""
    known = [controllers.program(one) for one in lab.plan.controllers]
    if name not in known:
        raise LabError(f"no controller {name!r}; there are {', '.join(known)}")
    _program(lab, name, up=up)


FAULTS: dict[str, Callable[..., None]] = {"link": link, "switch": switch, "agent": agent, "controller": controller}


def reshape(lab: Lab, name: str, shape: Shape) -> None:
    """Change rate, delay, loss and queue of an emulated wire at run time."""
    wire = lab.topology.wire(name)
    settings = {
        "rate": f"{shape.rate_bps}bit",
        "delay": f"{shape.rtt_us * 500}ns",
        "loss": f"{shape.loss:.9f}",
        "queue": str(shape.queue_bytes),
    }
    emulator(lab, {"op": "set", "link": wire.name, **settings})


def emulator(lab: Lab, request: dict[str, Any]) -> Any:
    """Send a request to the emulator's control socket and return its answer; both are one line of JSON."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONTROL_TIMEOUT_S)
        try:
            connection.connect(str(control_socket(lab.plan)))
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(_line(connection))
        except (OSError, ValueError) as error:
            raise LabError(f"link emulator: {error}") from None
    if not answer.get("ok"):
        raise LabError(f"link emulator: {answer.get('error', answer)}")
    return answer


def _line(connection: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"\n") and len(received) < _MAX_ANSWER:
        chunk = connection.recv(65536)
        if not chunk:
            break
        received += chunk
    return received


def _program(lab: Lab, name: str, *, up: bool) -> None:
    if up:
        lab.start(name)
    else:
        lab.kill(name)
