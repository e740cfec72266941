"""Flow entries of a lab's switches, as both tests of proactive services compare and count them."""

from sos_testbed.cli import dump_flows
from sos_testbed.core.flows import FlowEntry, parse_flows
from sos_testbed.lifecycle.lab import Lab


def entries(net: Lab, switch: str) -> list[FlowEntry]:
    return parse_flows(dump_flows(net, switch))


def identities(net: Lab) -> dict[str, list[tuple]]:
    """All entries of each switch, without counters."""
    return {switch.name: sorted(entry.identity() for entry in entries(net, switch.name)) for switch in net.topology.switches}


def to_controller(net: Lab) -> int:
    """Number of TCP packets that all switches have punted to the controller."""
    found = [entry for switch in net.topology.switches for entry in entries(net, switch.name) if "CONTROLLER" in entry.actions]
    return sum(entry.n_packets for entry in found if entry.match.startswith("tcp"))
