"""Simultaneous taps (tap.py) at several interfaces of a lab, and traffic for them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conftest import PROGRAMS, outcome, peer
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.lifecycle.time_factor import limit_s
from sos_testbed.measurements import measure

TAP = PROGRAMS / "tap.py"
SIZE = 3_000_000
KINDS = ("syn", "data", "ack")


class Tap:
    """A listening tap; `stop` stores its report in `result`."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self._program = program
        self.result: dict[str, Any] = {}

    def stop(self) -> None:
        output, _ = self._program.communicate(timeout=limit_s(60))
        self.result = json.loads(output.strip().splitlines()[-1])


@contextmanager
def tapped(net: Lab, places: list[tuple[str, str]]) -> Iterator[dict[tuple[str, str], Tap]]:
    """Run taps at these (part, interface) pairs; their reports are complete after the block."""
    programs = {}
    try:
        for part, interface in places:
            argv = net.exec_argv(part, (sys.executable, str(TAP), interface))
            programs[part, interface] = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for program in programs.values():
            assert program.stdout is not None
            assert program.stdout.readline() == "listening\n"
        taps = {place: Tap(program) for place, program in programs.items()}
        yield taps
        for one in taps.values():
            one.stop()
    finally:
        for program in programs.values():
            program.kill()
            program.wait()


def talk(net: Lab, port: str) -> None:
    """Send 3 MB from the client and receive the server's answer of the same size."""
    server = peer(net, "server", "echo", port)
    measure.wait_listening(net, "server", int(port))
    client = peer(net, "client", "ask", measure.address(net, "server"), port, str(SIZE))
    got, answered = outcome(client, 60), outcome(server, 60)
    assert (got["bytes"], got["end"], got["sha256"]) == (SIZE, "eof", answered["sha256"])


def agents(net: Lab) -> dict[str, tuple[str, str]]:
    """Interface and address of each agent by node."""
    found = {}
    for document in net.documents.agents.values():
        interface = document["interface"]
        found[document["node"]] = (interface["name"], interface["address"].split("/")[0])
    return found


def saw(taps: list[Tap], source: str) -> set[str]:
    return {kind for one in taps for kind in KINDS if one.result["seen"].get(f"{source} {kind}")}
