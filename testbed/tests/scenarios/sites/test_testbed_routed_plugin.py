"""`kubectl sos drain`, `trace` and `diagnose` with real agents of sites without bridges, where no controller runs.

client 10.1.0.11 -- agent1 ==wan0== agent2 -- 10.2.0.11 server
                           ==wan1==
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import FAILED as FAILED_KEY
from conftest import eventually, explain, mend, outcome, peer, say
from sos_testbed.core.topology import PathOptions
from sos_testbed.core.web import PLAIN_PORT, SOS_PORT
from sos_testbed.lifecycle import faults, northbound
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab, Options
from sos_testbed.measurements import measure

KUBECTL_SOS = Path(sys.executable).with_name("kubectl-sos")
PORT, BYTES, RATE = "5003", 40_000_000, 2_000_000
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def routes() -> Iterator[Lab]:
    paths = [PathOptions(rate_bps=100_000_000, rtt_us=20_000) for _ in range(2)]
    built = labs.up(Options(topology="routed-wan", path1=paths[0], path2=paths[1], name="routed-plugin"), say)
    yield built
    built.down()


@pytest.fixture
def net(routes: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    yield routes
    if request.node.stash.get(FAILED_KEY, False):
        explain(routes)
    mend(routes)
    labs.wait_ready(routes, routes.documents)


def plugin(net: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = (str(KUBECTL_SOS), *arguments, "--lab", net.name)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    print(done.stdout, done.stderr)
    return done


def trace(net: Lab, port: int = SOS_PORT) -> dict[str, Any]:
    ends = (str(measure.address(net, "client")), str(measure.address(net, "server")))
    done = plugin(net, "trace", *ends, str(port), "-o", "json")
    found: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == (found["outcome"] == "accelerated")
    return found


def sessions(net: Lab) -> int:
    document = net.documents.agents["agent1"]
    return int(northbound.agent_status(net.plan, "agent1", document)["sessions"])


def test_drain_waits_for_the_sessions_of_the_agent(net: Lab) -> None:
    server = peer(net, "server", "serve", PORT, str(BYTES), str(RATE))
    measure.wait_listening(net, "server", int(PORT))
    client = peer(net, "client", "fetch", measure.address(net, "server"), PORT)
    eventually("a session", lambda: sessions(net) == 1, within_s=5)
    early = plugin(net, "drain", "agent1", "--timeout", "1")
    assert early.returncode == 1 and "1 sessions left at agent1" in early.stdout
    assert "takes no sessions (AgentDraining): it is draining, with 1 sessions left" in trace(net)["why"]
    done = plugin(net, "drain", "agent1", "--timeout", "50")
    assert (done.returncode, done.stdout) == (0, "agent1: drained\n")
    assert outcome(client, 50)["bytes"] == BYTES, "the session was not cut"
    outcome(server, 30)
    # The agent exits shortly after its last session: otherwise the next test could start while this agent still answers.
    eventually("the agent has exited", lambda: "agent1" in net.dead())


def test_trace_names_the_paths_of_an_accelerated_connection(net: Lab) -> None:
    found = trace(net)
    assert (found["outcome"], found["service"], found["why"]) == ("accelerated", "default/bulk", None)
    (pair,) = found["pairs"]
    assert (pair["ingress"], pair["egress"], len(pair["paths"])) == ("agent1", "agent2", 2)
    assert [path["from"] for path in pair["paths"]] == net.documents.agents["agent1"]["wan"]


def test_trace_names_the_reason_of_a_plain_connection(net: Lab) -> None:
    assert "no service covers port" in trace(net, PLAIN_PORT)["why"]
    faults.agent(net, "agent2", up=False)
    eventually("agent1 has no peer", lambda: trace(net)["outcome"] == "plain")
    said = trace(net)
    assert "agent2 of east takes no sessions (NoAgent): its process does not answer" in json.dumps(said["steps"])
    assert said["why"] == "agent agent1 of west reaches no agent of east that accepts sessions (NoAgent)"


def diagnose(net: Lab) -> dict[str, Any]:
    done = plugin(net, "diagnose", "-o", "json")
    (found,) = json.loads(done.stdout)["pairs"]
    assert (done.returncode == 0) == (found["verdict"] == "ready")
    assert (found["from"], found["to"]) == ("west", "east")
    said: dict[str, Any] = found
    return said


def names(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(finding["code"], finding["where"]) for finding in found["findings"]]


def test_diagnose_shows_streams_by_path_and_names_a_path_that_is_down(net: Lab) -> None:
    def complete() -> list[tuple[int, bool]]:
        """The paths, and whether all configured streams of each are open: agents accept sessions before that."""
        found = diagnose(net)
        assert (found["verdict"], found["findings"]) == ("ready", [])
        return [(path["path"], path["streams"] == path["configured"] > 0) for path in found["paths"]]

    eventually("all streams of both paths", lambda: complete() == [(1, True), (2, True)])
    faults.link(net, "agent1.wan1", up=False, silent=True)
    expected = [("PathDown", "agent1 (west) - agent2 (east), path 2")]
    eventually("the path is named", lambda: names(diagnose(net)) == expected)
    assert diagnose(net)["verdict"] == "degraded"
    faults.link(net, "agent1.wan1", up=True, silent=True)
    eventually("the path is back", lambda: diagnose(net)["verdict"] == "ready")


def test_diagnose_names_an_agent_that_is_down(net: Lab) -> None:
    faults.agent(net, "agent2", up=False)
    eventually("agent1 has no peer", lambda: diagnose(net)["verdict"] == "plain")
    assert names(diagnose(net)) == [("AgentDown", "agent2 (east)")]


BLOCKED = """table inet blocked {
  chain input { type filter hook input priority 0; tcp dport 10000-10007 drop; tcp sport 10000-10007 drop; }
}
"""


def test_diagnose_names_the_ports_that_streams_need(net: Lab) -> None:
    run(*net.exec_argv("agent1", ("nft", BLOCKED)))
    try:
        eventually("no stream", lambda: diagnose(net)["verdict"] == "plain")
        (finding,) = diagnose(net)["findings"]
    finally:
        run(*net.exec_argv("agent1", ("nft", "delete table inet blocked")))
    assert (finding["code"], finding["where"]) == ("StreamsBlocked", "agent1 (west) - agent2 (east)")
    assert "TCP port 10000 of 192.0.2." in finding["what"] and "10001 of 198.51.100." in finding["what"]


def run(*argv: str) -> None:
    subprocess.run(argv, check=True)
