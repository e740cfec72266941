"""Wiretap of a transfer between two sites, before and after its service requests encryption.

client -- edge1 ======= core1 ------- edge2 -- server
            |    wan0                   |
         agent1                      agent2
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import PROGRAMS, accepted, active, eventually, metrics, outcome, peer, with_service
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

WIRETAP = PROGRAMS / "wiretap.py"
WIRES = (("edge1", "wan0"), ("edge1", "wan1"))
COVERED_PORT = "5001"
RATE = 1_500_000
SIZE = 45_000_000  # thirty seconds: long enough for agents to read their configuration and replace their streams on a slow machine
LOOK_S = 2.0
CHANGED_S = 20.0


class Seen:
    """Sum of the reports of all stopped wiretaps."""

    data = 0
    readable = 0


@contextmanager
def wiretaps(net: Lab) -> Iterator[Seen]:
    """Run wiretaps at the links between the sites during the block."""
    programs, seen = [], Seen()
    try:
        for part, interface in WIRES:
            argv = net.exec_argv(part, (sys.executable, str(WIRETAP), interface, str(SIZE)))
            programs.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for program in programs:
            assert program.stdout is not None
            assert program.stdout.readline() == "listening\n"
        yield seen
        for program in programs:
            found = json.loads(program.communicate(timeout=60)[0].strip().splitlines()[-1])
            seen.data += found["data"]
            seen.readable += found["readable"]
    finally:
        for program in programs:
            program.kill()
            program.wait()


def streams(net: Lab, agent: str) -> tuple[int, int]:
    """Numbers of an agent's streams and of its encrypted streams."""
    page = metrics(net, agent)
    found = [re.search(rf"^{name} (\d+)$", page, flags=re.MULTILINE) for name in ("sos_agent_streams", "sos_agent_streams_encrypted")]
    total, encrypted = (int(each[1]) if each else -1 for each in found)
    return total, encrypted


def all_encrypted(net: Lab) -> bool:
    return all(0 < total == encrypted for total, encrypted in (streams(net, name) for name in ("agent1", "agent2")))


def none_encrypted(net: Lab) -> bool:
    return all(total > 0 and not encrypted for total, encrypted in (streams(net, name) for name in ("agent1", "agent2")))


@pytest.mark.slow
def test_encryption_applies_to_a_running_transfer(net: Lab) -> None:
    before, took = net.objects, accepted(net)
    server = peer(net, "server", "serve", COVERED_PORT, str(SIZE), str(RATE))
    measure.wait_listening(net, "server", int(COVERED_PORT))
    client = peer(net, "client", "fetch", measure.address(net, "server"), COVERED_PORT)
    eventually("a session", lambda: active(net))
    assert none_encrypted(net)
    with wiretaps(net) as plain:
        time.sleep(LOOK_S)
    assert plain.readable > 0, "the wiretap recognizes cleartext"

    net.declare(with_service(before, transport={"encryption": "TLS"}))
    eventually("encrypted streams at both agents", lambda: all_encrypted(net), CHANGED_S)
    with wiretaps(net) as encrypted:
        time.sleep(LOOK_S)
        assert client.poll() is None, "the transfer still runs during the wiretap"
    assert encrypted.data > 0
    assert encrypted.readable == 0

    sent, got = outcome(server, 120), outcome(client, 120)
    assert (got["bytes"], got["end"], sent["client"]) == (SIZE, "eof", got["own"])
    assert accepted(net) - took == 1, "one session at the same agent for the whole transfer"

    net.declare(before)
    eventually("unencrypted streams at both agents", lambda: none_encrypted(net), CHANGED_S)
