"""Borrowing another process's packet sockets and enlarging them."""

import os
import socket
import subprocess

from conftest import eventually
from sos_testbed.lab import Lab
from sos_testbed.realise import PORT_RING_BYTES
from sos_testbed.rings import enlarge

SIZE = 3 << 20


def test_only_packet_sockets_and_only_upwards() -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as port, socket.socket() as other:
        before = other.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert enlarge(os.getpid(), SIZE) == 1
        assert port.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * SIZE
        assert other.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == before
        assert enlarge(os.getpid(), SIZE) == 0
        assert enlarge(os.getpid(), SIZE // 2) == 0
        assert port.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * SIZE


def test_every_port_of_every_switch_has_one(net: Lab) -> None:
    def small(switch: str) -> list[str]:
        output = subprocess.run(net.exec_argv(switch, ("ss", "-H", "-0", "-m", "-n")), capture_output=True, text=True, check=True).stdout
        return [line for line in output.splitlines() if f"rb{2 * PORT_RING_BYTES}," not in line]

    for switch in net.topology.switches:
        eventually(f"rings of {switch.name}", lambda name=switch.name: not small(name), within_s=10)
