"""A machine outside Kubernetes, enrolled in cluster a."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from sos_e2e.environment import machine
from sos_e2e.environment.machine import Gateway
from sos_e2e.observation import workload
from sos_e2e.run import run, say, wait_for
from two_clusters import COVERED, HUNG_S, METRICS_PORT, NAMESPACE, Pair, accepted, address, service


@pytest.fixture(scope="module")
def gateway(paired: Pair, built: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway outside Kubernetes, enrolled in cluster a with one command, with a service in each direction."""
    a, _ = paired.sides
    with machine.beside(a, built["agent"], built["e2e-host"], workload.SERVE) as found:
        wait_for("the host's files", lambda: found.on_host("cat", f"/srv/{workload.LONG}.sha256"), 120)
        archive = tmp_path_factory.mktemp("machine") / "gw.tar"
        options = ("--prefix", machine.NETWORK, "--address", found.address, "--interface", machine.INTERFACE, "--file", str(archive))
        say(a.kube.plugin("enroll", "gw", *options))
        run("docker", "cp", archive, f"{found.name}:/gw.tar")
        found.run("tar", "-C", "/", "-xf", "/gw.tar")
        found.start_agent()
        a.kube.apply(service("a", "gw"), service("gw", "a"))
        try:
            a.kube.wait_condition("sospeer/gw", "Ready", timeout=120)
            for name in ("a-to-gw", "gw-to-a"):
                a.kube.wait_condition(f"sosservice/{name}", "Ready", namespace=NAMESPACE, timeout=120)
            yield found
        finally:
            say(f"log of the machine's agent:\n{found.log()[-3000:]}")
            a.kube.ctl("-n", NAMESPACE, "delete", "sosservice", "a-to-gw", "gw-to-a", "--ignore-not-found")
            a.kube.plugin("peer", "remove", "gw")


def of_machine(gateway: Gateway) -> int:
    """Connections that the machine's agent has accepted since its start."""
    inside = ("nsenter", "-t", run("docker", "inspect", "--format", "{{.State.Pid}}", gateway.name).strip(), "-n")
    page = run(*inside, "curl", "-sS", "-m", "5", f"http://127.0.0.1:{METRICS_PORT}/metrics")
    found = re.search(r"^sos_agent_accepted_total (\d+)$", page, flags=re.MULTILINE)
    assert found is not None, page
    return int(found[1])


def test_an_enrolled_machine_is_reached_by_pods(paired: Pair, gateway: Gateway) -> None:
    a, _ = paired.sides
    before = accepted(a)
    script = workload.download_script(machine.HOST, COVERED, 60, workload.FILE)
    got = workload.parse_download(a.kube.exec(NAMESPACE, "host", "sh", "-c", script, timeout=90))
    assert (got.exit_code, got.sha256) == (0, gateway.on_host("cat", f"/srv/{workload.FILE}.sha256").split()[0]), got
    assert accepted(a) > before, "the connection was plain"
    assert f"{got.local} {machine.HOST}:{COVERED} " in gateway.on_host("cat", "/tmp/access.log"), "the host saw another client"


def test_hosts_behind_an_enrolled_machine_reach_pods(paired: Pair, gateway: Gateway) -> None:
    a, _ = paired.sides
    before = of_machine(gateway)
    script = workload.download_script(address(a), COVERED, 60, workload.FILE)
    got = workload.parse_download(gateway.on_host("sh", "-c", script))
    assert (got.exit_code, got.sha256) == (0, workload.digest(a.kube, "host", workload.FILE)), got
    assert of_machine(gateway) > before, "the connection was plain"
    assert any(seen.startswith(f"{got.local} {got.remote} ") for seen in workload.seen_by_server(a.kube, "host"))


def test_connections_are_plain_while_the_machines_agent_is_down(paired: Pair, gateway: Gateway) -> None:
    a, _ = paired.sides
    gateway.kill_agent()
    fetch = workload.download_script(machine.HOST, COVERED, HUNG_S, f"{workload.FILE}.sha256")
    wait_for(
        "a plain connection", lambda: workload.parse_download(a.kube.exec(NAMESPACE, "host", "sh", "-c", fetch)).exit_code == 0, HUNG_S
    )
    a.kube.wait_condition("sospeer/gw", "Connected", "False", timeout=30)
    gateway.start_agent()
    a.kube.wait_condition("sospeer/gw", "Ready", timeout=60)
    a.kube.wait_condition("sosservice/a-to-gw", "Ready", namespace=NAMESPACE, timeout=60)
