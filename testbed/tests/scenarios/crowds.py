"""Runs of programs/crowd.py at hosts of a lab: echo servers, held connections, and new connections one after another."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conftest import PROGRAMS
from sos_testbed.lifecycle.lab import Lab

CROWD = PROGRAMS / "crowd.py"


class Program:
    """A running crowd.py at a host, which answers a command with one line of JSON. `first`: its first line."""

    def __init__(self, net: Lab, host: str, *arguments: object) -> None:
        argv = net.exec_argv(host, (sys.executable, str(CROWD), *map(str, arguments)))
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first = self._said()

    def ask(self, word: str) -> Any:
        """Send a command; return the program's answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._said()

    def close(self) -> None:
        """Kill the program; a second call is harmless."""
        self._process.kill()
        self._process.wait()

    def _said(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self._process.args} has ended"
        return json.loads(line)


@contextmanager
def running(net: Lab, host: str, *arguments: object) -> Iterator[Program]:
    """Run the program during the block."""
    program = Program(net, host, *arguments)
    try:
        yield program
    finally:
        program.close()


def whole(said: Any, count: int) -> float:
    """Check that no connection is broken; return the longest wait for an echo."""
    assert (said["whole"], said["broken"], said["silent"]) == (count, {}, 0), said
    return float(said["pause_s"])
