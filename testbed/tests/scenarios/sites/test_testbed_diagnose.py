"""`kubectl sos diagnose` names the single fault of a lab, and never reports ok while a real transfer fails.

client -- edge1 ======= core1 ------- edge2 -- server
            |  ======== core2 --------  |
         agent1                      agent2
"""

import json
import secrets
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import active, armed, eventually, lend, metrics, outcome, peer, sessions, with_service
from sos_testbed.core import realise
from sos_testbed.core.realise import emulator_ends
from sos_testbed.core.topology import PathOptions
from sos_testbed.lifecycle import faults, process
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab, Options
from sos_testbed.measurements import measure
from sos_testbed.measurements.measure import Request

KUBECTL_SOS = Path(sys.executable).with_name("kubectl-sos")
TIMEOUT_S = 180
SMALL_MTU = 1300
FILE_BYTES = 2_000_000
UPLOADED = (201, 204)  # HTTP status for a new and for a replaced file
SHUNNED_S, SLACK_S = 30, 15  # an agent keeps a silent server plain for 30 s (arming.rs), plus detection time
HUNG_S = 90  # time until hanging sessions have ended; less than the 127 s after which the kernel gives up an unanswered SYN
FILE_S = 12
"""Limit for a transfer of the file, which takes a fifth of a second over a link of the lab."""
PORT = 5009
PATH = PathOptions(rate_bps=100_000_000, rtt_us=20_000)


@pytest.fixture(scope="module")
def shared() -> Iterator[Lab]:
    built = labs.up(Options(path1=PATH, path2=PATH, name="diagnose"))
    yield built
    built.down()


@pytest.fixture
def net(shared: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    yield from lend(shared, request)


def diagnose(net: Lab, *arguments: str) -> dict[str, Any]:
    """Diagnosis of west to east, as JSON; checks the exit code against the verdict."""
    argv = (str(KUBECTL_SOS), "diagnose", "west", "east", "--lab", net.name, "--seconds", "1", "-o", "json", *arguments)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.stdout, done.stderr
    (said,) = json.loads(done.stdout)["pairs"]
    print(json.dumps(said, indent=1))
    assert (done.returncode == 0) == (said["verdict"] == "ok")
    sent = [said[pair][way]["ok"] for pair in ("through", "plain") if said[pair] for way in ("up", "down")]
    assert said["verdict"] != "ok" or (len(sent) == 4 and all(sent) and said["accelerated"] and not said["findings"])
    assert all(sent) or said["verdict"] == "broken"
    found: dict[str, Any] = said
    return found


# -- faults: each breaks one part during the block


@contextmanager
def controller_dead(net: Lab) -> Iterator[None]:
    faults.controller(net, "controller", up=False)
    yield


@contextmanager
def agent_dead(net: Lab) -> Iterator[None]:
    faults.agent(net, "agent2", up=False)
    yield


@contextmanager
def management_cut(net: Lab) -> Iterator[None]:
    """Cut the controller connection of a switch, which keeps forwarding."""
    with set_link(net, "edge2", "mgmt0"):
        # Open vSwitch and the controller each send an echo request after five seconds of silence
        yield


@contextmanager
def link_down(net: Lab) -> Iterator[None]:
    """Unplug the remote end of the cable, because sos-node sets a local port up again."""
    with set_link(net, "wan", emulator_ends(net.topology.wires.index(net.topology.wire("edge1-core2")))[0]):
        yield


@contextmanager
def link_black(net: Lab) -> Iterator[None]:
    faults.link(net, "edge1-core1", up=False, silent=True)
    yield


@contextmanager
def answers_elsewhere(net: Lab) -> Iterator[None]:
    """Give the server a second interface, at the client's switch, and route its answers over this interface."""
    server, switch = net.plan.netns("server"), net.plan.netns("edge1")
    (client,) = json.loads(
        subprocess.run(net.exec_argv("client", ("ip", "-j", "link", "show", "eth0")), capture_output=True, check=True).stdout
    )
    commands = (
        ("ip", "-n", switch, "link", "add", "second", "type", "veth", "peer", "name", "eth1", "netns", server),
        ("ip", "-n", switch, "link", "set", "second", "up"),
        realise.inside(server, "sysctl", "-qw", "net.ipv4.conf.eth1.arp_ignore=1"),  # the client keeps the address of eth0
        ("ip", "-n", server, "link", "set", "eth1", "addrgenmode", "none", "up"),
        ("ip", "-n", server, "neigh", "add", "10.0.0.11", "lladdr", client["address"], "dev", "eth1", "nud", "permanent"),
        ("ip", "-n", server, "route", "add", "10.0.0.11/32", "dev", "eth1", "src", "10.0.0.139"),
        realise.ovs(net.plan, "edge1", "ovs-vsctl", "add-port", "br-sos", "second"),
    )
    try:
        for argv in commands:
            subprocess.run(argv, check=True, capture_output=True)
        yield
    finally:
        subprocess.run(realise.ovs(net.plan, "edge1", "ovs-vsctl", "--if-exists", "del-port", "br-sos", "second"), check=True)
        subprocess.run(("ip", "-n", switch, "link", "del", "second"), check=True)


@contextmanager
def host_cut(net: Lab) -> Iterator[None]:
    try:
        with set_link(net, "server", "eth0"):
            yield
    finally:
        give_route(net)


def give_route(net: Lab) -> None:
    """Restore the route that a host's interface loses when it goes down."""
    route = ("route", "replace", "10.0.0.0/24", "dev", "eth0", "proto", "kernel", "scope", "link", "src", "10.0.0.139", "congctl", "cubic")
    subprocess.run(("ip", "-n", net.plan.netns("server"), *route), check=True)


@contextmanager
def mtu_small(net: Lab) -> Iterator[None]:
    """Reduce the MTU between switches, where no router sends ICMP errors."""
    with set_mtu(net, "core1", "wan1"):
        yield


@contextmanager
def key_wrong(net: Lab) -> Iterator[None]:
    """Give West's agent a site key that differs from the controller's."""
    (key,) = (net.root / "keys" / "edge1").glob("site-*")
    kept = key.read_text(encoding="ascii")
    key.write_text(secrets.token_hex(len(kept.strip()) // 2) + "\n", encoding="ascii")
    restart(net, "agent1")
    try:
        yield
    finally:
        key.write_text(kept, encoding="ascii")
        restart(net, "agent1")


@contextmanager
def streams_blocked(net: Lab) -> Iterator[None]:
    """Block only the stream ports between the agents by a firewall."""
    rules = "table ip fault { chain in { type filter hook prerouting priority -400; tcp dport 10000-10007 drop; }; }"
    nft = net.exec_argv("agent2", ("nft", "-f", "-"))
    subprocess.run(nft, input=rules, text=True, check=True)
    restart(net, "agent1")  # discard existing streams, as a reboot does
    try:
        yield
    finally:
        subprocess.run(net.exec_argv("agent2", ("nft", "delete", "table", "ip", "fault")), check=True)


@contextmanager
def agent_draining(net: Lab) -> Iterator[None]:
    """Drain an agent while a session is running."""
    server = peer(net, "server", "serve", "5002", "60000000", "500000")
    measure.wait_listening(net, "server", 5002)
    client = peer(net, "client", "fetch", measure.address(net, "server"), "5002")
    eventually("a session", lambda: active(net))
    process.ask(net.runner.pid_file("agent1"))
    try:
        yield
    finally:
        for program in (client, server):
            program.kill()
            program.wait()
        eventually("the agent is gone", lambda: process.find(net.runner.pid_file("agent1")) is None)


@contextmanager
def wrong_port(net: Lab) -> Iterator[None]:
    with declared(net, ports=[{"port": 6000}]):
        yield


@contextmanager
def wrong_prefix(net: Lab) -> Iterator[None]:
    with declared(net, **{"from": {"site": "west", "prefixes": ["10.0.0.64/26"]}}):
        yield


@contextmanager
def observed(net: Lab) -> Iterator[None]:
    with declared(net, mode="Observe"):
        yield


@contextmanager
def set_link(net: Lab, part: str, interface: str) -> Iterator[None]:
    namespace = net.plan.netns(part)
    subprocess.run(("ip", "-n", namespace, "link", "set", interface, "down"), check=True)
    try:
        yield
    finally:
        subprocess.run(("ip", "-n", namespace, "link", "set", interface, "up"), check=True)


@contextmanager
def set_mtu(net: Lab, part: str, interface: str) -> Iterator[None]:
    namespace = net.plan.netns(part)
    subprocess.run(("ip", "-n", namespace, "link", "set", interface, "mtu", str(SMALL_MTU)), check=True)
    try:
        yield
    finally:
        subprocess.run(("ip", "-n", namespace, "link", "set", interface, "mtu", "1500"), check=True)


@contextmanager
def declared(net: Lab, **spec: Any) -> Iterator[None]:
    before = net.objects
    labs.wait_ready(net, net.declare(with_service(before, **spec)))
    try:
        yield
    finally:
        net.declare(before)


def restart(net: Lab, agent: str) -> None:
    faults.agent(net, agent, up=False)
    faults.agent(net, agent, up=True)


# -- faults without a finding code of their own: a transfer fails, but all parts seem healthy


@contextmanager
def filtered(net: Lab, part: str, chain: str, rule: str) -> Iterator[None]:
    """Install a packet filter, such as one that an administrator has forgotten. `chain`: the filter's hook."""
    rules = f"table ip fault {{ chain it {{ type filter hook {chain} priority -400; {rule}; }}; }}"
    subprocess.run(net.exec_argv(part, ("nft", "-f", "-")), input=rules, text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(net.exec_argv(part, ("nft", "delete", "table", "ip", "fault")), check=True)


def answers_dropped(net: Lab) -> AbstractContextManager[None]:
    """Drop the server's data after the handshake has succeeded."""
    return filtered(net, "server", "output", "meta l4proto tcp ip length > 200 drop")


def requests_dropped(net: Lab) -> AbstractContextManager[None]:
    return filtered(net, "server", "input", "meta l4proto tcp ip length > 200 drop")


def lossy_host(net: Lab) -> AbstractContextManager[None]:
    return filtered(net, "server", "input", "meta l4proto tcp numgen random mod 100 < 60 drop")


def full_segments_dropped_between_agents(net: Lab) -> AbstractContextManager[None]:
    """Drop full segments only, as if the MTU of the agents' path were smaller than declared: streams open and small packets pass."""
    return filtered(net, "agent2", "prerouting", "tcp dport 10000-10007 ip length > 1000 drop")


def egress_cut(net: Lab) -> AbstractContextManager[None]:
    """Cut the egress agent off from the server."""
    return filtered(net, "agent2", "output", "ip daddr 10.0.0.139 drop")


def regions(net: Lab) -> str:
    """Metric line with the ingress agent's armed regions; each excluded server adds regions."""
    return next(line for line in metrics(net, "agent1").splitlines() if line.startswith("sos_agent_armed_regions "))


def carried(net: Lab, copy: Path) -> bool:
    """True if a download and an upload by the hosts' programs, independent of diagnose, succeed through SOS."""
    payload = net.root / "www" / "payload"
    labs.make_payload(payload, FILE_BYTES)
    request = Request(path=payload, max_time_s=FILE_S)
    down, up = measure.download(net, request, copy), measure.upload(net, request, "diagnosed")
    if not (down.complete and up.complete and down.status == 200 and up.status in UPLOADED):
        return False
    assert measure.same_bytes(payload, copy, complete=True)
    assert measure.same_bytes(payload, measure.received(net, "server", "diagnosed"), complete=True)
    return True


SERVER = ("--server", f"10.0.0.139:{PORT}")
FAULTS: list[tuple[Callable[[Lab], Any], tuple[str, ...], str, str, set[str]]] = [
    (controller_dead, (), "ControllerUnreachable", "controller", {"plain"}),
    (agent_dead, (), "AgentDown", "edge2 (east)", {"plain"}),
    (management_cut, (), "DatapathDisconnected", "edge2", {"plain", "degraded", "broken"}),
    (link_down, (), "LinkDown", "edge1 wan1", {"degraded"}),
    (link_black, (), "LinkSilent", "edge1 wan0", {"broken"}),
    (host_cut, (), "HostUnreachable", "10.0.0.11 - 10.0.0.139", {"broken"}),
    (mtu_small, (), "MtuTooSmall", "west - east", {"broken", "plain", "degraded"}),
    (key_wrong, (), "AgentRefused", "edge1 (west)", {"plain"}),
    (streams_blocked, (), "StreamsBlocked", "edge1 to east", {"plain"}),
    (agent_draining, (), "AgentUnwilling", "edge1 (west)", {"plain"}),
    (wrong_port, SERVER, "NotCovered", f"10.0.0.139:{PORT}", {"broken"}),
    (wrong_prefix, (), "NotCovered", "service default/bulk", {"unknown"}),
    (observed, (), "NotRedirected", "service default/bulk", {"plain"}),
]


QUICK = (link_down, link_black, wrong_port, wrong_prefix)
"""Faults that are detected and repaired within seconds; all other faults wait for timers of controller, agent or network."""


@pytest.mark.parametrize(
    ("fault", "arguments", "code", "where", "verdicts"),
    [pytest.param(*row, id=row[0].__name__, marks=() if row[0] in QUICK else pytest.mark.slow) for row in FAULTS],
)
def test_diagnosis_names_the_fault_and_its_location(
    net: Lab, fault: Callable[[Lab], Any], arguments: tuple[str, ...], code: str, where: str, verdicts: set[str]
) -> None:
    with fault(net):
        said = diagnose(net, *arguments)
        assert (said["findings"][0]["code"], said["findings"][0]["where"]) == (code, where)
        assert said["verdict"] in verdicts


@pytest.mark.slow
def test_diagnosis_reports_answers_that_bypass_the_egress_agent(net: Lab) -> None:
    with answers_elsewhere(net):
        said = diagnose(net)
        assert said["verdict"] == "plain" and said["findings"][0]["code"] == "ServerElsewhere"
        assert said["findings"][0]["where"] == f"10.0.0.139:{said['through']['port']}"


@pytest.mark.measures
@pytest.mark.parametrize(
    "fault",
    [answers_dropped, requests_dropped, lossy_host, full_segments_dropped_between_agents, egress_cut],
    ids=lambda fault: fault.__name__,
)
def test_diagnosis_is_not_ok_while_a_real_transfer_fails(net: Lab, tmp_path: Path, fault: Callable[[Lab], Any]) -> None:
    before = regions(net)
    with fault(net):
        assert not carried(net, tmp_path / "copy"), "the fault of this test breaks nothing"
        said = diagnose(net)
        assert said["verdict"] != "ok" and said["findings"]
    eventually("hanging sessions have ended", lambda: sessions(net) == 0, HUNG_S)
    eventually("no server is still excluded for its earlier silence", lambda: regions(net) == before, SHUNNED_S + SLACK_S)


def test_healthy_lab_is_ok_with_all_rates_and_carries_a_real_transfer(net: Lab, tmp_path: Path) -> None:
    said = diagnose(net)
    assert carried(net, tmp_path / "copy")
    assert (said["verdict"], said["service"], said["mtu"]) == ("ok", "default/bulk", {"local": 1500, "forward": 1500, "back": 1500})
    for pair in ("through", "plain"):
        for way in ("up", "down"):
            assert 0 < said[pair][way]["mbps"] < 100, "at most the rate of the lab's links; the rate below depends on the machine"
    eventually("no session left", lambda: sessions(net) == 0)
    left = subprocess.run(("ip", "netns", "pids", net.plan.netns("server")), capture_output=True, text=True, check=True).stdout.split()
    assert "sos-probe" not in [name_of(pid) for pid in left]


def name_of(pid: str) -> str:
    """Program name of a process; empty if the process has exited since the listing."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.slow
def test_diagnosis_reports_a_refusing_server_and_accepts_a_listening_one(net: Lab) -> None:
    said = diagnose(net, *SERVER)
    assert [(f["code"], f["where"]) for f in said["findings"]] == [("ServerRefuses", f"10.0.0.139:{PORT}")]
    assert said["verdict"] == "broken"
    eventually("the port is armed again", lambda: armed(net))
    said = diagnose(net, "--server", "10.0.0.139:80")
    assert (said["verdict"], said["findings"]) == ("ok", [])


def test_text_output_fits_into_a_hundred_columns(net: Lab) -> None:
    argv = (str(KUBECTL_SOS), "diagnose", "east", "west", "--lab", net.name, "--seconds", "1")
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 1 and "first broken: NoService" in done.stdout and "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    wrong = subprocess.run((*argv[:2], "west", "nowhere", *argv[4:]), capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert wrong.returncode == 2 and "nowhere" in wrong.stderr and "core1, core2, east, west" in wrong.stderr


def run_sos(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run((str(KUBECTL_SOS), *arguments), capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


@pytest.mark.slow
def test_draining_agent_finishes_its_sessions(net: Lab) -> None:
    size = 30_000_000  # twenty seconds: both drain commands start during the transfer, which ends within drainSeconds
    server = peer(net, "server", "serve", "5002", str(size), "1500000")
    measure.wait_listening(net, "server", 5002)
    client = peer(net, "client", "fetch", measure.address(net, "server"), "5002")
    eventually("a session", lambda: active(net))
    hurried = run_sos("drain", "edge1", "--lab", net.name, "--timeout", "1")
    assert hurried.returncode == 1 and "1 sessions left at edge1" in hurried.stdout
    patient = run_sos("drain", "edge1", "--lab", net.name, "--timeout", "60", "-o", "json")
    said = json.loads(patient.stdout)
    assert (patient.returncode, said["agents"], said["done"], said["sessions"]) == (0, ["edge1"], True, 0)
    got = outcome(client, 30)
    assert (got["bytes"], got["end"]) == (size, "eof")
    outcome(server, 30)
    eventually("the agent has exited", lambda: process.find(net.runner.pid_file("agent1")) is None)
    nobody = run_sos("drain", "nobody", "--lab", net.name)
    assert nobody.returncode == 2 and "edge1, edge2" in nobody.stderr


def test_support_bundle_of_a_lab_is_complete_and_has_no_keys(net: Lab, tmp_path: Path) -> None:
    path = tmp_path / "lab.tar.gz"
    done = run_sos("report", "--lab", net.name, "-f", str(path))
    assert done.returncode == 0, done.stderr
    with tarfile.open(path) as tar:
        files = {member.name.partition("/")[2]: tar.extractfile(member) for member in tar.getmembers()}
        members = {name: file.read().decode() for name, file in files.items() if file is not None}
    wanted = {"lab.json", "log/controller.log", "controller/v1/status.json", "agents/edge1.metrics.txt", "node-config/edge1.json"}
    assert wanted <= set(members) and members["missing.txt"] == "nothing\n"
    assert json.loads(members["controller/v1/status.json"])["services"][0]["id"] == "default/bulk"
    keys = [file for file in (net.root / "keys").rglob("*") if file.is_file()]
    assert len(keys) >= 6
    everything = "\n".join(members.values())
    for file in (*keys, net.root / "token"):
        assert file.read_text(encoding="ascii").strip() not in everything


def test_topology_flows_and_trace_work_with_a_lab(net: Lab) -> None:
    for command, word in (
        (("topology",), "edge2"),
        (("flows",), "no sessions"),
        (("trace", "10.0.0.11", "10.0.0.139", "80"), "accelerated"),
    ):
        done = run_sos(*command, "--lab", net.name)
        assert done.returncode == 0 and word in done.stdout, done.stderr
    missing = run_sos("topology", "--lab", "nobody")
    assert missing.returncode == 2 and "no lab nobody" in missing.stderr
