"""A machine outside Kubernetes is a full peer: agent2's gateway has an enrollment only, and gets its configuration from agent1.

client 10.1.0.11 -- agent1 (cluster) ==two paths== agent2 (machine `east`) -- 10.2.0.11 server
"""

import base64
import json
import re
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually, explain, say
from sos_compile import Compiled, Namespace, Node, Settings, World, compile_world, keys
from sos_compile.documents.enrollment import build_enrollment
from sos_testbed.core.steps import Spawn
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle import northbound, process
from sos_testbed.lifecycle.lab import Lab, Options
from sos_testbed.measurements import measure
from sos_testbed.measurements.measure import Request

SIZE = 20_000_000
CARD_PORT = 14790
SITE_ID = 9
PAIRING, CLUSTER = bytes(range(16)), "aa" * 16
MACHINE = {"siteID": SITE_ID, "addresses": ["192.0.2.2", "198.51.100.2"], "interface": "lan0"}
UNIT = Path(__file__).parents[4] / "operator" / "kubectl-plugin" / "src" / "sos_kubectl" / "enrollment" / "sos-agent.service"
CAPABILITIES = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)[0].lower().split()
RESTRICTED = (
    "setpriv",
    "--no-new-privs",
    f"--bounding-set=-all,{','.join('+' + name.removeprefix('cap_') for name in CAPABILITIES)}",
    "--inh-caps=-all",
)


@dataclass
class Cluster:
    """Writes agent1's files in place of the operator, for a cluster with the site west and the machine east."""

    net: Lab
    folder: Path
    secrets: dict[int, bytes] = field(default_factory=lambda: {1: secrets.token_bytes(32)})
    installation: str | None = None
    agreed: int | None = None
    """Id of the newest key that the machine has used."""
    generation: int = 100

    def compile(self, **machine: Any) -> Compiled:
        objects = [each.obj for each in self.net.objects if (each.obj["kind"], each.obj["metadata"]["name"]) != ("SosSite", "east")]
        spec = {"prefixes": ["10.2.0.0/24"], "machine": {**MACHINE, **machine}}
        peer = {"apiVersion": "sos.network/v1alpha1", "kind": "SosPeer", "metadata": {"name": "east"}, "spec": spec}
        node = Node("agent1", {"sos.network/site": "west"}, "192.0.2.1")
        self.generation += 1
        world = World((*objects, peer), (node,), (Namespace("default"),), Settings(generation=self.generation))
        compiled = compile_world(world)
        assert [problem.line() for problem in compiled.problems if not problem.warning] == []
        return compiled

    def declare(self, **machine: Any) -> dict[str, Any]:
        """Write the files of agent1; return the agent-config of the machine."""
        compiled = self.compile(**machine)
        west, east = compiled.agents["default", "agent1"], compiled.machines["east"]
        folder = self.folder / "keys"
        folder.mkdir(parents=True, exist_ok=True)
        for key_id, secret in self.secrets.items():
            pair = keys.pair_key(secret, west["site"]["id"], SITE_ID)
            (folder / f"pair-{SITE_ID}-{key_id}").write_text(pair.hex())
            (folder / f"sending-{SITE_ID}").write_text(str(self.agreed or min(self.secrets)))
            (folder / f"card-{PAIRING.hex()}-{key_id}").write_text(keys.expand(secret, b"sos/card").hex())
        (folder / "site-1").write_text("07" * 32)
        self.write("agent1.json", west)
        row = {"pairing": PAIRING.hex(), "installation": self.installation, "sequence": self.generation, "card": json.dumps(east)}
        self.write("peers.json", {"version": "v1alpha1", "port": CARD_PORT, "installation": CLUSTER, "peers": [row]})
        return east

    def write(self, name: str, document: dict[str, Any]) -> None:
        beside = self.folder / f"{name}.new"
        beside.write_text(json.dumps(document))
        beside.rename(self.folder / name)

    def enroll(self, name: str = "enrollment.json") -> Path:
        self.write(name, build_enrollment("east", SITE_ID, PAIRING, self.secrets, [("192.0.2.1", CARD_PORT)]))
        return self.folder / name

    def start_agent(self) -> None:
        paths = ("--config", "agent1.json", "--keys", "keys", "--peers", "peers.json", "--state", "state")
        argv = [word if word.startswith("--") else str(self.folder / word) for word in paths]
        self.start("agent1", "agent1", *argv, "--node", "agent1")

    def start_machine(self, state: str = "machine", name: str = "agent2") -> None:
        """Start the machine's agent with the capabilities of its systemd unit only."""
        arguments = ("--enrollment", str(self.folder / "enrollment.json"), "--state", str(self.folder / state))
        self.start(name, "agent2", *arguments, before=RESTRICTED)

    def start(self, name: str, part: str, *argv: str, before: tuple[str, ...] = ()) -> None:
        command = self.net.exec_argv(part, (*before, self.net.plan.programs.agent, *argv))
        process.start(Spawn(name=name, argv=command, log=self.log(name)), self.net.runner.pid_file(name))

    def log(self, name: str) -> str:
        return str(self.net.root / "log" / f"{name}-enrolled.log")

    def reports(self) -> list[dict[str, Any]]:
        """Offers that agent1 has stored, as the operator reads them."""
        command = self.net.exec_argv("agent1", ("curl", "-sS", "-m", "5", "http://127.0.0.1:9465/cards"))
        page = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        self.refused: dict[str, int] = page["refused"]
        return list(page["offers"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    net = labs.up(Options(topology="routed-wan"), say)
    try:
        for name in ("agent1", "agent2"):
            process.stop(net.runner.pid_file(name), grace_s=60)
        cluster = Cluster(net, tmp_path_factory.mktemp("cluster"))
        cluster.declare()
        cluster.enroll()
        # The machine starts first, and waits for its configuration.
        cluster.start_machine()
        eventually("a machine that waits", lambda: "waiting for the first configuration" in Path(cluster.log("agent2")).read_text())
        cluster.start_agent()
        yield cluster
        explain(net)
    finally:
        net.down()


def ready(cluster: Cluster, document: dict[str, Any]) -> bool:
    """True if both agents reach each other, and the machine has this agent-config in force."""
    try:
        here = northbound.agent_status(cluster.net.plan, "agent1", document)
        there = northbound.agent_status(cluster.net.plan, "agent2", document)
    except labs.LabError:
        return False
    willing = all(service["ready"] for status in (here, there) for service in status["services"])
    return bool(willing and there["generation"] == document["generation"])


def check_accelerated(cluster: Cluster, tmp_path: Path) -> None:
    """Download from the server behind the machine, by the agents and from the client's address."""
    net = cluster.net
    payload = net.root / "www" / "payload"
    labs.make_payload(payload, SIZE)
    before = relayed(cluster)
    done = measure.download(net, Request(path=payload, max_time_s=60), tmp_path / "copy")
    assert measure.same_bytes(payload, tmp_path / "copy", complete=done.complete)
    assert done.server_saw.startswith(str(measure.address(net, "client"))), done
    eventually("the end of a session", lambda: relayed(cluster) > before)


def relayed(cluster: Cluster) -> float:
    """Sessions of the machine's agent that have ended."""
    command = cluster.net.exec_argv("agent2", ("curl", "-sS", "-m", "5", "http://127.0.0.1:9465/metrics"))
    page = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line for line in page if line.startswith("sos_agent_sessions_ended_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in rows)


def test_an_enrolled_machine_is_a_full_peer(cluster: Cluster, tmp_path: Path) -> None:
    document = cluster.declare()
    eventually("both agents in force", lambda: ready(cluster, document))
    check_accelerated(cluster, tmp_path)
    report = report_of(cluster)
    assert report["pairing"] == PAIRING.hex()


def test_a_new_configuration_arrives_without_a_restart(cluster: Cluster, tmp_path: Path) -> None:
    document = cluster.declare(limits={"sessions": 77}, inbound="Blocked")
    eventually("the new configuration", lambda: ready(cluster, document), within_s=20)
    check_accelerated(cluster, tmp_path)


def test_the_machine_starts_with_its_last_configuration_while_the_cluster_is_away(cluster: Cluster, tmp_path: Path) -> None:
    document = cluster.declare()
    eventually("both agents in force", lambda: ready(cluster, document))
    for name in ("agent1", "agent2"):
        cluster.net.kill(name)
    cluster.start_machine()
    eventually("the machine alone", lambda: northbound.agent_status(cluster.net.plan, "agent2", document)["hash"] == document["hash"])
    cluster.start_agent()
    eventually("both agents in force", lambda: ready(cluster, document))
    check_accelerated(cluster, tmp_path)


def refusals(cluster: Cluster, cause: str) -> int:
    """Number of Offers that agent1 has refused for this cause."""
    cluster.reports()
    return cluster.refused[cause]


def report_of(cluster: Cluster) -> dict[str, Any]:
    """The machine's next Offer. Reading removes an Offer, and the machine sends one every two seconds."""
    (report,) = eventually("an Offer", cluster.reports)
    return report


def used_key(cluster: Cluster) -> int:
    """Id of the key that signed the machine's last report."""
    report = report_of(cluster)
    return int.from_bytes(base64.b64decode(report["message"])[6:8])


def test_a_renewed_key_replaces_the_former_one(cluster: Cluster, tmp_path: Path) -> None:
    """As `kubectl sos enroll --renew`: the file arrives at the machine first, and connections are accelerated all the time."""
    cluster.secrets = {**cluster.secrets, 2: secrets.token_bytes(32)}
    before = refusals(cluster, "UnknownKey")
    cluster.enroll()
    eventually("an Offer with the new key", lambda: refusals(cluster, "UnknownKey") > before)
    assert used_key(cluster) == 1, "the agent of the cluster does not have the new key"
    check_accelerated(cluster, tmp_path)
    document = cluster.declare()
    eventually("a report with the new key", lambda: used_key(cluster) == 2)
    check_accelerated(cluster, tmp_path)
    cluster.agreed, cluster.secrets = 2, {2: cluster.secrets[2]}
    for file in (cluster.folder / "keys").glob("*-1"):
        if not file.name.startswith("site-"):
            file.unlink()
    document = cluster.declare()
    cluster.enroll()
    for name in ("agent1", "agent2"):
        cluster.net.kill(name)
    cluster.start_agent()
    cluster.start_machine()
    eventually("both agents with the new key alone", lambda: ready(cluster, document))
    check_accelerated(cluster, tmp_path)


def test_a_machine_recovers_from_a_configuration_with_which_it_cannot_start(cluster: Cluster, tmp_path: Path) -> None:
    cluster.declare(interface="typo0")
    eventually("the configuration at the machine", lambda: "typo0" in (cluster.folder / "machine" / "received.json").read_text())
    cluster.net.kill("agent2")
    cluster.start_machine()
    report = eventually("a report of the problem", lambda: "typo0" in problem(cluster))
    assert report
    document = cluster.declare()
    eventually("the end of the agent, which its unit restarts", lambda: process.find(cluster.net.runner.pid_file("agent2")) is None)
    cluster.start_machine()
    eventually("both agents in force", lambda: ready(cluster, document))
    check_accelerated(cluster, tmp_path)


def problem(cluster: Cluster) -> str:
    """Problem in the machine's last report."""
    report = report_of(cluster)
    header, tag = 72, 32
    return str(json.loads(base64.b64decode(report["message"])[header:-tag])["problem"])


def test_a_copy_of_the_enrollment_receives_no_configuration(cluster: Cluster) -> None:
    """The operator notes the installation of the first report; a machine with a copy of the file has another one."""
    identity = json.loads((cluster.folder / "machine" / "machine.json").read_text())
    cluster.installation = str(identity["installation"])
    document = cluster.declare()
    eventually("both agents in force", lambda: ready(cluster, document))
    cluster.start_machine(state="thief", name="thief")
    try:
        eventually("a refusal", lambda: "another machine uses this enrollment" in Path(cluster.log("thief")).read_text())
        assert not (cluster.folder / "thief" / "received.json").exists()
        assert refusals(cluster, "OtherInstallation") > 0
    finally:
        cluster.net.kill("thief")
