"""Switch ports of a lab have receive buffers as large as on a cluster's nodes."""

import subprocess
from pathlib import Path

from sos_testbed.lifecycle.lab import Lab

DEFAULT = Path("/proc/sys/net/core/rmem_default")
SOCKETS = ("ss", "-H", "-0", "-m", "-n")


def test_all_switch_ports_have_large_receive_buffers(net: Lab) -> None:
    default = int(DEFAULT.read_text(encoding="ascii"))
    for switch in net.topology.switches:
        said = subprocess.run(net.exec_argv(switch.name, SOCKETS), capture_output=True, text=True, check=True).stdout
        rooms = [int(line.partition(",rb")[2].partition(",")[0]) for line in said.splitlines()]
        assert len(rooms) > 2, said
        assert min(rooms) > 10 * default, said
