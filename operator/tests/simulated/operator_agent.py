"""Simulated agent that only sends signed beacons every second (spec/beacon.md), from a port of a simulated datapath."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from operator_kube import Kube
from operator_repeat import repeated
from operator_run import NAMESPACE
from operator_switch import Switch, connected
from sos_controller.core.types import AgentId, parse_address, parse_mac
from sos_controller.core.wire import beacon, keys
from sos_controller.core.wire.packets import UdpTemplate

PORT = 4
MAC = "02:00:00:00:00:04"
KEY_ID = 1


class Agent:
    """Simulated agent with the identity from its ConfigMap and the key from its site's Secret."""

    def __init__(self, kube: Kube, pool: str, site: str, node: str) -> None:
        config = json.loads(kube.get("configmap", f"sos-agent-{pool}-{site}", "-n", NAMESPACE)["data"][f"{node}.json"])
        secret = kube.get("secret", f"sos-sitekeys-{site}", "-n", NAMESPACE)["data"][f"site-{KEY_ID}"]
        self.id, self.node = AgentId(bytes.fromhex(config["agentId"])), node
        self._site = int(kube.get("sossite", site)["status"]["siteID"])
        self._address = parse_address(kube.get("sossite", site)["status"]["nodes"][0]["agentAddress"])
        self._key = keys.expand(bytes.fromhex(base64.b64decode(secret).decode()), keys.BEACON + self.id)
        nobody, discovery = parse_mac("02:53:4f:53:00:01"), parse_address("198.18.255.254")
        self._up = UdpTemplate((parse_mac(MAC), nobody), (self._address, discovery), (9876, 9875))
        self._boot = time.time_ns()

    def beacon(self, sequence: int) -> bytes:
        said = beacon.Beacon(
            key_id=KEY_ID, site_id=self._site, flags=beacon.FLAG_WILLING, agent_id=self.id, boot_id=self._boot, sequence=sequence,
            time_ms=time.time_ns() // 10**6, sessions=0, session_limit=100, bytes_per_second=0, cpu_permille=0, streams=8,
            order_port=9876, first_stream_port=10000, stream_ports=8, address=self._address, mac=parse_mac(MAC), capacity_bps=0,
            name=self.node, service_types=("tcp-parallel",),
        )  # fmt: skip
        return self._up.render(beacon.encode(said, self._key))

    def running(self, switch: Switch) -> AbstractContextManager[None]:
        """Send a beacon every second inside the block."""
        sequence = itertools.count(1)
        return repeated(lambda: switch.packet_in(PORT, self.beacon(next(sequence))), every_s=1.0)


@contextmanager
def network(kube: Kube, openflow: int) -> Iterator[dict[str, Switch]]:
    """Three switches in a row with an agent at each end, connected to the controller at port `openflow`; yields the switches by site."""
    sites = ("west", "core1", "east")
    status = {s["metadata"]["name"]: s["status"] for s in kube.items("sossites")}
    dpids = {site: status[site]["nodes"][0]["datapathId"] for site in sites}
    with connected(list(dpids.values()), openflow, in_a_row=True) as switches, ExitStack() as stack:
        for site in ("west", "east"):
            agent = Agent(kube, "default", site, status[site]["nodes"][0]["name"])
            stack.enter_context(agent.running(switches[dpids[site]]))
        yield {site: switches[dpid] for site, dpid in dpids.items()}
