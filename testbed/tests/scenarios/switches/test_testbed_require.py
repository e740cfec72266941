"""With spec.require (ADR 0054), connections are accelerated or refused immediately, never plain; with reactive and proactive set-up.

client -- edge1 ======= core1 ------- edge2 -- server
            |                           |
         agent1                      agent2
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from conftest import RATE_BPS, RTT_US, accepted, eventually, say, with_service
from requests_of_hosts import MPTCP, answer
from sos_compile.model.world import Loaded
from sos_testbed.core.topology import PathOptions
from sos_testbed.core.web import PLAIN_PORT, SOS_PORT
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle import northbound
from sos_testbed.lifecycle.lab import PROACTIVE, Lab, Options

PATH = PathOptions(rate_bps=RATE_BPS, rtt_us=RTT_US)
ENCRYPTED = {
    "require": ["Accelerated", "Encrypted"],
    "transport": {"streams": "Auto", "congestionControl": "Auto", "encryption": "TLS", "compression": "None", "protocol": "TCP"},
}
SERVED, REFUSED = "HTTP/1.1 404", "ConnectionRefusedError"
LEASED_S = 8.0  # time after which all punt entries have expired; an entry lasts 5 s
AT_ONCE_S = 5.0  # limit for a refusal, which takes about a round trip; after a dropped SYN, a program waits for its whole timeout
NODES = ("edge1-node", "edge2-node")


@pytest.fixture(scope="module", params=["reactive", "proactive"])
def shared(request: pytest.FixtureRequest) -> Iterator[Lab]:
    options = Options(path1=PATH, path2=PATH, examples=(PROACTIVE,)) if request.param == "proactive" else Options(path1=PATH, path2=PATH)
    built = labs.up(options, say)
    try:
        built.declare(with_service(built.objects, **ENCRYPTED))
        labs.wait_ready(built, built.documents)
        yield built
    finally:
        built.down()


def asked(net: Lab) -> int:
    """Number of SYNs to the covered port that reached the server without an agent."""
    argv = net.exec_argv("server", ("nft", "list", "counter", "ip", "require", "syns"))
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split("packets")[1].split()[0])


@contextmanager
def nothing_plain(net: Lab) -> Iterator[None]:
    """Assert that the server receives SYNs to the covered port from the egress agent only."""
    place = next(place for place in net.topology.agents if place.name == "agent2")
    mac = net.documents.agents[place.key]["interface"]["mac"]
    rules = (
        "add table ip require; add counter ip require syns; add chain ip require c { type filter hook prerouting priority 0; };"
        f" add rule ip require c ether saddr != {mac} tcp dport {SOS_PORT} tcp flags syn / fin,syn,rst,ack counter name syns"
    )
    subprocess.run(net.exec_argv("server", ("nft", rules)), check=True)
    try:
        yield
        assert asked(net) == 0
    finally:
        subprocess.run(net.exec_argv("server", ("nft", "delete table ip require")), check=True)


def refused(net: Lab, protocol: int = 0) -> None:
    """Assert that the covered port is refused immediately and that the plain port is still served."""
    began = time.monotonic()
    assert answer(net, SOS_PORT, protocol=protocol) == REFUSED
    assert time.monotonic() - began < AT_ONCE_S
    assert answer(net, PLAIN_PORT, protocol=protocol) == SERVED


def served(net: Lab) -> None:
    before = accepted(net)
    eventually("an accelerated connection", lambda: answer(net, SOS_PORT) == SERVED)
    assert accepted(net) > before


def told(net: Lab) -> dict[str, Any]:
    return next(iter(northbound.get(net.plan, "/v1/plain")["services"]), {}).get("refused", {})


def test_connection_that_cannot_be_accelerated_is_refused(net: Lab) -> None:
    served(net)
    with nothing_plain(net):
        refused(net, MPTCP)
    eventually("the reason is reported", lambda: "Option" in told(net))
    served(net)


@pytest.mark.parametrize("agent", ["agent1", "agent2"])
def test_connections_are_refused_without_an_agent_at_either_site(net: Lab, agent: str) -> None:
    net.kill(agent)
    time.sleep(0.5)  # the kernel resets the agent's sockets
    with nothing_plain(net):
        for _ in range(6):
            assert answer(net, SOS_PORT) != SERVED
            time.sleep(1)  # repeat before, while and after the agent's death is detected
        refused(net)
    net.start(agent)
    served(net)


def test_connections_are_refused_while_the_ingress_agents_port_is_down(net: Lab) -> None:
    """Take the agent's port down: with proactive set-up the switch itself redirects to the reject port."""
    port = ("ip", "-n", net.plan.netns("edge1"), "link", "set", "sosag0")
    net.kill("edge1-node")  # sos-node would set the port up again
    try:
        subprocess.run((*port, "down"), check=True)
        time.sleep(1.0)  # Open vSwitch polls its ports
        with nothing_plain(net):
            for _ in range(3):
                refused(net)
    finally:
        subprocess.run((*port, "up"), check=True)
        net.start("edge1-node")
    served(net)


def test_switches_refuse_while_all_other_parts_are_down(net: Lab) -> None:
    for name in ("controller", *NODES, "agent1", "agent2"):
        net.kill(name)
    time.sleep(LEASED_S)
    with nothing_plain(net):
        for _ in range(3):
            refused(net)
    for name in ("controller", *NODES, "agent1", "agent2"):
        net.start(name)
    served(net)


def test_removing_the_requirement_allows_plain_connections(net: Lab) -> None:
    objects = net.objects
    net.declare(with_service(objects, require=[]))
    net.kill("agent2")
    eventually("a plain connection", lambda: answer(net, SOS_PORT) == SERVED)
    net.declare(objects)
    eventually("refused again", lambda: answer(net, SOS_PORT) == REFUSED)
    with nothing_plain(net):
        refused(net)


def without_tls(objects: tuple[Loaded, ...]) -> tuple[Loaded, ...]:
    """The service without TLS, and a second service without requirements behind it, whose entries punt the same connections."""
    changed = with_service(objects, transport={**ENCRYPTED["transport"], "encryption": "None"})
    (first,) = (loaded for loaded in changed if loaded.obj["kind"] == "SosService")
    second = {**first.obj, "metadata": {"name": "second", "namespace": "default"}, "spec": {**first.obj["spec"], "require": []}}
    return (*changed, replace(first, index=1, obj=second))


def test_connections_that_are_not_encrypted_as_required_are_refused_with_that_reason(net: Lab) -> None:
    objects = net.objects
    net.declare(without_tls(objects))
    try:
        eventually("refused", lambda: answer(net, SOS_PORT) == REFUSED)
        with nothing_plain(net):
            refused(net)
            eventually("the reason is reported", lambda: answer(net, SOS_PORT) == REFUSED and "NotEncrypted" in told(net))
            refused(net)
        assert "Percent" not in told(net)
    finally:
        net.declare(objects)
        labs.wait_ready(net, net.documents)
    served(net)
