"""Test two replicas of a controller with real switches: take-over, fencing, graceful handover.

The tests need root, openvswitch-switch and iproute2. `controller_lab` shows the topology.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from controller_lab import HOSTS, SITE_KEYS, SWITCHES, TOKEN, Lab, document, lab, run, wait
from sos_controller.files.config import document_hash

SLOW = 120.0
"""Bound of every wait in seconds. The tests do not check durations."""
ADDRESSES = ("127.0.0.1", "127.0.0.2")

PORT = 5001

CONNECT = """
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)
print(s.getsockname()[1], flush=True)
"""

CONNECT_ALL = """
import json, select, socket, sys
opened, errors = 0, []
while not select.select([sys.stdin], [], [], 0.02)[0]:
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), 20).close()
        opened += 1
    except OSError as error:
        errors.append(repr(error))
print(json.dumps({"opened": opened, "errors": errors}), flush=True)
"""

SERVE = """
import socket, sys
l = socket.create_server(("0.0.0.0", int(sys.argv[1])), backlog=64)
while True: l.accept()[0].close()
"""

ASK = """
import json, socket, struct, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
def read(n):
    data = b""
    while len(data) < n: data += s.recv(n - len(data))
    return data
def ask(kind, body):
    s.sendall(struct.pack("!BBHI", 4, kind, 8 + len(body), 7) + body)
    while True:
        head = read(8)
        rest = read(struct.unpack("!H", head[2:4])[0] - 8)
        if head[1] == 2: s.sendall(bytes([4, 3]) + head[2:] + rest)
        elif head[1] in (1, 25): return head[1], rest
def role(number, generation): return ask(24, struct.pack("!I4xQ", number, generation))
s.sendall(struct.pack("!BBHI", 4, 0, 8, 1))
read(struct.unpack("!H", read(8)[2:4])[0] - 8)
kind, rest = role(2, int(sys.argv[2]))
found = {"stale": list(struct.unpack("!HH", rest[:4])) if kind == 1 else None}
while kind == 1:
    kind, rest = role(0, 0)
    kind, rest = role(3, struct.unpack("!Q", rest[8:16])[0])
kind, rest = ask(14, struct.pack("!QQBBHHHIIIH2xHH4x", 0, 0, 0, 3, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0, 1, 4))
print(json.dumps({**found, "slave": list(struct.unpack("!HH", rest[:4])) if kind == 1 else None}))
"""


def replicated(generation: int = 1) -> dict[str, Any]:
    made = document(generation)
    made["controller"]["replicas"] = 2
    del made["hash"]
    return {**made, "hash": document_hash(made)}


class Replica:
    """One controller process of two."""

    def __init__(self, net: Lab, address: str) -> None:
        self.net, self.address = net, address
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        folder = self.net.folder
        command = [sys.executable, "-m", "sos_controller", "--keys", str(folder / "keys"), "--token-file", str(folder / "token")]
        command += ["--config", str(folder / "config.json"), "--log-level", "debug"]
        command += ["--openflow-listen", f"{self.address}:6653", "--api-listen", f"{self.address}:8080"]
        return self.net.spawn("sw", *command, log=f"controller-{self.address}.log")

    def again(self) -> None:
        self.process = self._start()

    def kill(self) -> None:
        self.net.kill(self.process)

    def status(self) -> dict[str, Any]:
        """Return the controller's part of its status; empty if the replica does not answer."""
        self.net.api = f"http://{self.address}:8080"
        answer = self.net.request("GET", "/v1/status", check=False)
        return {} if answer is None else answer[1]

    def role(self) -> str:
        return str(self.status().get("controller", {}).get("role", ""))

    def programmed(self) -> bool:
        status = self.status()
        return status.get("controller", {}).get("active") is True and [s["state"] for s in status["services"]] == ["Programmed"]


class Pair:
    def __init__(self, net: Lab) -> None:
        self.net = net
        keys = net.folder / "keys"
        keys.mkdir()
        for site, key in SITE_KEYS.items():
            (keys / f"site-{site}-1").write_text(key.hex() + "\n")
        (net.folder / "token").write_text(TOKEN + "\n")
        (net.folder / "config.json").write_text(json.dumps(replicated()))
        for name in SWITCHES:
            net.ovs("ovs-vsctl", "--timeout=30", "set-controller", name, *(f"tcp:{a}:6653" for a in ADDRESSES))
            net.ovs("ovs-vsctl", "--timeout=30", "set", "bridge", name, "fail_mode=secure")
        self.replicas = tuple(Replica(net, address) for address in ADDRESSES)

    def settled(self) -> tuple[Replica, Replica]:
        """Wait until one replica is active with the service programmed, and the other is its standby at every switch; return both."""

        def found() -> tuple[Replica, Replica] | None:
            for one, other in (self.replicas, self.replicas[::-1]):
                if one.programmed():
                    said = other.status().get("controller", {})
                    if said.get("role") == "Slave" and said["datapathsInRole"] == len(SWITCHES):
                        return one, other
            return None

        return wait("an active replica and a standby", SLOW, found)


def roles(net: Lab) -> list[str]:
    """Return the roles of all connections, as the switches know them."""
    text = net.ovs("ovs-vsctl", "--timeout=30", "--format=json", "--columns=role", "list", "controller")
    return sorted(str(row[0]) for row in json.loads(text)["data"])


def agreed(pair: Pair, active: Replica) -> bool:
    """Return whether every switch has exactly the entries that the active replica records."""
    pair.net.api = f"http://{active.address}:8080"
    recorded = {name: len(pair.net.get(f"/v1/entries?dpid={dpid:016x}")["entries"]) for name, dpid in SWITCHES.items()}
    return recorded == {name: len(pair.net.ours(name)) for name in SWITCHES}


@contextmanager
def connecting(net: Lab) -> Iterator[list[str]]:
    """Open one connection after another during the block. The list has the errors after the block: every connection must be answered."""
    log = net.folder / f"clients-{time.monotonic_ns()}.log"
    process = net.spawn("client", sys.executable, "-c", CONNECT_ALL, HOSTS["server"][1], str(PORT), log=log.name)
    errors: list[str] = []
    try:
        yield errors
    finally:
        process.communicate(b"", timeout=SLOW)
    said = json.loads(log.read_text())
    assert said["opened"], "the clients opened no connection"
    errors += said["errors"]


def ordered(net: Lab) -> bool:
    """Open a connection that both agents get orders for; return whether the orders have the highest boot id that the agents know."""
    port = int(net.execute("client", sys.executable, "-c", CONNECT, HOSTS["server"][1], str(PORT)))

    def prepared(agent: str) -> bool:
        return any(each["client_port"] == port for each in net.heard(agent, "prepare"))

    for agent in ("agent1", "agent2"):
        wait(f"Prepare at {agent}", SLOW, lambda agent=agent: prepared(agent))
    boots = [each["boot"] for each in net.heard("agent1", "prepare")]
    return boots == sorted(boots)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with lab("Node") as net:
        made = Pair(net)
        net.spawn("server", sys.executable, "-c", SERVE, str(PORT), log="server.log")
        for agent in ("agent1", "agent2"):
            net.start_agent(agent)
        yield made


def test_one_replica_is_master_and_the_other_slave_at_every_switch(pair: Pair) -> None:
    active, standby = pair.settled()
    expected = ["master"] * len(SWITCHES) + ["slave"] * len(SWITCHES)
    wait("these roles in the switches' database", SLOW, lambda: roles(pair.net) == expected)
    assert standby.status()["links"] == 0 and not standby.status()["agents"], "a standby gets no packets"
    wait("equal entries", SLOW, lambda: agreed(pair, active))


def test_standby_sets_up_connections_after_the_active_replica_was_killed(pair: Pair) -> None:
    active, standby = pair.settled()
    before = standby.status()["controller"]["generationId"]
    with connecting(pair.net) as errors:
        active.kill()
        wait("a take-over", SLOW, standby.programmed)
    assert not errors
    assert standby.status()["controller"]["generationId"] > before
    wait("equal entries", SLOW, lambda: agreed(pair, standby))
    assert ordered(pair.net), "the agents obey the new active replica"
    active.again()
    assert pair.settled() == (standby, active), "the killed replica comes back as a standby"


def test_frozen_replica_is_replaced_and_changes_nothing_when_it_resumes(pair: Pair) -> None:
    active, standby = pair.settled()
    with connecting(pair.net) as errors:
        active.process.send_signal(signal.SIGSTOP)
        try:
            wait("a take-over", SLOW, standby.programmed)
        finally:
            active.process.send_signal(signal.SIGCONT)
        assert pair.settled() == (standby, active)
    assert not errors
    wait("equal entries", SLOW, lambda: agreed(pair, standby))
    assert ordered(pair.net)


def test_former_active_replica_takes_over_again_although_its_process_is_older(pair: Pair) -> None:
    """Agents refuse orders of older boot ids; the term of a take-over makes its own."""
    active, standby = pair.settled()
    active.process.send_signal(signal.SIGSTOP)
    try:
        wait("a take-over", SLOW, standby.programmed)
        assert ordered(pair.net)
    finally:
        active.process.send_signal(signal.SIGCONT)


def test_stopping_replica_hands_over(pair: Pair) -> None:
    active, standby = pair.settled()
    with connecting(pair.net) as errors:
        active.process.terminate()
        wait("a handover", SLOW, standby.programmed)
    assert not errors
    assert active.process.wait(SLOW) == 0
    active.again()
    pair.settled()


def test_switches_refuse_an_older_generation_id_and_changes_of_a_slave(pair: Pair) -> None:
    active, standby = pair.settled()
    newest = int(active.status()["controller"]["generationId"], 16)
    replies = run(
        "ip", "netns", "exec", pair.net.switch_ns, sys.executable, "-c", ASK, str(pair.net.folder / "edge1.mgmt"), str(newest - 1)
    )
    assert json.loads(replies) == {"stale": [11, 0], "slave": [1, 10]}
    assert pair.settled() == (active, standby)
