"""Intake in pods: agents open their sockets inside the network namespaces of client and server, which need no route to an agent.

[client] 10.1.0.11 -- agent1 ==wan0, 40 ms== agent2 -- 10.2.0.11 [server]          [ ]: a pod of the agent's node
                             ==wan1, 80 ms==
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import FAILED, RATE_BPS, RTT_US, accepted, armed, eventually, explain, mend, metrics, outcome, peer, say, transfers
from sos_testbed.core.topology import PathOptions
from sos_testbed.core.web import PLAIN_PORT, SOS_PORT
from sos_testbed.lifecycle import faults
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import PODS, ROUTED_WAN, Lab, Options
from sos_testbed.lifecycle.runner import run
from sos_testbed.lifecycle.time_factor import limit_s
from sos_testbed.measurements import measure

SIZE = 8_000_000
COVERED_PORT = "5003"
RATE = 2_000_000  # bytes per second


@pytest.fixture(scope="module")
def pods() -> Iterator[Lab]:
    paths = [PathOptions(rate_bps=RATE_BPS, rtt_us=rtt_us) for rtt_us in (RTT_US, 2 * RTT_US)]
    built = labs.up(Options(topology="routed-wan", path1=paths[0], path2=paths[1], examples=(ROUTED_WAN, PODS)), say)
    yield built
    built.down()


@pytest.fixture
def net(pods: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    eventually("agents in their pods", lambda: ready(pods))
    yield pods
    if request.node.stash.get(FAILED, False):
        explain(pods)
    mend(pods)
    labs.wait_ready(pods, pods.documents)


def ready(net: Lab) -> bool:
    """True if both agents have entered their pods, and the client's agent has met its peer."""
    return armed(net) and all("sos_agent_intercepted_pods 1\n" in metrics(net, agent) for agent in ("agent1", "agent2"))


@pytest.mark.parametrize("port", [SOS_PORT, PLAIN_PORT])
def test_transfers_between_pods_keep_both_addresses(net: Lab, tmp_path: Path, port: int) -> None:
    transfers(net, port, SIZE, tmp_path / "copy")


def test_running_connection_is_inside_both_pods(net: Lab) -> None:
    """Find the agents' ends of a connection inside the pods: client and server see no other address than each other's."""
    size = round(limit_s(3) * RATE)  # lasts until the sockets have been listed, also on a slow machine
    server = peer(net, "server", "serve", COVERED_PORT, str(size), str(RATE))
    measure.wait_listening(net, "server", int(COVERED_PORT))
    client = peer(net, "client", "fetch", measure.address(net, "server"), COVERED_PORT)
    eventually("two ends in each pod", lambda: [ends(net, host) for host in ("client", "server")] == [2, 2], within_s=5)
    got, sent = outcome(client, 60), outcome(server, 60)
    assert (got["bytes"], got["end"], sent["client"]) == (size, "eof", got["own"])


def ends(net: Lab, host: str) -> int:
    """Established sockets of a pod on the covered port, its own and the agent's."""
    named = f"( sport = :{COVERED_PORT} or dport = :{COVERED_PORT} )"
    return len(run(net.exec_argv(host, ("ss", "-HtnO", "state", "established", named)), what="ss").splitlines())


def test_new_connections_are_plain_after_the_clients_agent_is_killed(net: Lab, tmp_path: Path) -> None:
    faults.agent(net, "agent1", up=False)
    payload = net.root / "www" / "tiny"
    labs.make_payload(payload, 50_000)

    def fetched() -> bool:
        done = measure.download(net, measure.Request(path=payload, max_time_s=3), tmp_path / "copy")
        return done.complete and done.server_saw == done.client_address

    assert eventually("a plain connection", fetched)
    faults.agent(net, "agent1", up=True)
    eventually("the agent in its pod", lambda: ready(net))
    before = accepted(net)
    assert fetched()
    assert accepted(net) == before + 1, "accelerated again"
