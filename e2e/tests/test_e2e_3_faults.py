"""Faults in clusters, while a download runs and a new connection is opened every tenth of a second.

In every fault a download continues, or is reset if its agent died; it never ends early without an error. New connections are
accelerated or plain, and none hangs. Stalls are written to out/e2e/faults.json.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Lab
from sos_e2e.environment.cluster import pid
from sos_e2e.observation import workload
from sos_e2e.observation.load import Load, Outcome, brief
from sos_e2e.run import run, say, wait_for
from transfer_checks import ready_again, trace

RESET = 56  # curl's status for a connection that is reset while data is received
REFUSED = {7, 52, 56}  # curl's statuses of a new connection that is refused, or closed without an answer
# Limit of a new connection's duration; a longer connection counts as hung. A plain connection takes 0.5 s, with a lost SYN 3.5 s.
HANGS_S = 8.0
FAULT_S = 8.0  # duration of a fault: longer than the 5 s in which a silent path is detected
NODE_LOST_S = 20.0  # until connections are reset after their agent's node dies: 5 s of silence, then sessions wait 10 s for other streams
SETTLED_S = 3.0  # delay between the end of the fault and the evaluation


def replace_pods(lab: Lab, component: str, site: str, *how: str) -> None:
    """Delete the pods of one site or of all sites, and wait until new pods are ready; the deleted pods' statuses do not count."""
    where = ("--field-selector", f"spec.nodeName={lab.nodes[site]}") if site else ()
    which = ("-n", workload.RELEASE_NAMESPACE, "-l", f"app.kubernetes.io/component={component}", *where)
    before = {pod["metadata"]["uid"] for pod in lab.kube.items("pods", *which)}
    lab.kube.ctl("delete", "pod", *which, *how, timeout=90)

    def replaced() -> bool:
        there = {pod["metadata"]["uid"] for pod in lab.kube.items("pods", *which) if is_ready(pod)}
        return len(there) == len(before) and not there & before

    wait_for(f"new {component} pods", replaced, 120)


def is_ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def kill(component: str, site: str = "") -> Callable[[Lab], None]:
    def fault(lab: Lab) -> None:
        replace_pods(lab, component, site, "--grace-period=0", "--force", "--wait=false")
        ready_again(lab)

    return fault


def restart(component: str, site: str) -> Callable[[Lab], None]:
    """Restart pods as a rollout does."""

    def fault(lab: Lab) -> None:
        replace_pods(lab, component, site)
        ready_again(lab)

    return fault


def cut_and_mend_a_cable(lab: Lab) -> None:
    inside = ("nsenter", "-t", str(pid(lab.nodes["core1"])), "-n", "ip", "link", "set", "wan0")
    run(*inside, "down")
    time.sleep(FAULT_S)
    run(*inside, "up")
    ready_again(lab)


def keep_the_controller_off(lab: Lab, places: tuple[str, ...]) -> None:
    """Move the controller off the failing node, so that the fault takes down only a path."""
    nodes = [lab.nodes[place] for place in places]
    if controllers_node(lab) not in nodes:
        return
    lab.kube.ctl("cordon", *nodes)
    try:
        replace_pods(lab, "controller", "")
        ready_again(lab)
    finally:
        lab.kube.ctl("uncordon", *nodes)


def freeze_a_transit_node(lab: Lab) -> None:
    """Silent failure: all ports stay up, and no packet passes."""
    # Starting processes cannot be frozen; the engine then resumes all processes and reports an error.
    wait_for("a frozen node", lambda: run("docker", "pause", lab.nodes["core1"]), 30)
    try:
        time.sleep(FAULT_S)
    finally:
        run("docker", "unpause", lab.nodes["core1"])
    ready_again(lab)


def restart_the_api_server(lab: Lab) -> None:
    control_plane = lab.nodes["core2"]
    found = run("docker", "exec", control_plane, "crictl", "ps", "-q", "--name", "kube-apiserver").split()
    run("docker", "exec", control_plane, "crictl", "stop", *found)
    wait_for("the API server", lambda: lab.kube.ctl("get", "--raw", "/readyz", check=False).strip() == "ok", 120)
    ready_again(lab)


def kill_a_node(site: str) -> Callable[[Lab], None]:
    """Power failure: all processes, interfaces and cables fail simultaneously; the node is restarted later."""

    def fault(lab: Lab) -> None:
        node = lab.nodes[site]
        run("docker", "kill", node)
        try:
            time.sleep(FAULT_S)
        finally:
            run("docker", "start", node)
            lab.panel.replug(site)
        lab.kube.ctl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=120s", timeout=150)
        for pod in (host.name for host in workload.HOSTS if host.place == site):
            lab.kube.ctl("-n", workload.NAMESPACE, "wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=180s", timeout=210)

    return fault


def drain_a_node(lab: Lab) -> None:
    """Drain the controller's node; agents and switches stay, because they are DaemonSet pods."""
    node = controllers_node(lab)
    lab.kube.ctl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s", timeout=150)
    try:
        ready_again(lab)
        assert controllers_node(lab) != node
    finally:
        lab.kube.ctl("uncordon", node)
    ready_again(lab)


def controllers_node(lab: Lab) -> str:
    controller = ("pods", "-n", workload.RELEASE_NAMESPACE, "-l", "app.kubernetes.io/component=controller")
    found = {pod["spec"]["nodeName"] for pod in lab.kube.items(*controller) if "deletionTimestamp" not in pod["metadata"]}
    (node,) = found
    return str(node)


@contextlib.contextmanager
def served_by_the_other_node(lab: Lab) -> Iterator[None]:
    """Drain the client's own agent, so that its sessions use the agent of another node of its site."""
    node = lab.nodes["west"]
    try:
        drained = json.loads(lab.kube.plugin("drain", node, "--timeout", "90", "-o", "json"))
        assert drained["done"], drained
        wait_for("the other node's agent", lambda: accelerated_now(lab), 60)
        yield
    finally:
        lab.kube.plugin("drain", node, "--undo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault and its permitted effects."""

    happens: Callable[[Lab], None]
    ends: frozenset[int] = frozenset({0})  # permitted statuses of curl at the end of the download
    keep_off: tuple[str, ...] = ()  # places from which the controller is moved first, so that the fault does not stop it, too
    during: Callable[[Lab], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    reset_within_s: float = HANGS_S  # time limit for the reset of connections that the dying agent had accepted


AGENT_DIES = frozenset({0, RESET})
FAULTS: dict[str, Fault] = {
    "nothing": Fault(happens=lambda lab: time.sleep(FAULT_S)),  # baseline for the other faults
    "operator killed": Fault(happens=kill("operator")),
    "controller killed": Fault(happens=kill("controller")),
    "switch of a transit site restarted": Fault(happens=restart("node", "core1")),
    "switch of the client's site restarted": Fault(happens=restart("node", "west")),
    "cable cut and mended": Fault(happens=cut_and_mend_a_cable),
    "transit node frozen": Fault(happens=freeze_a_transit_node, keep_off=("core1",)),
    "transit node killed": Fault(happens=kill_a_node("core1"), keep_off=("core1",)),
    # Client and server pods run at west and east. They have no owner that would recreate them, so these nodes must not be drained.
    "node drained and uncordoned": Fault(happens=drain_a_node, keep_off=("west", "east")),
    "node with the client's agent killed": Fault(
        happens=kill_a_node("west2"),
        ends=frozenset({RESET}),
        keep_off=("west2",),
        during=served_by_the_other_node,
        reset_within_s=NODE_LOST_S,
    ),
    "API server restarted": Fault(happens=restart_the_api_server),
    "agent near the client killed": Fault(happens=kill("agent", "west"), ends=AGENT_DIES),
    "agent near the server killed": Fault(happens=kill("agent", "east"), ends=AGENT_DIES),
}


@pytest.fixture(scope="module")
def results(lab: Lab) -> Iterator[dict[str, object]]:
    """Outcomes of all faults, written to a file at the end even after a failure."""
    path: Path = lab.settings.out / "faults.json"
    path.unlink(missing_ok=True)
    found: dict[str, object] = {}
    with contextlib.ExitStack() as at_end:
        at_end.callback(lambda: path.write_text(json.dumps(found, indent=2) + "\n"))
        yield found


@pytest.mark.parametrize("name", FAULTS)
def test_downloads_end_correctly_and_new_connections_do_not_hang(
    name: str, lab: Lab, accelerated: tuple[Lab, str], results: dict[str, object]
) -> None:
    fault = FAULTS[name]
    if fault.keep_off:
        keep_the_controller_off(lab, fault.keep_off)
    with fault.during(lab):
        load = Load(lab.kube)
        at = time.time()
        fault.happens(lab)
        time.sleep(SETTLED_S)
        outcome = load.finish()
    ready_again(lab)
    results[name] = outcome.summary()
    say(f"{name}: {brief(outcome.summary())}")
    judge(outcome, accelerated[1], fault, at=at)
    assert accelerated_now(lab), "new connections are accelerated again"


def accelerated_now(lab: Lab) -> bool:
    """True if a new connection of the client would be accelerated."""
    return trace(lab, workload.CLIENT, workload.SERVER) == "accelerated"


def judge(outcome: Outcome, digest: str, fault: Fault, *, at: float) -> None:
    assert outcome.status in fault.ends, "neither complete nor reset"
    assert outcome.status == 0 or outcome.silent_s < fault.reset_within_s, "reset, but late"
    if outcome.status == 0:
        assert outcome.sha256 == digest
    assert len(outcome.probes) > 50
    for probe in outcome.probes:
        # Connections that a dying agent had accepted are reset; pod and test share one clock.
        accepted = RESET in fault.ends and probe.at < at + HANGS_S and probe.status in REFUSED
        assert probe.status == 0 or accepted, probe
        assert probe.total_s < (fault.reset_within_s if accepted else HANGS_S), f"hung: {probe}"
