"""Two operators and one Lease against a real API server, whose audit log shows the writer and time of each write."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from operator_fixtures import children, populated
from operator_kube import ROOT, Kube, free_port, tied
from operator_run import NAMESPACE, environment, eventually, helm
from operator_scale import WRITES
from operator_table import build, create
from sos_operator.cluster import lease_watchdog
from sos_operator.core.scheduling.lease import Terms

CHART = str(ROOT / "charts" / "sos")
TERMS = Terms(8)
PASS_S = 15  # time for starting the watches and one pass on a busy machine
SITES = 40
# An operator whose compilations take longer than its lease, like the first compilation for a cluster of many hundred nodes.
SLOW = """
import sys, time
from sos_operator import __main__, reconcile

def slow(*args, compile=reconcile.build_output):
    until = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < until:
        sum(range(1000))
    return compile(*args)

reconcile.build_output = slow
sys.exit(__main__.main(sys.argv[1:2]))
"""


@dataclass
class Replica:
    """One of several operators, identified in the audit log by its own token."""

    process: subprocess.Popen[bytes]
    port: int
    token_id: str
    log: Path

    def answers(self, path: str) -> tuple[int, str]:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()

    def leads(self) -> bool:
        try:
            return "sos_operator_leader 1.0" in self.answers("/metrics")[1]
        except OSError:
            return False


class Several:
    """A group of operators, ended with the stack."""

    def __init__(self, kube: Kube, folder: Path, stack: ExitStack) -> None:
        self.kube, self.folder, self._stack = kube, folder, stack
        self.all: list[Replica] = []

    def start(self, seconds: int = TERMS.duration, program: tuple[str, ...] = ("-m", "sos_operator", "run")) -> Replica:
        token = self.kube.kubectl("create", "token", "sos-operator", "-n", NAMESPACE).stdout.strip()
        payload = token.split(".")[1]
        token_id = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["jti"]
        name, port = f"replica{len(self.all)}", free_port()
        extra = {
            "KUBECONFIG": str(self.kube.config_for(name, token)),
            "SOS_LEASE": "sos-operator",
            "SOS_LEASE_SECONDS": str(seconds),
            "SOS_CONTROLLER_API_OVERRIDE": "default=http://127.0.0.1:1",
        }
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                tied(sys.executable, *program),
                env=environment(self.kube, port, extra),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )
        self._stack.callback(lambda: (process.kill(), process.wait()))
        replica = Replica(process, port, token_id, log)
        self.all.append(replica)
        return replica

    def pair(self, seconds: int = TERMS.duration) -> tuple[Replica, Replica]:
        """Start one active operator and one standby."""
        first = self.start(seconds)
        eventually("the first holds the lease", first.leads, 30)
        second = self.start(seconds)
        eventually("the second stands by", lambda: self.waits(second), 30)
        return first, second

    def waits(self, replica: Replica) -> bool:
        try:
            return replica.answers("/readyz") == (200, "standing by\n")
        except OSError:
            return False

    def requests(self) -> list[dict[str, Any]]:
        """Requests of all operators, in the order of their answers."""
        names = {replica.token_id: replica for replica in self.all}
        found = []
        for event in self.kube.audit():
            (said,) = event["user"].get("extra", {}).get("authentication.kubernetes.io/credential-id", [""])
            replica = names.get(said.removeprefix("JTI="))
            if replica is not None and "objectRef" in event:
                found.append({**event, "by": replica})
        return sorted(found, key=lambda event: event["stageTimestamp"])

    def out_of_turn(self) -> list[str]:
        """Writes that an operator sent while another operator held the Lease."""
        taken: list[tuple[str, Replica]] = []
        for event in self.requests():
            if event["objectRef"]["resource"] == "leases" and event["verb"] in WRITES and event["responseStatus"]["code"] < 300:
                taken.append((event["stageTimestamp"], event["by"]))
        assert taken, "no operator has taken the Lease"
        wrong = []
        for event in self.requests():
            if event["verb"] not in WRITES or event["objectRef"]["resource"] == "leases":
                continue
            before = [by for at, by in taken if at < event["requestReceivedTimestamp"]]
            if not before or before[-1] is not event["by"]:
                wrong.append(f"{event['by'].log.stem} {event['verb']} {event['requestURI']} {event['requestReceivedTimestamp']}")
        return wrong

    def writes(self, replica: Replica) -> int:
        return len([e for e in self.requests() if e["by"] is replica and e["verb"] in WRITES and e["objectRef"]["resource"] != "leases"])


ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def strategy_after(kube: Kube, *values: str) -> dict[str, Any]:
    """Run `helm upgrade` and return the resulting strategy of the Deployment."""
    helm(kube, "upgrade", "sos", CHART, "-n", NAMESPACE, *values)
    return dict(kube.get("deployment", "sos-operator", "-n", NAMESPACE)["spec"]["strategy"])


@pytest.fixture(scope="module")
def chart(installed: Kube) -> Iterator[Kube]:
    """The chart with several operators; upgraded from one operator, and restored afterwards."""
    assert strategy_after(installed, "--set", "operator.replicas=2") == {"type": "Recreate"}, "the running operator does not use a Lease"
    assert strategy_after(installed, "--set", "operator.replicas=2") == ROLLING, "all running operators use the Lease"
    yield installed
    assert strategy_after(installed, "--reset-values") == {"type": "Recreate"}


@pytest.fixture
def several(chart: Kube, tmp_path: Path) -> Iterator[Several]:
    with populated(chart) as kube, ExitStack() as stack:
        created = Several(kube, tmp_path, stack)
        yield created
        assert created.out_of_turn() == []
    chart.kubectl("delete", "lease", "sos-operator", "-n", NAMESPACE)


def sites(number: int) -> list[dict[str, Any]]:
    found = []
    for i in range(number):
        spec = {"nodeSelector": {"matchLabels": {"site": str(i)}}, "prefixes": [f"10.{i}.0.0/16"], "siteID": i + 1}
        found.append(build(f"site{i:02}", {"kind": "SosSite", "spec": spec}))
    return found


def fill(kube: Kube) -> None:
    """Create enough objects for a pass with many writes."""
    create(kube, build("default", {"kind": "SosController", "spec": {}}))
    create(kube, build("default", {"kind": "SosAgent", "spec": {}}))
    kube.apply(*({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{i:02}", "labels": {"site": str(i)}}} for i in range(SITES)))
    for site in sites(SITES):
        create(kube, site)


def names(kube: Kube) -> set[str]:
    return {c["metadata"]["name"] for c in children(kube, "daemonsets")}


def has(kube: Kube, site: str) -> bool:
    return {f"sos-node-{site}", f"sos-agent-default-{site}"} <= names(kube)


@pytest.mark.slow
def test_only_the_holder_writes_and_a_clean_stop_hands_over_the_lease(several: Several) -> None:
    kube = several.kube
    first, second = several.pair(seconds=60)
    create(kube, build("default", {"kind": "SosController", "spec": {}}))
    eventually("children of the controller", lambda: children(kube, "deployments"))
    assert several.writes(first) and not several.writes(second)
    assert second.answers("/healthz") == (200, "ok\n"), "a standby is healthy"
    assert "sos_operator_leader 0.0" in second.answers("/metrics")[1]
    assert first.answers("/readyz") == (200, "ok\n")
    lease = kube.get("lease", "sos-operator", "-n", NAMESPACE)
    assert [owner["kind"] for owner in lease["metadata"]["ownerReferences"]] == ["Deployment"]

    first.process.terminate()
    assert first.process.wait(20) == 0
    # 30 s are less than the lease's 60 s: the holder has released the Lease
    eventually("the second takes over", second.leads, 30)
    create(kube, sites(1)[0])
    kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n00", "labels": {"site": "0"}}})
    eventually("children of the new site", lambda: "sos-node-site00" in names(kube), PASS_S)
    second.process.terminate()
    assert second.process.wait(20) == 0
    assert "holderIdentity" not in kube.get("lease", "sos-operator", "-n", NAMESPACE)["spec"]


def test_a_killed_holder_is_replaced_within_the_promised_time(several: Several) -> None:
    kube = several.kube
    first, second = several.pair()
    create(kube, build("default", {"kind": "SosController", "spec": {}}))
    eventually("children of the controller", lambda: children(kube, "deployments"))
    first.process.kill()
    first.process.wait()
    kube.kubectl("delete", "deployment", "-n", NAMESPACE, "sos-controller-default")
    eventually("a repair by the second operator", lambda: children(kube, "deployments"), TERMS.duration + TERMS.pace + PASS_S)
    assert second.leads()


@pytest.mark.slow
def test_a_holder_stopped_beyond_its_lease_writes_no_more(several: Several) -> None:
    """The holder is stopped during a pass with many writes. Without the watchdog, it would continue this pass when it is resumed."""
    kube = several.kube
    first, second = several.pair()
    fill(kube)
    eventually("the first of many children", lambda: names(kube), 60)
    first.process.send_signal(signal.SIGSTOP)
    there, wrote = len(names(kube)), several.writes(first)
    assert there < 2 * SITES, "the holder was stopped during the pass"
    eventually("the second takes over", second.leads, TERMS.duration + TERMS.pace + PASS_S)
    assert several.writes(first) <= wrote + 1, "at most the request in flight was written"
    wrote = several.writes(first)
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(20) == lease_watchdog.EXIT_STATUS
    eventually("all children", lambda: all(has(kube, f"site{i:02}") for i in range(SITES)), 60)
    assert several.writes(first) == wrote
    assert second.leads()


@pytest.mark.slow
def test_a_compile_longer_than_a_lease_keeps_the_lease(several: Several) -> None:
    kube = several.kube
    create(kube, build("default", {"kind": "SosController", "spec": {}}))
    first = several.start(program=("-c", SLOW, "run", str(1.5 * TERMS.duration)))
    eventually("an operator holds the lease", lambda: kube.get("lease", "sos-operator", "-n", NAMESPACE), 30)
    second = several.start()
    eventually("children from its compilation", lambda: children(kube, "deployments"), 1.5 * TERMS.duration + PASS_S)
    eventually("the first operator is still active", first.leads, 1.5 * TERMS.duration + PASS_S)
    assert several.waits(second)
    assert several.writes(first)
    assert several.writes(second) == 0
    assert kube.get("lease", "sos-operator", "-n", NAMESPACE)["spec"]["leaseTransitions"] == 0
