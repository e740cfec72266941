"""OpenFlow over mutual TLS with real switches: switches without a valid certificate, and rotation of the CA during transfers.

client -- edge1 ======= core1 ------- edge2 -- server
            |                           |
         agent1                      agent2
"""

import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from conftest import accepted, armed, eventually, lend, outcome, peer, say, sessions, transfers
from sos_compile.certificates import Certified, new_ca
from sos_testbed.core import controllers, realise
from sos_testbed.core.web import SOS_PORT
from sos_testbed.lifecycle import certificates, faults, northbound
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

COVERED_PORT = "5001"
RATE = 1_500_000
SIZE = 45_000_000  # thirty seconds: longer than the rotation
# Time in which the controller reads changed files (1 s), and a switch attempts several connections (every 1, 2, 4, 8 ... s)
READ_S = 2.5
ATTEMPTS_S = 10.0
OPENFLOW = "6653"


@pytest.fixture(scope="module")
def built() -> Iterator[Lab]:
    lab = labs.up(labs.Options(examples=(labs.EXAMPLE, labs.TLS)), say)
    yield lab
    lab.down()


@pytest.fixture
def lab(built: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    yield from lend(built, request)


def ca(name: str) -> Certified:
    return CAS.setdefault(name, new_ca(datetime.now(UTC)))


CAS: dict[str, Certified] = {}


def certify(lab: Lab, issuer: str, *trusted: str, only: str = "") -> None:
    """Give all parts, or only one, certificates of a CA."""
    made = certificates.folders(lab.documents, ca(issuer), datetime.now(UTC), tuple(ca(name) for name in trusted))
    for part, files in made.items():
        if only in ("", part):
            certificates.replace(lab.root, part, files)


def connected(lab: Lab) -> set[str]:
    return {datapath["name"] for datapath in northbound.get(lab.plan, "/v1/status")["datapaths"] if datapath["connected"]}


def refusals(lab: Lab) -> float:
    """Refused connections since the controller's start."""
    address = controllers.addresses(lab.plan.controllers)[controllers.DEFAULT]
    argv = lab.exec_argv("ctl", ("curl", "-sS", "-m", "5", f"http://{address}:{controllers.API_PORT}/metrics"))
    page = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("sos_controller_tls_refusals_total"))


def vsctl(lab: Lab, switch: str, *argv: str) -> str:
    command = realise.ovs(lab.plan, switch, "ovs-vsctl", *argv)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def channels(lab: Lab) -> dict[str, str]:
    """Local address of each switch's OpenFlow channel."""
    found = {}
    for switch in lab.topology.switches:
        argv = lab.exec_argv(switch.name, ("ss", "-Htn", "state", "established", f"dport = :{OPENFLOW}"))
        found[switch.name] = " ".join(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[2:4])
    return found


def reconnect(lab: Lab) -> None:
    """Restart the controller, so that all switches connect again."""
    faults.controller(lab, controllers.program(controllers.DEFAULT), up=False)
    faults.controller(lab, controllers.program(controllers.DEFAULT), up=True)


def test_switches_use_tls_and_a_transfer_is_accelerated(lab: Lab, tmp_path: Path) -> None:
    for switch in lab.topology.switches:
        assert vsctl(lab, switch.name, "get-controller", "br-sos").startswith("ssl:")
        assert vsctl(lab, switch.name, "get", "SSL", ".", "private_key").strip('"') == f"{lab.root}/tls/{switch.name}/tls.key"
    transfers(lab, SOS_PORT, 2_000_000, tmp_path / "copy")


def test_bridge_without_a_certificate_gets_no_session(lab: Lab) -> None:
    before, dpid = refusals(lab), lab.documents.nodes["edge1"]["bridge"]["datapathId"]
    controller = lab.documents.nodes["edge1"]["controllers"][0].replace("ssl:", "tcp:")
    bridge = ("set", "bridge", "br-plain", "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow13")
    vsctl(
        lab,
        "core1",
        "add-br",
        "br-plain",
        "--",
        *bridge,
        f"other_config:datapath-id={dpid}",
        "--",
        "set-controller",
        "br-plain",
        controller,
    )
    try:
        eventually("refusals", lambda: refusals(lab) >= before + 2)
        assert vsctl(lab, "core1", "--columns=is_connected", "--bare", "find", "Controller", f'target="{controller}"') == "false"
        shown = realise.ovs(lab.plan, "core1", "ovs-ofctl", "-OOpenFlow13", "dump-flows", f"unix:{lab.plan.folder('core1')}/br-plain.mgmt")
        assert "cookie" not in subprocess.run(shown, capture_output=True, text=True, check=True).stdout
        assert connected(lab) >= {"edge1", "core1"}
    finally:
        vsctl(lab, "core1", "del-br", "br-plain")


def test_switch_with_a_certificate_of_another_ca_gets_no_session(lab: Lab, tmp_path: Path) -> None:
    certify(lab, "deployment")
    certify(lab, "other", "deployment", only="edge2")  # trusts the deployment's CA, so that only the controller refuses
    time.sleep(READ_S)
    reconnect(lab)
    eventually("the other switches", lambda: connected(lab) >= {"edge1", "core1"})
    time.sleep(ATTEMPTS_S)
    assert "edge2" not in connected(lab) and refusals(lab) >= 1
    certify(lab, "deployment", only="edge2")
    labs.wait_ready(lab, lab.documents)
    eventually("an armed agent", lambda: armed(lab))
    taken = accepted(lab)
    download(lab, tmp_path)
    assert accepted(lab) == taken + 1


def test_rotation_of_the_ca_during_transfers_moves_no_channel_and_breaks_no_connection(lab: Lab, tmp_path: Path) -> None:
    certify(lab, "first")
    time.sleep(READ_S)
    reconnect(lab)
    labs.wait_ready(lab, lab.documents)
    eventually("an armed agent", lambda: armed(lab))
    server = peer(lab, "server", "serve", COVERED_PORT, str(SIZE), str(RATE))
    measure.wait_listening(lab, "server", int(COVERED_PORT))
    taken, opened = accepted(lab), 1
    client = peer(lab, "client", "fetch", measure.address(lab, "server"), COVERED_PORT)
    eventually("a session", lambda: sessions(lab) == 1)
    before = channels(lab)
    for issuer, trusted in (("first", "second"), ("second", "first"), ("second", "")):
        certify(lab, issuer, *filter(None, (trusted,)))
        until = time.monotonic() + 2 * READ_S
        while time.monotonic() < until:
            download(lab, tmp_path)
            opened += 1
    assert channels(lab) == before and all(before.values())
    assert accepted(lab) - taken == opened, "every new connection was accelerated"
    assert client.poll() is None, "the transfer outlasts the rotation"
    got, sent = outcome(client, 120), outcome(server, 30)
    assert (got["bytes"], got["end"]) == (SIZE, "eof") and sent["client"] == got["own"]
    reconnect(lab)  # with the new CA alone
    labs.wait_ready(lab, lab.documents)
    eventually("an armed agent", lambda: armed(lab))
    taken = accepted(lab)
    download(lab, tmp_path)
    assert accepted(lab) == taken + 1


def download(lab: Lab, tmp_path: Path) -> None:
    payload = lab.root / "www" / "small"
    if not payload.exists():
        labs.make_payload(payload, 50_000)
    done = measure.download(lab, measure.Request(port=SOS_PORT, path=payload, max_time_s=10), tmp_path / "small")
    assert (done.status, done.complete) == (200, True)
