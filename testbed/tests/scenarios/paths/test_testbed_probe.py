"""The probe of `helm test`, run between two hosts of a lab, passes if and only if the service works.

client -- edge1 ==(40 ms)== core1 -- edge2 -- server
"""

import subprocess
from collections.abc import Iterator

import pytest
from conftest import PEERS, eventually
from sos_testbed.core import controllers
from sos_testbed.lifecycle.lab import Lab

PLAIN, COVERED, ALSO_PLAIN = 18001, 5004, 18002
SERVER = "10.0.0.139"


@pytest.fixture
def controller(net: Lab) -> Iterator[str]:
    """Expose the controller's API to the lab's client, as a cluster's network does for pods."""
    address = controllers.addresses(net.plan.controllers)[controllers.DEFAULT]

    def inside(part: str, *command: str) -> None:
        subprocess.run(net.exec_argv(part, ("ip", *command)), check=True, capture_output=True)

    inside("client", "link", "add", "api0", "type", "veth", "peer", "name", "api1", "netns", net.plan.netns("ctl"))
    try:
        for part, device, own, other in (("client", "api0", "192.0.2.1", f"{address}/32"), ("ctl", "api1", "192.0.2.2", "192.0.2.1/32")):
            inside(part, "address", "add", f"{own}/30", "dev", device)
            inside(part, "link", "set", device, "up")
            if part == "client":
                inside(part, "route", "add", other, "via", "192.0.2.2")
        yield f"http://{address}:{controllers.API_PORT}"
    finally:
        inside("client", "link", "del", "api0")


def probe(net: Lab) -> str:
    return str(net.plan.programs.probe)


def serving(net: Lab, *ports: int) -> None:
    """Start the probe's server: the first port is plain, all other ports are covered by a service."""
    chosen = ("--plain", str(ports[0]), *(word for port in ports[1:] for word in ("--through", str(port))), "--seconds", "600")
    argv = net.exec_argv("server", (probe(net), "serve", *chosen))
    PEERS.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    listening = net.exec_argv("server", ("ss", "-Hltn", f"sport = :{ports[-1]}"))
    eventually("the server", lambda: subprocess.run(listening, capture_output=True, text=True, check=True).stdout)


def compare(net: Lab, *arguments: str) -> tuple[int, str]:
    argv = net.exec_argv("client", (probe(net), "compare", SERVER, "--seconds", "4", "--wait", "10", *arguments))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_probe_passes_on_covered_ports_only(net: Lab, controller: str) -> None:
    serving(net, PLAIN, COVERED)
    serving(net, ALSO_PLAIN)
    asked = ("--controller", controller)

    code, said = compare(net, "--plain-port", str(PLAIN), "--port", str(COVERED), *asked)
    assert (code, said.splitlines()[-1]) == (0, "passed"), said

    code, said = compare(net, "--plain-port", str(PLAIN), "--port", str(ALSO_PLAIN), *asked)
    assert (code, said.splitlines()[-1]) == (1, "FAILED"), said
    assert f"port {ALSO_PLAIN} was not accelerated" in said

    code, said = compare(net, "--plain-port", str(COVERED), "--port", str(COVERED), *asked)
    assert code == 1
    assert f"port {COVERED} is accelerated: name a port that no SosService covers" in said

    net.kill("agent1")
    code, said = compare(net, "--plain-port", str(PLAIN), "--port", str(COVERED), *asked)
    assert code == 1, "the ingress agent is dead: bytes arrive, but the connection is plain"
    assert "was not accelerated" in said
