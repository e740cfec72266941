"""Key rotation during a running session: announce the new key, use it, remove the old key (spec/README.md clause 4).

client -- edge1 ======= core1 ------- edge2 -- server
            |                           |
         agent1                      agent2
"""

import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import armed, eventually, lend, outcome, peer, say, sessions, transfers
from sos_compile import keys
from sos_testbed.core.web import SOS_PORT
from sos_testbed.lifecycle import faults, northbound
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

OLD, NEW = 1, 2
COVERED_PORT = "5001"
RATE = 1_500_000
SIZE = 105_000_000  # seventy seconds: longer than the whole rotation
# Limit for a program to use changed key files. Programs read key files every second; the rest is slack for a slow machine
READ_S = 10.0
# Time in which every program reads the key files twice
LOADED_S = 2.5
# Longer than the lifetime of a registration that is not renewed
EXPIRY_S = 6.0
# Prints the key id of the next beacon: 14 + 20 + 8 bytes of headers, then the fields of spec/beacon.md clause 2
SNIFF = """
import socket
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
link.settimeout(10)
while True:
    frame = link.recv(2048)
    if frame[12:14] == bytes([8, 0]) and frame[23] == 17 and frame[36:38] == (9875).to_bytes(2, "big"):
        print(int.from_bytes(frame[48:50], "big"))
        break
"""


@pytest.fixture(scope="module")
def built() -> Iterator[Lab]:
    lab = labs.up(labs.Options(), say)
    yield lab
    lab.down()


@pytest.fixture
def lab(built: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    yield from lend(built, request)


def folders(lab: Lab, master: bytes, key_id: int) -> dict[Path, dict[str, str]]:
    """Files of a key, by the key folder of each program."""
    sites = sorted({document["site"]["id"] for document in lab.documents.agents.values()})
    own = {document["node"]: document["site"]["id"] for document in lab.documents.agents.values()}
    base = lab.root / "keys"
    found = {base / node: keys.files_for_site(master, key_id, site, sites) for node, site in own.items()}
    return found | {base / "controller": keys.files_for_controller(master, key_id, sites)}


def signs_with(lab: Lab, agent: str) -> int:
    argv = lab.exec_argv(agent, ("python3", "-c", SNIFF))
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def registered(lab: Lab) -> set[str]:
    return {agent["name"] for agent in northbound.get(lab.plan, "/v1/agents")["agents"]}


@pytest.mark.slow
def test_key_rotation_does_not_interrupt_a_running_session(lab: Lab, tmp_path: Path) -> None:
    server = peer(lab, "server", "serve", COVERED_PORT, str(SIZE), str(RATE))
    measure.wait_listening(lab, "server", int(COVERED_PORT))
    client = peer(lab, "client", "fetch", measure.address(lab, "server"), COVERED_PORT)
    eventually("a session", lambda: sessions(lab) == 1)
    everybody = registered(lab)
    assert signs_with(lab, "agent1") == OLD

    added = folders(lab, secrets.token_bytes(keys.KEY_BYTES), NEW)
    old = {path / name: (path / name).read_text() for path in added for name in (file.name for file in path.iterdir())}
    # Announce the new key to one program after another. No program signs with it before all programs know it.
    for folder, files in added.items():
        (folder / keys.SENDING_FILE).write_text(str(OLD))
        for name, text in files.items():
            (folder / name).write_text(text)
    time.sleep(LOADED_S)
    assert {signs_with(lab, name) for name in ("agent1", "agent2")} == {OLD}
    assert registered(lab) == everybody
    # Use the new key in one program after another. Programs that still sign with the old key accept the new signatures.
    for folder in added:
        (folder / keys.SENDING_FILE).write_text(str(NEW))
        time.sleep(EXPIRY_S)
        assert registered(lab) == everybody, f"{folder.name} signs with the new key"
    for name in ("agent1", "agent2"):
        eventually(f"{name} signs with the new key", lambda agent=name: signs_with(lab, agent) == NEW, READ_S)
    for path in old:
        path.unlink()
    time.sleep(EXPIRY_S)
    assert registered(lab) == everybody, "no program needs the old key"

    assert client.poll() is None, "the session outlasts the rotation"
    assert sessions(lab) == 1
    got, sent = outcome(client, 120), outcome(server, 30)
    assert (got["bytes"], got["end"]) == (SIZE, "eof")
    assert sent["client"] == got["own"]
    # A restarted agent reopens its streams, because all programs have the new key.
    faults.agent(lab, "agent2", up=False)
    # Stale records of the old agent at agent1 and the controller must not satisfy the checks for ready and armed below.
    eventually("agent1 has lost its peer", lambda: not armed(lab))
    faults.agent(lab, "agent2", up=True)
    labs.wait_ready(lab, lab.documents)
    eventually("an armed agent", lambda: armed(lab))
    transfers(lab, SOS_PORT, 200_000, tmp_path / "copy")

    # An agent that has only the old key is rejected.
    edge = lab.root / "keys" / "edge2"
    for name in added[edge]:
        (edge / name).unlink()
    for path, text in old.items():
        if path.parent == edge:
            path.write_text(text)
    eventually("agent2 is rejected", lambda: registered(lab) == everybody - {"agent2"})
    for path in old:
        if path.parent == edge:
            path.unlink()
    for name, text in added[edge].items():
        (edge / name).write_text(text)
    eventually("agent2 is registered again", lambda: registered(lab) == everybody)
