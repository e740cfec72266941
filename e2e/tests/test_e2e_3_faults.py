"""What breaks in clusters, while a download runs and a new connection is opened every tenth of a second.

Whatever breaks: a download goes on, or is reset if the agent that carried it died, and never ends early without a word; new connections
are accelerated or plain, and none hangs. How long things stood still goes to out/e2e/faults.json.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Lab
from sos_e2e import workload
from sos_e2e.cluster import pid
from sos_e2e.load import PATIENCE_S, TIMED_OUT, Load, Outcome
from sos_e2e.run import run, say, wait_for

RESET = 56  # curl's status for a connection that was reset while it received
REFUSED = {7, 52, 56}  # of a new one: not opened, or ended without an answer
HANGS_S = 8.0  # a new connection that takes longer is as good as hung: a plain one over this path takes 0.5 s, with a lost SYN 3.5
FAULT_S = 8.0  # how long what is broken stays so: longer than the 5 s in which a silent path is noticed
SETTLED_S = 3.0  # after the fault is over, until the outcome is read


def replace_pods(lab: Lab, component: str, site: str, *how: str) -> None:
    """Delete pods, of one site or all, and wait until others are ready: a status from before says nothing."""
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


def ready_again(lab: Lab) -> None:
    """Everything as before, as the statuses say."""
    lab.kube.wait_condition("soscontroller/default", "Ready", timeout=120)
    for site in ("west", "east", "core1", "core2"):
        lab.kube.wait_condition(f"sossite/{site}", "Ready", timeout=120)
    lab.kube.wait_condition("sosservice/bulk", "Ready", namespace="default", timeout=60)


def kill(component: str, site: str = "") -> Callable[[Lab], None]:
    def fault(lab: Lab) -> None:
        replace_pods(lab, component, site, "--grace-period=0", "--force", "--wait=false")
        ready_again(lab)

    return fault


def restart(component: str, site: str) -> Callable[[Lab], None]:
    """As a roll-out does."""

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
    """So that a node that fails takes a path along, and nothing else."""
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
    """Black without a word: no port goes down, and nothing comes through."""
    # Processes that are just being made cannot be frozen; the engine then lets all of them go on, and says so.
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
    """As when its power fails: every process at once, and with them interfaces and cables; later it is started again."""

    def fault(lab: Lab) -> None:
        node = lab.nodes[site]
        run("docker", "kill", node)
        try:
            time.sleep(FAULT_S)
        finally:
            run("docker", "start", node)
            lab.panel.replug(site)
        lab.kube.ctl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=120s", timeout=150)
        ready_again(lab)

    return fault


def drain_a_node(lab: Lab) -> None:
    """The one on which the controller runs; agents and switches stay to the end, as DaemonSets' pods do."""
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


# Before these faults the controller is taken off the nodes of some places, so that there is one fault at a time. Client and server run at
# west and east, and are nobody's to evict.
ELSEWHERE = {
    "transit node frozen": ("core1",),
    "transit node killed": ("core1",),
    "another node of the client's site killed": ("west2",),
    "node drained and uncordoned": ("west", "east"),
}
# name -> what happens, and whether the download's own agent dies of it
FAULTS: dict[str, tuple[Callable[[Lab], None], bool]] = {
    "nothing": (lambda lab: time.sleep(FAULT_S), False),  # what all others are to be compared with
    "operator killed": (kill("operator"), False),
    "controller killed": (kill("controller"), False),
    "switch of a transit site restarted": (restart("node", "core1"), False),
    "switch of the client's site restarted": (restart("node", "west"), False),
    "cable cut and mended": (cut_and_mend_a_cable, False),
    "transit node frozen": (freeze_a_transit_node, False),
    "transit node killed": (kill_a_node("core1"), False),
    "node drained and uncordoned": (drain_a_node, False),
    "another node of the client's site killed": (kill_a_node("west2"), True),
    "API server restarted": (restart_the_api_server, False),
    "agent near the client killed": (kill("agent", "west"), True),
    "agent near the server killed": (kill("agent", "east"), True),
}


@pytest.fixture(scope="module")
def results(lab: Lab) -> Iterator[dict[str, object]]:
    """Written down at the end, so that a failure keeps what came before."""
    path: Path = lab.settings.out / "faults.json"
    path.unlink(missing_ok=True)
    found: dict[str, object] = {}
    with contextlib.ExitStack() as at_end:
        at_end.callback(lambda: path.write_text(json.dumps(found, indent=2) + "\n"))
        yield found


@pytest.mark.parametrize("name", FAULTS)
def test_what_runs_goes_on_and_what_is_new_is_not_held_up(
    name: str, lab: Lab, accelerated: tuple[Lab, str], results: dict[str, object]
) -> None:
    fault, agent_dies = FAULTS[name]
    if name in ELSEWHERE:
        keep_the_controller_off(lab, ELSEWHERE[name])
    load = Load(lab.kube)
    at = time.time()
    fault(lab)
    time.sleep(SETTLED_S)
    outcome = load.finish()
    results[name] = outcome.summary()
    say(f"{name}: {json.dumps({k: v for k, v in outcome.summary().items() if k not in ('failures', 'slowest')})}")
    judge(outcome, accelerated[1], agent_dies=agent_dies, at=at)
    trace = json.loads(lab.kube.plugin("trace", workload.CLIENT, workload.SERVER, "80", "-o", "json", check=False))
    assert trace["outcome"] == "accelerated", "and all is as before"


def judge(outcome: Outcome, digest: str, *, agent_dies: bool, at: float) -> None:
    if agent_dies:
        assert outcome.status in (0, RESET), "neither right nor reset"
    else:
        assert outcome.status == 0
    if outcome.status == 0:
        assert outcome.sha256 == digest
    assert len(outcome.probes) > 50
    for probe in outcome.probes:
        assert probe.status != TIMED_OUT and probe.total_s < min(HANGS_S, PATIENCE_S), f"hung: {probe}"
        # Those that the dying agent had accepted; the clocks of pod and test are one.
        excused = agent_dies and probe.status in REFUSED and probe.at < at + HANGS_S
        assert probe.status == 0 or excused, probe
