"""Downloads between pods: plain, accelerated, and plain again; reports of the plugin and of `helm test`.

client pod (west) -- br-sos --wan0==== 80 ms, 200 Mbit/s, 0.01 % ====core1---- br-sos -- server pod (east)
                     agent  --wan1==== 30 ms, the same           ====core2----  agent
"""

import json
from collections.abc import Iterator

import pytest
from conftest import EXAMPLE, Lab, upgrade
from sos_e2e.observation import workload
from sos_e2e.run import CommandError, say, wait_for
from transfer_checks import SHORT_S, WIRE_LIMIT, agents, attach, both_carried, fast_and_plain, received

SERVICE = EXAMPLE / "sosservice.yaml"
CLIENT, SERVER = workload.HOSTS[:2]


def test_a_transfer_between_pods_is_plain_without_the_service(lab: Lab, pods: tuple[Lab, str]) -> None:
    got = workload.download(lab.kube, 80, seconds=SHORT_S, file=workload.LONG)
    assert got.bytes > 0
    assert got.remote == f"{workload.SERVER}:80"
    assert got.mbps < 0.6 * WIRE_LIMIT, "plain TCP is too fast on this path: the comparison proves nothing"


def test_a_transfer_between_pods_is_fast_with_the_service(lab: Lab, pods: tuple[Lab, str]) -> None:
    lab.kube.apply_files(SERVICE)
    lab.kube.wait_condition("sosservice/bulk", "Ready", namespace="default", timeout=60)
    fast_and_plain(lab, CLIENT, SERVER, "cables, one path")


@pytest.fixture
def both_paths(lab: Lab, pods: tuple[Lab, str]) -> Iterator[None]:
    """The example's service over both paths during the test."""
    for file in (EXAMPLE / "both-paths" / "sosservice.yaml", SERVICE):
        lab.kube.apply_files(file)
        lab.kube.wait_condition("sosservice/bulk", "Ready", namespace="default", timeout=60)
        if file != SERVICE:
            yield


def test_a_transfer_goes_over_both_paths(lab: Lab, pods: tuple[Lab, str], both_paths: None) -> None:
    before = received(lab, "west")
    got = workload.download(lab.kube, 80, seconds=120)
    both_carried(before, received(lab, "west"), "wan0", "wan1")
    assert (got.exit_code, got.sha256) == (0, pods[1])
    fast_and_plain(lab, CLIENT, SERVER, "cables, both paths")


def test_the_plugin_reports_the_accelerated_service(lab: Lab, pods: tuple[Lab, str]) -> None:
    """Read a controller through the API server, as users do."""
    assert json.loads(lab.kube.plugin("status", "--wait", "--timeout", "60", "-o", "json"))["ready"]
    assert "DISCONNECTED" not in lab.kube.plugin("topology")
    assert len(json.loads(lab.kube.plugin("topology", "-o", "json"))["agents"]) == agents(lab)
    ends = (workload.CLIENT, workload.SERVER)
    assert json.loads(lab.kube.plugin("trace", *ends, "80", "-o", "json"))["outcome"] == "accelerated"
    assert json.loads(lab.kube.plugin("trace", *ends, "8080", "-o", "json", check=False))["outcome"] == "plain"


def test_diagnose_transfers_bytes_between_its_own_pods(lab: Lab, pods: tuple[Lab, str]) -> None:
    (said,) = json.loads(lab.kube.plugin("diagnose", "west", "east", "-o", "json"))["pairs"]
    assert (said["verdict"], said["findings"], said["accelerated"]) == ("ok", [], True)
    assert all(said[pair][way]["bytes"] > 0 for pair in ("through", "plain") for way in ("up", "down"))
    mine = ("-n", workload.RELEASE_NAMESPACE, "-l", "app.kubernetes.io/managed-by=kubectl-sos")
    wait_for("the pods of diagnose gone", lambda: lab.kube.items("pods", *mine) == [], 30)


def test_a_drained_agent_returns_after_undo(lab: Lab, pods: tuple[Lab, str]) -> None:
    node = lab.nodes["west"]
    assert json.loads(lab.kube.plugin("drain", node, "--timeout", "90", "-o", "json"))["done"]
    left = ("-n", workload.RELEASE_NAMESPACE, "-l", "app.kubernetes.io/component=agent", "--field-selector", f"spec.nodeName={node}")
    wait_for("the agent's pod gone", lambda: lab.kube.items("pods", *left) == [], 90)
    (said,) = json.loads(lab.kube.plugin("diagnose", "west", "east", "--seconds", "1", "-o", "json", check=False))["pairs"]
    left_over = "plain" if lab.settings.small else "degraded"  # degraded: the agent of the site's other node takes over
    assert (said["verdict"], said["findings"][0]["code"]) == (left_over, "AgentDown")
    lab.kube.plugin("drain", node, "--undo")
    lab.kube.wait_condition("sossite/west", "Ready", timeout=120)


@pytest.fixture
def multus_agents(lab: Lab, pods: tuple[Lab, str]) -> Iterator[None]:
    """Agents with a pod network of their own, attached by Multus and ovs-cni, during the test."""
    for way in ("Multus", "Host"):
        attach(lab, way, "west", "east")
        lab.kube.wait_condition("sosservice/bulk", "Ready", namespace="default", timeout=60)
        if way == "Multus":
            yield


def test_agents_attached_by_multus_accelerate_transfers(lab: Lab, pods: tuple[Lab, str], multus_agents: None, both_paths: None) -> None:
    before = received(lab, "west")
    got = workload.download(lab.kube, 80, seconds=120)
    both_carried(before, received(lab, "west"), "wan0", "wan1")
    assert (got.exit_code, got.sha256) == (0, pods[1])
    fast_and_plain(lab, CLIENT, SERVER, "cables, both paths, agents attached by Multus")


def test_helm_test_compares_plain_and_accelerated_rates(lab: Lab, pods: tuple[Lab, str]) -> None:
    """`helm test` with unused addresses, first over port 5000, which the example's service covers, then over a port that no service covers;
    the second test must fail."""
    ends = {"client": ("west", "10.0.0.12/24"), "server": ("east", "10.0.0.140/24")}
    values = [f"test.{end}.{key}={value}" for end, (site, address) in ends.items() for key, value in (("site", site), ("address", address))]
    values += [f"test.{end}.nodeSelector.sos\\.network/site={site}" for end, (site, _) in ends.items()]
    for port, good in ((5000, True), (6000, False)):
        upgrade(lab, *values, f"test.port={port}")
        try:
            lab.kube.helm("test", "sos", "--namespace", workload.RELEASE_NAMESPACE, "--timeout", "180s")
        except CommandError:
            assert not good, lab.kube.ctl("-n", workload.RELEASE_NAMESPACE, "logs", "job/sos-test", check=False)
        said = lab.kube.ctl("-n", workload.RELEASE_NAMESPACE, "logs", "job/sos-test")
        say(said)
        assert said.splitlines()[-1] == ("passed" if good else "FAILED")
        assert ("was not accelerated" in said) != good
        rates = [line.split()[0] for line in said.splitlines() if line.startswith(("plain ", "service ")) and "Mbit/s" in line]
        assert rates == ["plain", "service"], "both rates are printed"


def test_a_running_transfer_survives_deletion_of_its_service(lab: Lab, pods: tuple[Lab, str]) -> None:
    url = f"http://{workload.SERVER}:80/file"
    script = f"curl -s -o /tmp/under --limit-rate 8M -w '%{{http_code}} %{{size_download}}' {url}; echo; sha256sum /tmp/under"
    lab.kube.exec(workload.NAMESPACE, "client", "sh", "-c", f"({script}) > /tmp/under.log 2>&1 &")
    size = ("stat", "-c", "%s", "/tmp/under")
    wait_for("running transfer", lambda: int(lab.kube.exec("default", "client", *size)) > 1_000_000, 20)
    lab.kube.ctl("-n", "default", "delete", "sosservice", "bulk")

    def ended() -> list[str] | None:
        words = lab.kube.exec("default", "client", "cat", "/tmp/under.log").split()
        return words if len(words) >= 3 else None

    words = wait_for("end of the transfer", ended, 90)
    assert words[0] == "200"
    assert words[2] == pods[1]
    again = workload.download(lab.kube, 80, seconds=SHORT_S, file=workload.LONG)
    assert again.bytes > 0
    assert again.mbps < 0.6 * WIRE_LIMIT, "a new connection is still accelerated"
