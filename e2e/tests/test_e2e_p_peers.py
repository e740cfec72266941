"""Two clusters: ordinary pods of each reach pods of the other through SOS after one invitation, with one service each way (SUITE=peers)."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from sos_e2e.environment import machine, network_policy, pair, previous_version
from sos_e2e.environment.machine import Gateway
from sos_e2e.environment.pair import Side
from sos_e2e.environment.previous_version import Release
from sos_e2e.observation import node_state, workload
from sos_e2e.observation.load import Load, brief
from sos_e2e.run import run, say, wait_for
from sos_e2e.settings import ROOT, Settings

EXAMPLE = ROOT / "examples" / "09-two-clusters"
NAMESPACE = "default"
COVERED, PLAIN = 80, 8080
AT_LEAST = 5.0
PLAIN_S = 90
ROUNDS = 3
"""Maximum number of rounds. The first losses occur at random times, so the test compares medians."""
HUNG_S = 5.0
"""Maximum duration of a new connection during a fault: a dropped SYN is retransmitted after one second, and again two seconds later."""
NOTICE_S = 0.5
"""Time until an agent notices that another one was killed: the end of its streams arrives half a round trip (80 ms) later. Connections
that the agent accepts until then are reset."""
FROZEN_S = 10.0
DISCONNECTED_S = 10.0
METRICS_PORT = 9465
POLICY_S = 45.0
"""Time limit until a changed policy affects new connections: agents use the result of a check of the plain path for 30 s
(docs/adr/0059)."""
STAYS = ("/var/lib/sos", "/run/sos")
FIRST_BYTE_S = 180.0
"""Time limit from `helm install` to the first accelerated byte, with images loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two clusters, and the seconds that each step took."""

    sides: tuple[Side, Side]
    took: dict[str, float]
    untouched: dict[str, node_state.State]
    """State of each worker and of each host's network namespace before SOS was installed."""


@pytest.fixture(scope="session")
def clusters(config: Settings, built: dict[str, str]) -> Iterator[Pair]:
    with pair.created(config, built) as sides:
        yield Pair(sides=sides, took={}, untouched={})


@pytest.fixture(scope="session")
def hosts(clusters: Pair, built: dict[str, str]) -> Pair:
    """A pod with curl and a web server in each cluster."""
    for side in clusters.sides:
        side.kube.apply(_pod(side, built["e2e-host"]))
    for side in clusters.sides:
        side.kube.ctl("-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/host", "--timeout=120s", timeout=150)
        wait_for("the server's files", lambda kube=side.kube: workload.digest(kube, "host", workload.LONG), 120)
    clusters.untouched.update(states(clusters))
    return clusters


def states(clusters: Pair) -> dict[str, node_state.State]:
    found = {side.worker: node_state.look(side.worker) for side in clusters.sides}
    return found | {f"host of {side.name}": node_state.look_into_pod(side.worker, address(side)) for side in clusters.sides}


def left_behind(clusters: Pair) -> dict[str, list[str]]:
    """Differences from the state before SOS; the folders named in docs/install.md are left out."""
    now = states(clusters)
    found = {name: node_state.differences(before, now[name], STAYS) for name, before in clusters.untouched.items()}
    return {name: said for name, said in found.items() if said}


def _pod(side: Side, image: str) -> dict[str, object]:
    main = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", workload.SERVE]}
    # Hosts use cubic by default, but a new namespace of this kernel may start with another algorithm.
    cubic = {
        "name": "default-congestion-control",
        "image": image,
        "command": ["sh", "-c", "ip route change $(ip route show default) congctl cubic"],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
    }
    spec = {"nodeSelector": {"sos.network/site": side.name}, "terminationGracePeriodSeconds": 1, "containers": [main]}
    spec |= {"initContainers": [cubic]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "host", "namespace": NAMESPACE}, "spec": spec}


@pytest.fixture(scope="session")
def paired(hosts: Pair, built: dict[str, str]) -> Pair:
    """SOS in both clusters, paired, with one service in each direction."""
    began = time.monotonic()
    for side in hosts.sides:
        install(side, built)
    hosts.took["helm install, twice"] = time.monotonic() - began
    began = time.monotonic()
    for side in hosts.sides:
        side.kube.ctl("apply", "-f", str(EXAMPLE / f"site-{side.name}.yaml"))
    for side in hosts.sides:
        side.kube.wait_condition(f"sossite/{side.name}", "Ready", timeout=120)
    hosts.took["sites"] = time.monotonic() - began
    began = time.monotonic()
    a, b = hosts.sides
    invitation = a.kube.plugin("peer", "invite", "b", "--as", "a", "--prefix", b.network)
    b.kube.ctl("apply", "-f", "-", stdin=invitation)
    for side in hosts.sides:
        side.kube.ctl("apply", "-f", str(EXAMPLE / "sosservice.yaml"))
    for side, other in ((a, "b"), (b, "a")):
        side.kube.wait_condition(f"sospeer/{other}", "Ready", timeout=120)
        for name in ("a-to-b", "b-to-a"):
            side.kube.wait_condition(f"sosservice/{name}", "Ready", namespace=NAMESPACE, timeout=120)
    hosts.took["peers and services"] = time.monotonic() - began
    began = time.monotonic()
    wait_for("an accelerated download", lambda: is_accelerated(a, b), 60)
    hosts.took["first accelerated download"] = time.monotonic() - began
    return hosts


def accepted(side: Side) -> int:
    """Connections that the agent of a side has accepted since its start."""
    page = run("docker", "exec", side.worker, "curl", "-sS", "-m", "5", f"http://127.0.0.1:{METRICS_PORT}/metrics")
    found = re.search(r"^sos_agent_accepted_total (\d+)$", page, flags=re.MULTILINE)
    assert found is not None, page
    return int(found[1])


def is_accelerated(client: Side, server: Side) -> bool:
    """True if the client's agent has accepted a new connection to the covered port, False if the connection was plain."""
    before = accepted(client)
    got = download(client, server, COVERED, 20, f"{workload.FILE}.sha256")
    assert got.exit_code == 0, got
    return accepted(client) > before


CHART = ROOT / "charts" / "sos"


def install(side: Side, built: Mapping[str, str]) -> None:
    release(side, "install", CHART, built, "--create-namespace")


def release(side: Side, verb: str, chart: Path, built: Mapping[str, str], *more: str) -> None:
    """Install or upgrade the release with these images, and wait until its pods are ready."""
    overrides = []
    for part in ("operator", "controller", "agent"):
        repository, tag = built[part].rsplit(":", 1)
        for key, value in (("registry", ""), ("repository", repository), ("tag", tag)):
            overrides += ["--set", f"images.{part}.{key}={value}"]
    where = ("--namespace", workload.RELEASE_NAMESPACE, "--wait", "--timeout", "180s")
    side.kube.helm(verb, "sos", str(chart), *where, *more, *overrides)


def service(source: str, target: str) -> dict[str, Any]:
    spec = {"from": {"site": source}, "to": {"site": target}, "ports": [{"port": COVERED}]}
    meta = {"name": f"{source}-to-{target}", "namespace": NAMESPACE}
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosService", "metadata": meta, "spec": spec}


def address(side: Side) -> str:
    return str(side.kube.get("-n", NAMESPACE, "pod", "host")["status"]["podIP"])


def download(client: Side, server: Side, port: int, seconds: float, file: str = workload.LONG) -> workload.Transfer:
    script = workload.download_script(address(server), port, seconds, file)
    return workload.parse_download(client.kube.exec(NAMESPACE, "host", "sh", "-c", script, timeout=seconds + 60))


def test_first_accelerated_byte_comes_within_three_minutes(paired: Pair) -> None:
    say("seconds: " + ", ".join(f"{what} {seconds:.0f}" for what, seconds in paired.took.items()))
    for side in paired.sides:
        say(f"{side.name}:\n" + side.kube.overview())
    assert sum(paired.took.values()) < FIRST_BYTE_S, paired.took


@pytest.mark.parametrize("way", ["a to b", "b to a"])
def test_downloads_are_fast_and_keep_both_addresses(paired: Pair, way: str) -> None:
    client, server = paired.sides if way == "a to b" else paired.sides[::-1]
    plain, fast, ratio = list[float](), list[float](), 0.0
    while ratio < AT_LEAST and len(plain) < ROUNDS:
        plain.append(download(client, server, PLAIN, PLAIN_S).mbps)
        got = download(client, server, COVERED, 120)
        assert (got.exit_code, got.sha256) == (0, workload.digest(server.kube, "host", workload.LONG)), got
        assert got.remote == f"{address(server)}:{COVERED}"
        assert got.local.startswith(f"{address(client)}:")
        line = f"{got.local} {got.remote} "
        assert any(seen.startswith(line) for seen in workload.seen_by_server(server.kube, "host")), "the server saw another client"
        fast.append(got.mbps)
        ratio = median(fast) / median(plain)
        say(f"{way}: plain {plain[-1]:.1f} Mbit/s, with the service {fast[-1]:.1f} Mbit/s, ratio {ratio:.1f}")
    assert ratio >= AT_LEAST, (plain, fast)


def test_closed_ports_refuse_connections(paired: Pair) -> None:
    a, b = paired.sides
    for port in (81, PLAIN + 1):
        said = a.kube.exec(NAMESPACE, "host", "curl", "-sS", "-m", "10", f"http://{address(b)}:{port}/", check=False)
        assert "refused" in said.lower() or said == "", said


def test_two_hundred_simultaneous_connections_succeed(paired: Pair) -> None:
    a, b = paired.sides
    fetch = f"curl -s -o /dev/null -m 60 -w '%{{http_code}}\\n' http://{address(b)}:{COVERED}/{workload.FILE}.sha256"
    said = a.kube.exec(NAMESPACE, "host", "sh", "-c", f"seq 200 | xargs -P 200 -I@ {fetch}", timeout=120)
    assert said.split() == ["200"] * 200


def test_a_service_in_only_one_cluster_waits_for_the_peer(paired: Pair) -> None:
    a, _ = paired.sides
    alone = service("a", "b")
    alone["metadata"] = {"name": "alone", "namespace": NAMESPACE}
    a.kube.apply(alone)
    row = a.kube.wait_condition("sosservice/alone", "ResolvedRefs", "False", namespace=NAMESPACE, timeout=30)
    assert row["reason"] == "WaitingForPeer", row
    a.kube.ctl("-n", NAMESPACE, "delete", "sosservice", "alone")


def test_only_selected_pods_are_accelerated(paired: Pair) -> None:
    """The same SosService with spec.from.pods in both clusters; the client's cluster selects."""
    a, b = paired.sides
    selecting = service("a", "b")
    selecting["spec"]["from"]["pods"] = {"selector": {"matchLabels": {"speed": "high"}}}
    for side in paired.sides:
        side.kube.apply(selecting)
    try:
        wait_for("plain connections of a pod without the label", lambda: not is_accelerated(a, b), 60)
        assert is_accelerated(b, a), "the other direction has no selection"
        began = time.monotonic()
        a.kube.ctl("-n", NAMESPACE, "label", "pod", "host", "speed=high")
        wait_for("acceleration of the labelled pod", lambda: is_accelerated(a, b), 60)
        say(f"a pod is accelerated {time.monotonic() - began:.1f} s after it got the label")
        row = a.kube.get("-n", NAMESPACE, "sosservice", "a-to-b")["status"]
        assert row["from"] == "a, 1 pod", row
    finally:
        a.kube.ctl("-n", NAMESPACE, "label", "pod", "host", "speed-")
        for side in paired.sides:
            side.kube.apply(service("a", "b"))
    wait_for("acceleration without a selection", lambda: is_accelerated(a, b), 60)


TIMED_OUT = 28
"""curl's exit code for a timeout."""


@pytest.mark.parametrize("end", ["client's node", "server's node"])
def test_connections_that_a_policy_forbids_stay_forbidden(paired: Pair, end: str) -> None:
    """Drop the pod's packets on a node, as a network plugin does for a NetworkPolicy. The rule does not match the agents' streams, so only
    the agents' checks of the plain path can detect it."""
    a, b = paired.sides
    wait_for("acceleration", lambda: is_accelerated(a, b), 60)
    node = (a if end == "client's node" else b).worker
    rule = ("FORWARD", "-s", address(a), "-d", address(b), "-p", "tcp", "--dport", str(COVERED), "-j", "DROP")
    run("docker", "exec", node, "iptables", "-w", "-I", *rule)
    began = time.monotonic()
    try:
        forbidden = f"{workload.FILE}.sha256"
        wait_for("a forbidden connection", lambda: download(a, b, COVERED, 5, forbidden).exit_code == TIMED_OUT, POLICY_S)
        say(f"forbidden at the {end} after {time.monotonic() - began:.0f} s")
        assert download(a, b, COVERED, 5, forbidden).exit_code == TIMED_OUT
        assert download(a, b, PLAIN, 5, forbidden).exit_code == 0, "the policy names one port"
        assert download(b, a, COVERED, 5, forbidden).exit_code == 0, "the policy names one direction"
    finally:
        run("docker", "exec", node, "iptables", "-w", "-D", *rule)
    wait_for("acceleration again", lambda: is_accelerated(a, b), 60)


@pytest.fixture(scope="module")
def enforced(paired: Pair) -> Iterator[Pair]:
    """Both clusters with a network plugin that enforces NetworkPolicies."""
    with contextlib.ExitStack() as undo:
        for side in paired.sides:
            undo.enter_context(network_policy.enforced(side))
        yield paired


def policy(direction: str, ports: Sequence[int]) -> dict[str, object]:
    """A NetworkPolicy of all pods: connections in one direction are permitted to these ports only."""
    rule = {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}
    spec = {"podSelector": {}, "policyTypes": [direction], direction.lower(): [rule]}
    meta = {"name": "ports", "namespace": NAMESPACE}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": spec}


REFUSED = 7
"""curl's exit code for a connection that was refused: the plugin rejects with an ICMP error."""


@pytest.mark.parametrize("direction", ["Egress", "Ingress"])
def test_network_policies_hold_at_both_ends(enforced: Pair, direction: str) -> None:
    """A NetworkPolicy at the client's end (Egress) or at the server's end (Ingress) forbids and permits as without SOS."""
    a, b = enforced.sides
    end = a if direction == "Egress" else b
    file = f"{workload.FILE}.sha256"
    try:
        end.kube.apply(policy(direction, [COVERED, PLAIN]))
        wait_for("acceleration of permitted connections", lambda: is_accelerated(a, b), POLICY_S)
        end.kube.apply(policy(direction, [PLAIN]))
        began = time.monotonic()
        wait_for("a forbidden connection", lambda: download(a, b, COVERED, 5, file).exit_code in (TIMED_OUT, REFUSED), POLICY_S)
        say(f"{direction}: forbidden after {time.monotonic() - began:.0f} s")
        for _ in range(3):
            assert download(a, b, COVERED, 5, file).exit_code in (TIMED_OUT, REFUSED)
        assert download(a, b, PLAIN, 5, file).exit_code == 0
    finally:
        end.kube.ctl("-n", NAMESPACE, "delete", "networkpolicy", "ports", "--ignore-not-found")
    wait_for("acceleration again", lambda: is_accelerated(a, b), POLICY_S)


CUT = (0, 18, 52, 56)
"""curl's exit codes of a download whose agent was killed: complete, or reset."""


def kill_agent(side: Side) -> None:
    run("docker", "exec", side.worker, "pkill", "-9", "-x", "sos-agent")


def scale_operators(sides: Sequence[Side], replicas: int) -> None:
    for side in sides:
        side.kube.ctl("-n", workload.RELEASE_NAMESPACE, "scale", "deployment/sos-operator", f"--replicas={replicas}")


def upgrade(side: Side) -> None:
    """Change a value of the release that replaces operator and agents."""
    changed = ("--reuse-values", "--set", "operator.logLevel=DEBUG,dataPlane.logLevel=debug")
    where = ("--namespace", workload.RELEASE_NAMESPACE, "--wait", "--timeout", "180s")
    side.kube.helm("upgrade", "sos", str(CHART), *where, *changed)


def add_key(a: Side, b: Side) -> None:
    """Give both clusters the same second key of the pairing, one shortly after the other."""
    text = base64.b64encode(secrets.token_hex(32).encode()).decode()
    for side, other in ((a, "b"), (b, "a")):
        patch = json.dumps({"data": {"key-2": text}})
        side.kube.ctl("-n", workload.RELEASE_NAMESPACE, "patch", "secret", f"sos-peer-{other}", "--type=merge", "-p", patch)


def drain(side: Side, *, over: bool = False) -> None:
    """Keep the pool's agents off the worker, as before maintenance; `over`: let them return."""
    side.kube.ctl("label", "node", side.worker, "drain.sos.network/default" + ("-" if over else "=true"))


def freeze(side: Side) -> None:
    """Pause all processes of a cluster for FROZEN_S, like the loss of a cluster, then resume them."""
    nodes = run("kind", "get", "nodes", "--name", side.settings.cluster).split()
    run("docker", "pause", *nodes)
    time.sleep(FROZEN_S)
    run("docker", "unpause", *nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault during the load. `cuts`: connections that the agent had accepted may be reset. `hung_s`: maximum duration of a connection."""

    strike: Callable[[Side, Side], None]
    cuts: bool = False
    hung_s: float = HUNG_S
    mend: Callable[[Side], None] | None = None
    """Ends the fault at side b."""


FAULTS = {
    "agent killed at a": Fault(strike=lambda a, _b: kill_agent(a), cuts=True),
    "agent killed at b": Fault(strike=lambda _a, b: kill_agent(b), cuts=True),
    "both operators stopped": Fault(strike=lambda a, b: scale_operators((a, b), 0)),
    "agent drained at b": Fault(strike=lambda _a, b: drain(b), mend=lambda b: drain(b, over=True)),
    "second key of the pairing": Fault(strike=add_key),
    "operator and agents replaced at b": Fault(strike=lambda _a, b: upgrade(b)),
    # The server itself is frozen, so a new connection waits as long as a plain connection does.
    "cluster b frozen for 10 s": Fault(strike=lambda _a, b: freeze(b), hung_s=FROZEN_S + HUNG_S),
}


@pytest.mark.parametrize("name", FAULTS)
def test_new_connections_survive_faults(paired: Pair, name: str) -> None:
    fault = FAULTS[name]
    try:
        survive(paired, name, fault)
    finally:
        scale_operators(paired.sides, 1)
        if fault.mend:
            fault.mend(paired.sides[1])
    recover(paired, name)


def survive(paired: Pair, name: str, fault: Fault) -> None:
    """Cause a fault during a long download and new connections; check that none of them fails or takes too long."""
    a, b = paired.sides
    load = Load(a.kube, server=address(b), pod="host")
    fault.strike(a, b)
    at = time.time() + NOTICE_S
    outcome = load.finish()
    said = outcome.summary()
    say(f"{name}: {brief(said)}")
    with (a.settings.out / "faults.json").open("a") as log:
        log.write(json.dumps({"fault": name, **said}) + "\n")
    assert outcome.status in (CUT if fault.cuts else (0,)), said
    # A connection that the killed agent carried is reset.
    judged = [probe for probe in outcome.probes if not fault.cuts or probe.at >= at or probe.status not in CUT]
    assert not [probe for probe in judged if probe.status or probe.total_s >= fault.hung_s], said


def recover(paired: Pair, name: str) -> None:
    """Wait until both clusters accelerate again."""
    ready(paired)
    wait_for(f"acceleration after {name}", lambda: is_accelerated(*paired.sides), 60)


def ready(paired: Pair) -> None:
    a, b = paired.sides
    for side, other in ((a, "b"), (b, "a")):
        side.kube.wait_condition(f"sospeer/{other}", "Ready", timeout=120)
        side.kube.wait_condition("sosservice/a-to-b", "Ready", namespace=NAMESPACE, timeout=120)


@pytest.fixture(scope="module")
def previous(paired: Pair, built: dict[str, str]) -> Release:
    """The previous version, with its images in cluster b."""
    _, b = paired.sides
    found = previous_version.build_release(b.settings, built)
    refs = [found.images[part] for part in previous_version.SOURCES]
    run("kind", "load", "docker-image", "--name", b.settings.cluster, "--nodes", b.worker, *refs, timeout=600)
    return found


def test_an_upgrade_from_the_previous_version_interrupts_nothing(paired: Pair, previous: Release, built: dict[str, str]) -> None:
    """Cluster b has the previous version and cluster a the present one; then b is upgraded during the load."""
    a, b = paired.sides
    name = "cluster b upgraded from the previous version"
    try:
        release(b, "upgrade", previous.chart, previous.images, "--reset-values")
        wait_for("agents of the previous version", lambda: agent_image(b) == previous.images["agent"], 180)
        ready(paired)
        for client, server in ((a, b), (b, a)):
            wait_for("acceleration between two versions", lambda ends=(client, server): is_accelerated(*ends), 60)
        upgraded = Fault(strike=lambda _a, side: release(side, "upgrade", CHART, built, "--reset-values"))
        survive(paired, name, upgraded)
        wait_for("agents of this version", lambda: agent_image(b) == built["agent"], 180)
    finally:
        if agent_image(b) != built["agent"]:
            release(b, "upgrade", CHART, built, "--reset-values")
    recover(paired, name)


def agent_image(side: Side) -> str:
    """Image of the running agent of a cluster, "" while none or several are there."""
    pods = side.kube.items("pods", "-n", workload.RELEASE_NAMESPACE, "-l", "app.kubernetes.io/component=agent")
    found = {str(pod["spec"]["containers"][0]["image"]) for pod in pods}
    return found.pop() if len(found) == 1 else ""


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


def test_a_removed_peer_is_disconnected_and_its_connections_are_plain(paired: Pair) -> None:
    a, b = paired.sides
    began = time.monotonic()
    b.kube.ctl("delete", "sospeer", "a", "--wait=false")
    wait_for("plain connections", lambda: not is_accelerated(a, b), DISCONNECTED_S)
    say(f"plain after {time.monotonic() - began:.1f} s")
    row = a.kube.wait_condition("sospeer/b", "Connected", "False", timeout=30)
    took = time.monotonic() - began
    say(f"{row['reason']} after {took:.1f} s")
    assert (row["reason"], took <= DISCONNECTED_S) == ("Disconnected", True), (row, took)
    a.kube.wait_condition("sosservice/a-to-b", "Ready", "False", namespace=NAMESPACE, timeout=30)


def test_uninstall_leaves_nodes_and_pods_as_they_were(paired: Pair) -> None:
    shown = set(left_behind(paired))
    assert shown == set(paired.untouched), "before the removal, the comparison detects SOS on every node and in every host"
    for side in paired.sides:
        side.kube.helm("uninstall", "sos", "--namespace", workload.RELEASE_NAMESPACE, "--wait", timeout=300)
    wait_for("the former state", lambda: (rest := left_behind(paired)) == {} or _fail(rest), 60)


def _fail(rest: object) -> bool:
    raise LookupError(json.dumps(rest, indent=1))
