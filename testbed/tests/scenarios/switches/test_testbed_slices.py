"""Two controllers share switches and agents without affecting each other (examples/05-slices).

Between the same hosts, `default` serves TCP ports 5000-5999 and `research` serves 6000-6999.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SHARED, accepted, armed, eventually, explain, outcome, peer, say
from sos_testbed.cli import dump_flows
from sos_testbed.core import controllers, realise
from sos_testbed.core.flows import parse_flows
from sos_testbed.lifecycle import faults, northbound
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab, Options
from sos_testbed.measurements import measure

SLICES = Path(__file__).resolve().parents[4] / "examples" / "05-slices"
PORTS = {"default": 5001, "research": 6001}
SMALL = 500_000
LONG, RATE = 30_000_000, 1_500_000  # twenty seconds

Transfer = tuple[subprocess.Popen[str], subprocess.Popen[str], int]


@pytest.fixture(scope="module")
def sliced() -> Iterator[Lab]:
    built = labs.up(Options(path1=SHARED.path1, path2=SHARED.path2, examples=(SLICES,)), say)
    yield built
    built.down()


@pytest.fixture
def net(sliced: Lab) -> Iterator[Lab]:
    eventually("an armed agent", lambda: armed(sliced))
    yield sliced
    for name in sliced.dead():
        sliced.start(name)
    labs.wait_ready(sliced, sliced.documents)
    eventually("no session of a test", lambda: not any(sessions(sliced, name) for name in PORTS))


def sessions(net: Lab, controller: str) -> int:
    return int(northbound.get(net.plan, "/v1/status", controller)["sessions"])


def owned(net: Lab, controller: str) -> dict[str, list[tuple[int, int, str, str]]]:
    """Entries of a controller on each switch, of all epochs."""
    value = 0x534F0100 + int(net.documents.controllers[controller]["controller"]["id"])
    found = {switch.name: parse_flows(dump_flows(net, switch.name)) for switch in net.topology.switches}
    return {
        switch: sorted((entry.table, entry.priority, entry.match, entry.actions) for entry in entries if entry.cookie >> 32 == value)
        for switch, entries in found.items()
    }


def begin(net: Lab, port: int, size: int, rate: int = 0) -> Transfer:
    server = peer(net, "server", "serve", str(port), str(size), str(rate))
    measure.wait_listening(net, "server", port)
    return server, peer(net, "client", "fetch", measure.address(net, "server"), str(port)), size


def finish(transfer: Transfer) -> None:
    server, client, size = transfer
    sent, got = outcome(server, 60), outcome(client, 60)
    assert (got["bytes"], got["end"], sent["send_end"]) == (size, "eof", "ok")
    assert sent["client"] == got["own"], "the server sees the client's own address and port"


def accelerated(net: Lab, port: int) -> bool:
    """True if an agent accepts a new connection; check in any case that the transfer completes."""
    before = accepted(net)
    finish(begin(net, port, SMALL))
    return accepted(net) > before


def test_each_controller_has_its_own_sessions(net: Lab) -> None:
    transfers = [begin(net, port, LONG, RATE) for port in PORTS.values()]
    for name, port in PORTS.items():
        found = eventually(f"a session of {name}", lambda name=name: northbound.get(net.plan, "/v1/sessions", name)["sessions"])
        assert [session["server"] for session in found] == [f"{measure.address(net, 'server')}:{port}"]
    for transfer in transfers:
        finish(transfer)


def test_a_controllers_restart_does_not_affect_the_other(net: Lab) -> None:
    before = {name: owned(net, name) for name in PORTS}
    transfers = [begin(net, port, LONG, RATE) for port in PORTS.values()]
    for name in PORTS:
        eventually(f"a session of {name}", lambda name=name: sessions(net, name) == 1)
    during = owned(net, "default")
    dead = controllers.program("research")
    faults.controller(net, dead, up=False)
    eventually("the punt entries of the dead controller have expired", lambda: not accelerated(net, PORTS["research"] + 1))
    assert accelerated(net, PORTS["default"] + 1)
    eventually("the entries of the running controller are unchanged", lambda: owned(net, "default") == during)
    faults.controller(net, dead, up=True)
    eventually("new connections are accelerated", lambda: accelerated(net, PORTS["research"] + 1))
    eventually("the session is adopted", lambda: sessions(net, "research") == 1)
    for transfer in transfers:
        finish(transfer)
    for name, entries in before.items():
        eventually(f"{name} as before", lambda name=name, entries=entries: owned(net, name) == entries)


@pytest.mark.slow
@pytest.mark.parametrize("leaver", sorted(PORTS))
def test_paths_and_services_stay_when_a_controller_leaves(net: Lab, leaver: str) -> None:
    """Uninstall a controller, which deletes all its entries at the same time."""
    (stayer,) = PORTS.keys() - {leaver}
    before = {name: owned(net, name) for name in PORTS}
    transfer = begin(net, PORTS[stayer], LONG, RATE)
    eventually("a session", lambda: sessions(net, stayer) == 1)
    faults.controller(net, controllers.program(leaver), up=False)
    value = 0x534F0100 + int(net.documents.controllers[leaver]["controller"]["id"])
    for switch in net.topology.switches:
        target = f"unix:{net.plan.folder(switch.name)}/{realise.BRIDGE}.mgmt"
        cookie = f"cookie={value << 32:#x}/0xffffffff00000000"
        subprocess.run(realise.ovs(net.plan, switch.name, "ovs-ofctl", "-OOpenFlow13", "del-flows", target, cookie), check=True)
    assert not any(owned(net, leaver).values())
    assert accelerated(net, PORTS[stayer] + 1) and not accelerated(net, PORTS[leaver] + 1)
    finish(transfer)
    faults.controller(net, controllers.program(leaver), up=True)
    eventually("new connections are accelerated", lambda: accelerated(net, PORTS[leaver] + 1))
    for name, entries in before.items():
        eventually(f"{name} as before", lambda name=name, entries=entries: owned(net, name) == entries)
    if not accelerated(net, PORTS[stayer] + 1):
        explain(net)
        raise AssertionError(f"{stayer} is affected by the other controller")
