"""Connections survive a real pause of a quarter of an hour: by a download's reader, by an upload's server, and on an idle connection.

client -- edge1 ======= core1 ------- edge2 -- server
            |    40 ms                  |
         agent1                      agent2
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import PEERS, PROGRAMS, accepted
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

PROGRAM = PROGRAMS / "pausing.py"
PAUSE_S = 900.0
BEGUN_S = 10.0
"""Time until connections are established and the data before the pause has been read."""
END_S = 120.0
PORTS = {"download": 200, "upload": 201, "idle": 202}
COVERED, PLAIN = 5000, 6000


@contextmanager
def away(net: Lab) -> Iterator[None]:
    """Drop all packets of the idle connections at the server host."""
    ports = ", ".join(str(first + PORTS["idle"]) for first in (COVERED, PLAIN))
    chains = (
        f"chain i {{ type filter hook input priority 0; tcp dport {{ {ports} }} drop; }}",
        f"chain o {{ type filter hook output priority 0; tcp sport {{ {ports} }} drop; }}",
    )
    subprocess.run(net.exec_argv("server", ("nft", f"table ip away {{ {' '.join(f'{chain};' for chain in chains)} }}")), check=True)
    try:
        yield
    finally:
        subprocess.run(net.exec_argv("server", ("nft", "delete table ip away")), check=True)


@pytest.mark.long
def test_connections_survive_a_pause_of_a_quarter_of_an_hour(net: Lab) -> None:
    clients, before = {}, accepted(net)
    for kind, offset in PORTS.items():
        for first in (PLAIN, COVERED):
            words = (str(first + offset), str(PAUSE_S))
            PEERS.append(subprocess.Popen(net.exec_argv("server", (sys.executable, str(PROGRAM), "serve", kind, *words)), text=True))
            measure.wait_listening(net, "server", first + offset)
            argv = (sys.executable, str(PROGRAM), "ask", kind, *words, measure.address(net, "server"))
            clients[kind, first] = subprocess.Popen(net.exec_argv("client", argv), stdout=subprocess.PIPE, text=True)
    began = time.monotonic()
    PEERS.extend(clients.values())
    time.sleep(BEGUN_S)
    with away(net):
        time.sleep(began + PAUSE_S - BEGUN_S - time.monotonic())  # the pause under test
    seen = {name: json.loads(client.communicate(timeout=BEGUN_S + END_S)[0]) for name, client in clients.items()}
    assert accepted(net) - before == len(PORTS)
    for kind in PORTS:
        plain, covered = seen[kind, PLAIN], seen[kind, COVERED]
        assert plain == covered == {"error": "", "complete": True}, kind
