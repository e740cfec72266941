"""Switches of a lab forward in the datapath that was chosen for them: the kernel's, or that of user space.

client -- edge1 ======= core1 ------- edge2 -- server
            |                           |
         agent1                      agent2

`make test` runs this in user space on machines whose kernel has no Open vSwitch, `make test-kernel` in a kernel that has one.
"""

import os
import re
import subprocess
from collections.abc import Callable

import pytest
from conftest import eventually
from sos_testbed.core import realise
from sos_testbed.core.web import PLAIN_PORT, SOS_PORT
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

SIZE = 2_000_000


def ovs(net: Lab, switch: str, *argv: str) -> str:
    return subprocess.run(realise.ovs(net.plan, switch, *argv), capture_output=True, text=True, check=True).stdout


def expected(net: Lab, switch: str) -> str:
    """The chosen datapath; by default, the kernel's if it has one, as sos-node decides."""
    chosen = os.environ.get("SOS_DATAPATH", "auto").lower()
    if chosen != "auto":
        return chosen
    found = subprocess.run(realise.ovs(net.plan, switch, "ovs-dpctl", "show"), capture_output=True, check=False)
    return "netdev" if found.returncode else "system"


def datapath(net: Lab, switch: str) -> str:
    """Datapath of a switch's bridge, such as `system@ovs-system`."""
    return ovs(net, switch, "ovs-appctl", "dpif/show").split(":", 1)[0]


def forwarded(net: Lab, switch: str) -> int:
    """Packets that the flows of the datapath have forwarded without ovs-vswitchd; only TCP."""
    flows = ovs(net, switch, "ovs-appctl", "dpctl/dump-flows").splitlines()
    return sum(int(number) for line in flows if "proto=6" in line for number in re.findall(r"packets:(\d+)", line))


@pytest.mark.parametrize("port", [SOS_PORT, PLAIN_PORT])
def test_switches_forward_transfers_in_the_chosen_datapath(
    net: Lab, port: int, record_property: Callable[[str, object], None], tmp_path: os.PathLike[str]
) -> None:
    switches = [switch.name for switch in net.topology.switches]
    kinds = {switch: datapath(net, switch) for switch in switches}
    assert kinds == {switch: f"{kind}@ovs-{kind}" for switch in switches for kind in [expected(net, switch)]}
    payload = net.root / "www" / "some"
    labs.make_payload(payload, SIZE)
    copy = net.root / "copy"
    done = measure.download(net, measure.Request(port=port, path=payload, max_time_s=60), copy)
    assert (done.status, done.complete) == (200, True), done
    assert measure.same_bytes(payload, copy, complete=True)
    assert eventually("packets at edge1", lambda: forwarded(net, "edge1")) > 10
    record_property("datapath", kinds["edge1"])
