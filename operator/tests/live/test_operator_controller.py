"""The operator with a real controller process: pushed configurations, reported states, detected losses."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from operator_agent import Agent, network
from operator_controller import Controller
from operator_fixtures import FIGURE8, becomes, children, condition, populated
from operator_kube import ROOT, Kube
from operator_nodes import Nodes, start_pods
from operator_plugin import sos
from operator_run import NAMESPACE, Operator, controller_keys, eventually, operator_running
from operator_switch import connected


@contextmanager
def controller_and_operator(kube: Kube, folder: Path) -> Iterator[tuple[Operator, Controller]]:
    controller = Controller(kube, folder)
    with populated(kube) as cluster, operator_running(cluster, folder, SOS_CONTROLLER_API_OVERRIDE=f"default={controller.url}") as operator:
        kube.kubectl("apply", "-f", str(ROOT / "examples" / "01-two-sites"))
        eventually("the controller's keys", lambda: [s for s in children(kube, "secrets") if "controllerkeys" in s["metadata"]["name"]])
        eventually("the keys of both sites, and the id of the sending key", lambda: len(controller_keys(kube)) == 3)
        try:
            controller.start()
            yield operator, controller
        finally:
            controller.kill()


@pytest.fixture(scope="module")
def pair(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Operator, Controller]]:
    with controller_and_operator(installed, tmp_path_factory.mktemp("pair")) as running:
        yield running


PROMISED_S = 10.0
"""Maximum age of a status."""
WIRE = {"a": {"site": "west", "uplink": "wan0"}, "b": {"site": "core1", "uplink": "wan1"}}
ONE_PORT_MORE = '[{"op": "add", "path": "/spec/ports/-", "value": {"port": 444}}]'


def in_force(controller: Controller) -> tuple[int, str]:
    config = controller.get("/v1/status")["config"]
    return config["generation"], config["hash"]


def document(kube: Kube) -> dict[str, Any]:
    return dict(json.loads(kube.get("configmap", "sos-controller-default", "-n", NAMESPACE)["data"]["config.json"]))


def test_the_configuration_arrives_and_is_reported(pair: tuple[Operator, Controller]) -> None:
    operator, controller = pair
    becomes(operator.kube, "soscontroller/default", "Available", "True", "Available")
    becomes(operator.kube, "soscontroller/default", "Ready", "True", "Available")
    assert in_force(controller) == (document(operator.kube)["generation"], document(operator.kube)["hash"])
    status = operator.kube.get("soscontroller", "default")["status"]
    assert (status["configGeneration"], status["configHash"]) == in_force(controller)
    assert status["datapaths"] == "0/4"
    assert status["endpoints"] == [
        f"tcp:{operator.kube.get('service', 'sos-controller-default', '-n', NAMESPACE)['spec']['clusterIP']}:6653"
    ]
    assert {site["name"] for site in controller.get("/v1/config")["sites"]} == {"west", "east", "core1", "core2"}


def test_the_state_of_a_service_comes_from_its_controller(pair: tuple[Operator, Controller]) -> None:
    """No switch is connected, so nothing is programmed; the reason comes from the controller."""
    operator, controller = pair
    said = eventually("the service", lambda: [s for s in controller.get("/v1/status")["services"] if s["id"] == "default/bulk"])[0]
    assert said["state"] == "Pending"
    becomes(operator.kube, "sosservice/default/bulk", "Programmed", "False", said["reason"])
    becomes(operator.kube, "sosservice/default/bulk", "Ready", "False", said["reason"])
    row = operator.kube.get("sosservice", "bulk", "-n", "default")["status"]
    assert row["datapaths"] == f"{len(said['acknowledged'])}/{len(said['needed'])}"
    assert (row["from"], row["to"], row["ports"]) == ("west", "east", "22,80,443,5000-5999")
    becomes(operator.kube, "sossite/west", "DatapathsConnected", "False", "NotConnected")
    becomes(operator.kube, "sossite/west", "AgentsRegistered", "False", "NotRegistered")


def test_a_change_is_in_force_within_seconds(pair: tuple[Operator, Controller]) -> None:
    operator, controller = pair
    before = in_force(controller)
    operator.kube.kubectl("patch", "sosservice", "bulk", "-n", "default", "--type=merge", "-p", '{"spec":{"priority":321}}')
    eventually("the new priority", lambda: controller.get("/v1/config")["services"][0]["priority"] == 321, 10)
    assert in_force(controller)[0] > before[0]


def test_a_lost_record_of_generations_does_not_block_changes(pair: tuple[Operator, Controller]) -> None:
    """After the loss of the record, the next configuration must still be newer than the controller's configuration."""
    operator, controller = pair
    kube = operator.kube
    before = in_force(controller)
    text = json.dumps({"data": {"generation": "0", "digest": "nothing"}})
    operator.process.send_signal(19)  # SIGSTOP, so that the operator observes both changes in one pass
    try:
        kube.kubectl("patch", "configmap", "sos-operator-state", "-n", NAMESPACE, "--type=merge", "-p", text)
        kube.kubectl("patch", "sosservice", "bulk", "-n", "default", "--type=merge", "-p", '{"spec":{"priority":322}}')
    finally:
        operator.process.send_signal(18)
    eventually("the new priority", lambda: controller.get("/v1/config")["services"][0]["priority"] == 322, 15)
    assert in_force(controller)[0] > before[0]


def test_loss_and_return_of_a_controller_are_reported(pair: tuple[Operator, Controller]) -> None:
    operator, controller = pair
    kube = operator.kube
    becomes(kube, "soscontroller/default", "Ready", "True", "Available")
    controller.kill()
    started = time.monotonic()
    for what in ("soscontroller/default", "sosservice/default/bulk"):
        becomes(kube, what, "Ready", "Unknown", "ControllerUnreachable")
    assert time.monotonic() - started < 10, "the loss is reported within the promised 10 s"
    becomes(kube, "sossite/west", "DatapathsConnected", "Unknown", "ControllerUnreachable")
    controller.start()
    started = time.monotonic()
    becomes(kube, "soscontroller/default", "Ready", "True", "Available")
    assert in_force(controller)[1] == document(kube)["hash"]
    assert time.monotonic() - started < 10, "the return is reported within 10 s"
    events = [e["message"] for e in kube.items("events", "-n", "default") if e["involvedObject"]["name"] == "default"]
    assert any("is now Unknown" in message for message in events)
    assert any("is now True" in message for message in events)


def test_loss_and_return_of_a_datapath_are_reported(pair: tuple[Operator, Controller]) -> None:
    operator, controller = pair
    kube = operator.kube
    becomes(kube, "soscontroller/default", "Ready", "True", "Available")
    dpids = {s["metadata"]["name"]: s["status"]["nodes"][0]["datapathId"] for s in kube.items("sossites")}
    with connected(list(dpids.values()), controller.openflow) as switches:
        for site in dpids:
            becomes(kube, f"sossite/{site}", "DatapathsConnected", "True", "Connected", PROMISED_S)
        assert kube.get("soscontroller", "default")["status"]["datapaths"] == "4/4"
        becomes(kube, "sossite/core1", "AgentsRegistered", "True", "NoneExpected")
        switches[dpids["core1"]].close()
        row = becomes(kube, "sossite/core1", "DatapathsConnected", "False", "NotConnected", PROMISED_S)
        assert dpids["core1"] in row["message"]
        assert condition(kube, "sossite", "core2", "DatapathsConnected")["status"] == "True"
        with connected([dpids["core1"]], controller.openflow):
            becomes(kube, "sossite/core1", "DatapathsConnected", "True", "Connected", PROMISED_S)
        # The service waits for agents, so it is not programmed.
        assert condition(kube, "sosservice", "bulk", "Programmed", "default")["status"] == "False"


def test_loss_and_return_of_an_agent_are_reported(pair: tuple[Operator, Controller]) -> None:
    """Agents register themselves through their switch, independent of pods."""
    operator, controller = pair
    kube = operator.kube
    becomes(kube, "soscontroller/default", "Ready", "True", "Available")
    status = {s["metadata"]["name"]: s["status"] for s in kube.items("sossites")}
    edges = {site: status[site]["nodes"][0]["datapathId"] for site in ("west", "east")}
    agents = {site: Agent(kube, "default", site, node) for node, site in FIGURE8.items() if site in edges}

    def counts() -> tuple[str, str]:
        site, controller_status = kube.get("sossite", "west")["status"], kube.get("soscontroller", "default")["status"]
        return site["agentsRegistered"], str(controller_status["registeredAgents"])

    with connected(list(edges.values()), controller.openflow) as switches, agents["east"].running(switches[edges["east"]]):
        with agents["west"].running(switches[edges["west"]]):
            becomes(kube, "sossite/west", "AgentsRegistered", "True", "Registered", PROMISED_S)
            becomes(kube, "sosagent/default", "Registered", "True", "Registered", PROMISED_S)
            eventually("both agents counted", lambda: counts() == ("1/1", "2"), PROMISED_S)
            listed = {agent["id"] for agent in controller.get("/v1/agents")["agents"]}
            assert listed == {agent.id.hex() for agent in agents.values()}
        row = becomes(kube, "sossite/west", "AgentsRegistered", "False", "NotRegistered", PROMISED_S)
        assert "edge1" in row["message"]
        row = becomes(kube, "sosagent/default", "Registered", "False", "NotRegistered", PROMISED_S)
        assert "edge1" in row["message"] and "edge2" not in row["message"]
        eventually("one agent counted", lambda: counts() == ("0/1", "1"), PROMISED_S)
        assert condition(kube, "sossite", "east", "AgentsRegistered")["status"] == "True"
        with Agent(kube, "default", "west", "edge1").running(switches[edges["west"]]):
            becomes(kube, "sossite/west", "AgentsRegistered", "True", "Registered", PROMISED_S)
            becomes(kube, "sosagent/default", "Registered", "True", "Registered", PROMISED_S)
    becomes(kube, "sossite/east", "AgentsRegistered", "False", "NotRegistered", PROMISED_S)


def test_a_service_is_not_programmed_until_every_switch_confirms(pair: tuple[Operator, Controller]) -> None:
    operator, controller = pair
    kube = operator.kube
    becomes(kube, "soscontroller/default", "Ready", "True", "Available")
    with network(kube, controller.openflow) as switches:
        becomes(kube, "sosservice/default/bulk", "Programmed", "True", "Programmed")
        kube.kubectl("wait", "--for=condition=Ready", "sosservice/bulk", "--timeout=20s")
        with switches["west"].busy():
            kube.kubectl("patch", "sosservice", "bulk", "-n", "default", "--type=json", "-p", ONE_PORT_MORE)
            row = becomes(kube, "sosservice/default/bulk", "Programmed", "False", "Programming", PROMISED_S)
            assert "edge1" in row["message"] and "edge2" not in row["message"], row
            becomes(kube, "sosservice/default/bulk", "Ready", "False", "Programming", PROMISED_S)
            assert condition(kube, "sossite", "west", "DatapathsConnected")["status"] == "True", "the switch is connected, but busy"
        becomes(kube, "sosservice/default/bulk", "Programmed", "True", "Programmed", PROMISED_S)
        becomes(kube, "sosservice/default/bulk", "Ready", "True", "Programmed", PROMISED_S)
    becomes(kube, "sosservice/default/bulk", "Ready", "False", "DatapathDisconnected", 2 * PROMISED_S)


def test_a_link_is_up_while_probes_pass(pair: tuple[Operator, Controller]) -> None:
    operator, controller = pair
    kube = operator.kube
    kube.apply({"apiVersion": "sos.network/v1alpha1", "kind": "SosLink", "metadata": {"name": "wire"}, "spec": WIRE})
    try:
        row = becomes(kube, "soslink/wire", "Up", "False", "Down", PROMISED_S)
        assert "wan0 of west" in row["message"] and "wan1 of core1" in row["message"]
        with network(kube, controller.openflow):
            becomes(kube, "soslink/wire", "Up", "True", "Up", PROMISED_S)
            kube.kubectl("wait", "--for=condition=Ready", "soslink/wire", "--timeout=20s")
        becomes(kube, "soslink/wire", "Ready", "False", "Down", PROMISED_S)
    finally:
        kube.kubectl("delete", "soslink", "wire")


def test_kubectl_wait_works_with_every_kind(pair: tuple[Operator, Controller]) -> None:
    """`kubectl wait` also works directly after an edit: it ignores conditions whose observed generation is older than the object's."""
    operator, _ = pair
    kube = operator.kube
    link = {"a": {"site": "west", "uplink": "wan0"}, "b": {"site": "core1", "uplink": "wan0"}}
    kube.apply({"apiVersion": "sos.network/v1alpha1", "kind": "SosLink", "metadata": {"name": "waited"}, "spec": link})
    edits = {
        "sossite/west": {"network": {"mtu": 1400}},
        "sosagent/default": {"drainSeconds": 33},
        "soscontroller/default": {"service": {"type": "NodePort"}},
        "soslink/waited": {"cost": 77},
        "sosservice/bulk": {"priority": 77},
    }
    try:
        for what, spec in edits.items():
            kube.kubectl("wait", "--for=condition=Accepted", what, "--timeout=20s")
            kube.kubectl("patch", what, "--type=merge", "-p", json.dumps({"spec": spec}))
            kube.kubectl("wait", "--for=condition=Accepted", what, "--timeout=20s")
            obj = kube.get(*what.split("/"))
            assert obj["status"]["observedGeneration"] == obj["metadata"]["generation"]
        kube.kubectl("wait", "--for=condition=Ready", "soscontroller/default", "--timeout=20s")
        unready = ("sosservice/bulk", "sossite/west", "sosagent/default", "soslink/waited")
        kube.kubectl("wait", "--for=condition=Ready=false", *unready, "--timeout=20s")
    finally:
        kube.kubectl("delete", "soslink", "waited")


READY = {
    "soscontroller/default": "Available",
    "sossite/west": "Ready",
    "sosagent/default": "Ready",
    "sosservice/default/bulk": "Programmed",
    "soslink/wire": "Up",
}


def test_readiness_of_every_kind_follows_the_controller(pair: tuple[Operator, Controller]) -> None:
    """Nodes answer, switches are connected, agents are registered, probes pass: every part of Ready. Then the controller is lost."""
    operator, controller = pair
    kube = operator.kube
    kube.apply({"apiVersion": "sos.network/v1alpha1", "kind": "SosLink", "metadata": {"name": "wire"}, "spec": WIRE})
    try:
        with Nodes(kube).serving() as nodes, network(kube, controller.openflow):
            start_pods(kube, nodes)
            for what, reason in READY.items():
                becomes(kube, what, "Ready", "True", reason)
            wait_for_ready(kube)
            controller.kill()
            all_become(kube, "Unknown", dict.fromkeys(READY, "ControllerUnreachable"))
            done = kube.kubectl("wait", "--for=condition=Ready", "sossite/west", "--timeout=1s", check=False)
            assert done.returncode != 0 and "timed out" in done.stderr
            known = condition(kube, "sossite", "west", "BridgesReady"), condition(kube, "sosagent", "default", "Deployed")
            assert [row["status"] for row in known] == ["True", "True"], "conditions reported by nodes and pods stay known"
            controller.start()
            all_become(kube, "True", READY)
            wait_for_ready(kube)
    finally:
        if controller.process is None:
            controller.start()
        kube.kubectl("delete", "soslink", "wire")
        kube.clear("pods", "-n", NAMESPACE)


def all_become(kube: Kube, status: str, reasons: dict[str, str]) -> None:
    """Wait until all objects have their reason, within the time promised for one object."""
    end = time.monotonic() + PROMISED_S
    for what, reason in reasons.items():
        becomes(kube, what, "Ready", status, reason, max(end - time.monotonic(), 0.3))


def wait_for_ready(kube: Kube) -> None:
    """Run `kubectl wait`, as users and scripts do."""
    for what in READY:
        kind, *namespace, name = what.split("/")
        place = ("-n", namespace[0]) if namespace else ()
        kube.kubectl("wait", "--for=condition=Ready", f"{kind}/{name}", *place, "--timeout=10s")


def test_a_wrong_token_is_reported(pair: tuple[Operator, Controller]) -> None:
    operator, controller = pair
    token = controller.folder / "token" / "token"
    good = token.read_bytes()
    token.write_bytes(b"another")
    try:
        eventually("the controller uses the new token", lambda: not controller.admits(good), 15)
        operator.kube.kubectl("patch", "sosservice", "bulk", "-n", "default", "--type=merge", "-p", '{"spec":{"priority":400}}')
        becomes(operator.kube, "soscontroller/default", "Available", "False", "ConfigRefused")
        assert "401" in condition(operator.kube, "soscontroller", "default", "Available")["message"]
    finally:
        token.write_bytes(good)
    becomes(operator.kube, "soscontroller/default", "Available", "True", "Available")


def test_the_plugin_shows_topology_flows_and_reasons_of_plain(pair: tuple[Operator, Controller]) -> None:
    operator, controller = pair

    def ask(*words: str) -> tuple[int, str]:
        done = sos(operator.kube, *words, "--url", controller.url)
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout

    becomes(operator.kube, "soscontroller/default", "Ready", "True", "Available")
    code, shown = ask("topology")
    assert code == 0 and len([line for line in shown.splitlines() if "DISCONNECTED" in line]) == 4
    assert ask("flows") == (0, "no sessions\n")
    code, shown = ask("flows", "-o", "json")
    assert (code, json.loads(shown)) == (0, {"sessions": [], "total": 0}), shown
    code, shown = ask("trace", "10.0.0.11", "10.0.0.139", "5001")
    assert code == 1 and "service default/bulk covers it" in shown and "no agent of west is registered" in shown
    followed = subprocess.run(
        ["timeout", "3", sys.executable, "-m", "sos_kubectl", "flows", "-f", "--url", controller.url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (followed.returncode, followed.stderr) == (124, ""), "flows -f runs until it is ended, and prints nothing without changes"
    code, shown = ask("trace", "10.0.0.11", "10.0.0.139", "8080", "-o", "json")
    assert code == 1 and "5000-5999" in json.loads(shown)["why"]
