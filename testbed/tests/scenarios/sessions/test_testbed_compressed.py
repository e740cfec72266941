"""Bytes on the links during a transfer whose service requests compression.

client -- edge1 ======= core1 ------- edge2 -- server
            |    wan0                   |
         agent1                      agent2
"""

import re
import subprocess

import pytest
from conftest import accepted, eventually, metrics, outcome, peer, with_service
from sos_compile.model.world import Loaded
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

COVERED_PORT = "5001"
SIZE = 60_000_000
WIRES = (("edge1", "wan0"), ("edge1", "wan1"))
CHANGED_S = 20.0
DECLARED = "sos_agent_config_generation"


def metric(net: Lab, agent: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", metrics(net, agent), flags=re.MULTILINE)
    return float(found[1]) if found else -1.0


def received(net: Lab) -> int:
    """Bytes received from the other site so far."""
    commands = (net.exec_argv(part, ("cat", f"/sys/class/net/{interface}/statistics/rx_bytes")) for part, interface in WIRES)
    return sum(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for command in commands)


def ask_for(net: Lab, before: tuple[Loaded, ...], compression: str) -> None:
    """Declare this compression, and wait until both agents have read their new configuration."""
    known = {agent: metric(net, agent, DECLARED) for agent in ("agent1", "agent2")}
    net.declare(with_service(before, transport={"compression": compression}))
    eventually("new documents", lambda: all(metric(net, agent, DECLARED) > known[agent] for agent in known), CHANGED_S)


def download(net: Lab, command: str) -> tuple[int, str]:
    """Bytes received over the links while the server sent SIZE bytes, and the digest of these SIZE bytes."""
    took, began = accepted(net), received(net)
    server = peer(net, "server", command, COVERED_PORT, str(SIZE))
    measure.wait_listening(net, "server", int(COVERED_PORT))
    client = peer(net, "client", "fetch", measure.address(net, "server"), COVERED_PORT)
    sent, got = outcome(server, 120), outcome(client, 120)
    assert (sent["sent"], got["bytes"], got["end"]) == (SIZE, SIZE, "eof")
    assert accepted(net) - took == 1
    return received(net) - began, got["sha256"]


@pytest.mark.slow
def test_compressible_data_uses_less_bandwidth_and_arrives_intact(net: Lab) -> None:
    before = net.objects
    plain, digest = download(net, "serve")
    assert plain > SIZE, "the data is not compressed yet"

    ask_for(net, before, "Adaptive")
    compressed, same = download(net, "serve")
    assert same == digest
    assert compressed < SIZE / 2
    done = [metric(net, "agent2", f"sos_agent_compressed_{each}bytes_total") for each in ("", "wire_")]
    assert done[0] > SIZE / 2
    assert done[1] < done[0] / 2
    assert metric(net, "agent2", "sos_agent_compression_seconds_total") > 0

    noise, _ = download(net, "noise")
    assert noise > SIZE
    assert metric(net, "agent2", "sos_agent_compressed_bytes_total") == done[0], "incompressible data is sent uncompressed"

    ask_for(net, before, "None")
    assert download(net, "serve")[0] > SIZE
