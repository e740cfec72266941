"""Faults of agents, operators and whole clusters under load, and an upgrade from the previous version."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from published import Published
from sos_e2e.environment import power, previous_version
from sos_e2e.environment.pair import Side
from sos_e2e.environment.previous_version import Release
from sos_e2e.observation import workload
from sos_e2e.observation.load import Load, brief
from sos_e2e.run import run, say, wait_for
from two_clusters import (
    CHART,
    COVERED,
    HUNG_S,
    NAMESPACE,
    PLAIN,
    Pair,
    accepted,
    address,
    download,
    is_accelerated,
    ready,
    recover,
    release,
)

CUT = (0, 18, 52, 56)
"""curl's exit codes of a download whose agent was killed: complete, or reset."""
NOTICE_S = 0.5
"""Time until an agent notices that another one was killed: the end of its streams arrives half a round trip (80 ms) later. Connections
that the agent accepts until then are reset."""
FROZEN_S = 10.0
LONG_S = 120.0


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


def test_a_cluster_stops_and_starts(paired: Pair) -> None:
    """All programs of cluster b end without notice, and the cluster starts again: connections from cluster a fail as without SOS, none of
    them hangs, and both clusters return to acceleration by themselves."""
    a, b = paired.sides
    file, server = f"{workload.FILE}.sha256", address(b)
    with ThreadPoolExecutor(1) as background:
        before = accepted(a)
        running = background.submit(download, a, b, COVERED, LONG_S)
        wait_for("the download's session", lambda: accepted(a) > before, 30, 0.2)
        power.stop(b.settings)
        began = time.monotonic()
        try:
            cut = running.result()
            assert cut.exit_code in CUT and cut.seconds < LONG_S, cut
            a.kube.wait_condition("sospeer/b", "Connected", "False", timeout=20)
            say(f"disconnected {time.monotonic() - began:.1f} s after the last program had been stopped")
            covered, plain = (download(a, b, port, HUNG_S, file, server) for port in (COVERED, PLAIN))
            assert (covered.exit_code, covered.bytes) == (plain.exit_code, 0), (covered, plain)
        finally:
            began = time.monotonic()
            power.start(b.settings)
    b.kube.ctl("-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/host", "--timeout=180s", timeout=200)
    wait_for("the server's files", lambda: workload.digest(b.kube, "host", workload.LONG), 120)
    recover(paired, "the start of cluster b")
    assert is_accelerated(b, a)
    say(f"accelerated in both directions {time.monotonic() - began:.0f} s after the start of cluster b")


@pytest.fixture(scope="module")
def previous(paired: Pair, built: dict[str, str]) -> Release:
    """The previous version, with its images in cluster b."""
    _, b = paired.sides
    found = previous_version.build_release(b.settings, built)
    refs = [found.images[part] for part in previous_version.SOURCES]
    run("kind", "load", "docker-image", "--name", b.settings.cluster, "--nodes", b.worker, *refs, timeout=600)
    return found


def test_an_upgrade_from_the_previous_version_interrupts_nothing(paired: Pair, previous: Release, published: Published) -> None:
    """Cluster b has the previous version and cluster a the present one; then b is upgraded during the load."""
    a, b = paired.sides
    name, present = "cluster b upgraded from the previous version", published.images
    try:
        release(b, previous.chart, previous.images, "--reset-values")
        wait_for("agents of the previous version", lambda: agent_image(b) == previous.images["agent"], 180)
        ready(paired)
        for client, server in ((a, b), (b, a)):
            wait_for("acceleration between two versions", lambda ends=(client, server): is_accelerated(*ends), 60)
        upgraded = Fault(strike=lambda _a, side: release(side, CHART, present, "--reset-values"))
        survive(paired, name, upgraded)
        wait_for("agents of this version", lambda: agent_image(b) == present["agent"], 180)
    finally:
        if agent_image(b) != present["agent"]:
            release(b, CHART, present, "--reset-values")
    recover(paired, name)


def agent_image(side: Side) -> str:
    """Image of the running agent of a cluster, "" while none or several are there."""
    pods = side.kube.items("pods", "-n", workload.RELEASE_NAMESPACE, "-l", "app.kubernetes.io/component=agent")
    found = {str(pod["spec"]["containers"][0]["image"]) for pod in pods}
    return found.pop() if len(found) == 1 else ""
