"""Labs for the scenario tests, which need root and the programs that scripts/setup.sh builds.

Tests share one lab and restore their changes.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from sos_compile.model.world import Loaded
from sos_testbed.cli import dump_flows
from sos_testbed.core.flows import parse_flows
from sos_testbed.core.model import LabError
from sos_testbed.core.topology import PathOptions
from sos_testbed.core.web import SOS_PORT
from sos_testbed.lifecycle import faults, northbound
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import EXAMPLE, REWRITE, Lab, Options
from sos_testbed.lifecycle.time_factor import limit_s
from sos_testbed.measurements import measure
from sos_testbed.measurements.measure import Request

PROGRAMS = Path(__file__).with_name("programs")
"""Programs that the tests run in the labs' namespaces. Some tests also import their constants."""
sys.path.append(str(PROGRAMS))
PEER = PROGRAMS / "peer.py"
RTT_US = 40_000
RATE_BPS = 200_000_000
# Limit for an expected change. Leases last 5 s, and agents report sessions every 5 s (spec/order.md clause 7): two rounds plus slack for a
# slow machine
SETTLE_S = 30.0

SHARED = Options(path1=PathOptions(rate_bps=RATE_BPS, rtt_us=RTT_US), path2=PathOptions(rate_bps=RATE_BPS, rtt_us=2 * RTT_US))


def say(line: str) -> None:
    print(f"lab: {line}", flush=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-lab", action="store_true", help="one lab for all modules that share one, instead of one for each")


def scope_of_shared(fixture_name: str, config: pytest.Config) -> Literal["session", "module"]:
    """A lab for each module lets modules run in parallel; --one-lab saves the time to build them where they do not."""
    return "session" if one_lab(config) else "module"


def one_lab(config: pytest.Config) -> bool:
    return bool(config.getoption("one_lab", default=False))


@pytest.fixture(scope=scope_of_shared)
def shared() -> Iterator[Lab]:
    built = labs.up(SHARED, say)
    yield built
    built.down()


@pytest.fixture(scope=scope_of_shared)
def rewriting() -> Iterator[Lab]:
    """Lab whose edge switches rewrite addresses."""
    built = labs.up(replace(SHARED, examples=(EXAMPLE, REWRITE)), say)
    yield built
    built.down()


@pytest.fixture
def net(shared: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Shared lab with all processes running and its original declarations; repaired after each test."""
    objects = shared.objects
    eventually("no session of an earlier test", lambda: sessions(shared) == 0)
    eventually("an armed agent", lambda: armed(shared))
    yield shared
    if request.node.stash.get(FAILED, False):
        explain(shared)
    for program in PEERS:
        program.kill()
        program.wait()
    PEERS.clear()
    mend(shared)
    if shared.objects != objects:
        shared.declare(objects)
    labs.wait_ready(shared, shared.documents)


def lend(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Lend a module's own lab to one test: armed and without sessions at the start, all processes running at the end."""
    eventually("no session of an earlier test", lambda: sessions(lab) == 0)
    eventually("an armed agent", lambda: armed(lab))
    yield lab
    if request.node.stash.get(FAILED, False):
        explain(lab)
    mend(lab)
    labs.wait_ready(lab, lab.documents)


def transfers(net: Lab, port: int, size: int, copy: Path) -> None:
    """Check a download and an upload: all bytes arrive, hosts see each other's real address and port, and covered ports are accelerated."""
    payload = net.root / "www" / "payload"
    labs.make_payload(payload, size)
    before = accepted(net)
    down = measure.download(net, Request(port=port, path=payload, max_time_s=60), copy)
    up = measure.upload(net, Request(port=port, path=payload, max_time_s=60), f"up-{port}")
    assert (down.status, down.complete, up.status, up.complete) == (200, True, 201, True)
    assert measure.same_bytes(payload, copy, complete=True)
    assert measure.same_bytes(payload, measure.received(net, "server", f"up-{port}"), complete=True)
    for done in (down, up):
        assert done.client_saw == f"{measure.address(net, 'server')}:{port}"
        assert done.server_saw == done.client_address
        assert done.server_saw.startswith(f"{measure.address(net, 'client')}:")
    assert accepted(net) - before == (2 if port == SOS_PORT else 0)


def metrics(net: Lab, agent: str) -> str:
    """Metrics page of an agent; "" if the agent does not answer or is not declared."""
    place = next(place for place in net.topology.agents if place.name == agent)
    if place.key not in net.documents.agents:
        return ""
    port = net.documents.agents[place.key]["metricsAddress"].rpartition(":")[2]
    argv = net.exec_argv(agent, ("curl", "-sS", "-m", f"{limit_s(2):g}", f"http://127.0.0.1:{port}/metrics"))
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def accepted(net: Lab, agent: str = "agent1") -> int:
    """Clients that an agent has accepted since its start; waits until an agent that was just started answers."""
    number = re.compile(r"^sos_agent_accepted_total (\d+)$", flags=re.MULTILINE)
    return int(eventually(f"{agent} answers", lambda: number.search(metrics(net, agent)))[1])


def armed(net: Lab) -> bool:
    """True if the ingress agent is armed. Until the agent has a stream to its peer, connections are plain as intended."""
    return re.search(r"^sos_agent_armed_regions [1-9]", metrics(net, "agent1"), flags=re.MULTILINE) is not None


FAILED = pytest.StashKey[bool]()
PEERS: list[subprocess.Popen[str]] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


def mend(net: Lab) -> None:
    for name in net.dead():
        net.start(name)
    for wire in net.topology.shaped():
        faults.link(net, wire.name, up=True, silent=True)
    for wire in net.topology.wires:
        for end in (wire.a, wire.b):
            subprocess.run(("ip", "-n", net.plan.netns(end.switch), "link", "set", end.port, "up"), check=True)


def explain(net: Lab) -> None:
    """Diagnostics of a failed run: sockets, sessions, entries, last log lines."""
    for part in ("client", "server", "agent1", "agent2"):
        print(
            f"--- ss {part}\n",
            subprocess.run(net.exec_argv(part, ("ss", "-ntia")), capture_output=True, text=True, check=False).stdout[-4000:],
        )
    for part in net.topology.switches:
        try:
            print(f"--- flows {part.name}\n", dump_flows(net, part.name))
        except LabError as error:
            print(error)
    try:
        print("--- status\n", json.dumps(northbound.get(net.plan, "/v1/status"), indent=1))
    except LabError as error:
        print(error)
    for place in net.topology.agents:
        text = metrics(net, place.name)
        print(f"--- metrics {place.name}\n", "\n".join(line for line in text.splitlines() if line[:1] != "#" and not line.endswith(" 0")))
    for name in net.spawns():
        print(f"--- {name}: {labs.tail(net, name, 15)}")


def eventually(what: str, check: Callable[[], Any], within_s: float = SETTLE_S) -> Any:
    """Wait until `check` returns a true value and return it; a LabError counts as false."""
    deadline = time.monotonic() + limit_s(within_s)
    while True:
        try:
            value: Any = check()
        except LabError as error:
            value, what = None, f"{what} ({error})"
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {limit_s(within_s):g} s: {what}"
        time.sleep(0.2)


def with_service(objects: tuple[Loaded, ...], **spec: Any) -> tuple[Loaded, ...]:
    """Copy of the objects with these fields changed in the SosService's spec."""

    def changed(loaded: Loaded) -> Loaded:
        return replace(loaded, obj={**loaded.obj, "spec": {**loaded.obj["spec"], **spec}})

    return tuple(changed(loaded) if loaded.obj["kind"] == "SosService" else loaded for loaded in objects)


def sessions(net: Lab) -> int:
    """Number of sessions at the controller."""
    return int(northbound.get(net.plan, "/v1/status")["sessions"])


def active(net: Lab) -> bool:
    """True if exactly one session exists and its set-up is complete."""
    return [session["state"] for session in northbound.get(net.plan, "/v1/sessions")["sessions"]] == ["Active"]


def flowing(net: Lab, port: int) -> bool:
    """True if the client has received data on an established connection to this server port."""
    argv = net.exec_argv("client", ("ss", "-Htin", "state", "established", f"dport = :{port}"))
    found = re.search(r"bytes_received:(\d+)", subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    return found is not None and int(found[1]) > 0


def baseline(net: Lab) -> dict[str, Any]:
    """State that a transfer could leave behind: entries (without counters), sessions at controller and agents, host legs of agents."""
    agents = northbound.get(net.plan, "/v1/agents")["agents"]
    return {
        "entries": {
            switch.name: sorted(entry.identity() for entry in parse_flows(dump_flows(net, switch.name))) for switch in net.topology.switches
        },
        "sessions": sessions(net),
        "agents": {agent["name"]: agent["sessions"] for agent in agents},
        "host legs": {place.name: host_legs(net, place.name) for place in net.topology.agents},
    }


def host_legs(net: Lab, agent: str) -> list[str]:
    """TCP connections of an agent, except those to other agents."""
    documents = net.documents.agents.values()
    addresses = {document["interface"]["address"].split("/")[0] for document in documents}
    output = subprocess.run(net.exec_argv(agent, ("ss", "-Htn")), capture_output=True, text=True, check=True).stdout
    ends = [line.split()[3:5] for line in output.splitlines() if line.split()]
    return [" ".join(pair) for pair in ends if not {end.rsplit(":", 1)[0].strip("[]").removeprefix("::ffff:") for end in pair} <= addresses]


def peer(net: Lab, host: str, *arguments: str) -> subprocess.Popen[str]:
    """Start peer.py, a small TCP program, at a host; its result is one line of JSON."""
    argv = net.exec_argv(host, (sys.executable, str(PEER), *arguments))
    PEERS.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    return PEERS[-1]


def outcome(program: subprocess.Popen[str], within_s: float) -> dict[str, Any]:
    """Last line that a peer printed."""
    try:
        output, _ = program.communicate(timeout=limit_s(within_s))
    except subprocess.TimeoutExpired:
        program.kill()
        raise AssertionError(f"no end within {limit_s(within_s):g} s: {program.args}") from None
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result


def cli(*arguments: str, state: Path | None = None, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run ./lab from a command line."""
    environment = dict(os.environ) if state is None else {**os.environ, "SOS_STATE": str(state)}
    argv = (sys.executable, "-m", "sos_testbed", *arguments)
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s(timeout_s), env=environment)
