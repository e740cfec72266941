"""Proof that `make test-kernel` fails if packets are lost: a wrong flow entry, and a test that must not pass with it.

pytest does not collect this file by its name; `make test-kernel ARGS=--seeded-fault` runs it, and is expected to fail.
"""

import subprocess
from pathlib import Path

from sos_testbed.core import realise
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

WRONG = "table=0,priority=65535,ip,nw_src=10.0.0.11,actions=mod_dl_dst:02:00:00:00:00:99,NORMAL"
"""Redirects the client's packets to a machine that does not exist."""


def test_transfer_with_a_wrong_entry_at_the_clients_switch(net: Lab, tmp_path: Path) -> None:
    target = f"unix:{net.plan.folder('edge1')}/{realise.BRIDGE}.mgmt"
    subprocess.run(realise.ovs(net.plan, "edge1", "ovs-ofctl", "-O", "OpenFlow13", "add-flow", target, WRONG), check=True)
    payload = net.root / "www" / "some"
    labs.make_payload(payload, 1_000_000)
    done = measure.download(net, measure.Request(path=payload, max_time_s=4), tmp_path / "copy")
    assert (done.status, done.complete) == (200, True), done
