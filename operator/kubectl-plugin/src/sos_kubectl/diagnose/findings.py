"""Findings of `kubectl sos diagnose`, in the order of cause: the first finding explains the rest.

Every code has an entry in docs/troubleshooting.md, which a test checks.
"""

from __future__ import annotations

from dataclasses import dataclass

REMEDIES: dict[str, str] = {
    "ControllerUnreachable": "Look at its pod: kubectl -n sos-system logs deploy/sos-controller-default (a lab: ./lab logs controller).",
    "NoConfiguration": "The operator sends the configuration: kubectl sos status shows why it is missing.",
    "NotAccepted": "Change the object as its condition says: kubectl sos status.",
    "NoService": "Apply a SosService from the one site to the other.",
    "NotCovered": "Change the service's prefixes or ports, or the address asked for: kubectl sos trace follows it step by step.",
    "NotRedirected": "Set spec.mode to Accelerate and spec.percent to 100, if it is to be accelerated.",
    "NotEncrypted": "Set spec.transport.encryption: TLS in the SosLink or SosPeer of the two sites: kubectl sos status names it.",
    "NoEnds": "Diagnose needs a host at each site (in a cluster: the right to create pods).",
    "DatapathDisconnected": "Look at Open vSwitch and sos-node there, and check that they reach the controller's port 6653.",
    "LinkDown": "Look at the cable or the interface: the switch says that the port has no carrier.",
    "LinkSilent": "The port is up but receives nothing: check the VLAN, tunnel, provider, and firewalls (UDP 14789) on the path.",
    "MtuTooSmall": "Set the site's network.mtu to the size that passes, or raise the MTU below the link.",
    "HostUnreachable": "Acceleration is not the cause: check the host's interface, address and route, and firewalls on the path.",
    "AgentDown": "Look at its pod: kubectl -n sos-system get pods -o wide (a lab: ./lab logs agent1).",
    "AgentRefused": "Its key is not the controller's for that site, or clocks differ: compare the sites' Secrets and the nodes' clocks.",
    "AgentSilent": "It runs but its beacons do not arrive: look at its port on the site bridge: kubectl sos topology.",
    "AgentUnwilling": "It is draining or full, or no node has the site's virtual address: wait, raise spec.limits of its SosAgent, "
    "kubectl sos drain --undo, or look at keepalived.",
    "ConfigurationPending": "A change arrives within two minutes; otherwise look at the agent's log: kubectl -n sos-system logs.",
    "StreamsBlocked": "Agents do not reach each other: let TCP pass between their addresses (TCP 10000-10007, or the ports named).",
    "PathDown": "Other paths carry the connections: check the route of the addresses, and let TCP pass to the port named.",
    "ServicePending": "kubectl sos status and kubectl sos topology say what the service waits for.",
    "ServerRefuses": "Nothing listens there: start the server, or correct the address and port. SOS is not involved.",
    "ServerUnreachable": "It does not answer even from beside it: look at the server's host and its firewall. SOS is not involved.",
    "ServerElsewhere": "Route the server's answers through its site's switches, or exclude the server from the service.",
    "NoPort": "Free a port, or exclude one from a service: without a free port, this path cannot be tested.",
    "ThroughFails": "Switch the service off (spec.mode: Observe) and send the bundle of kubectl sos report.",
    "AddressChanged": "The server does not see the client's own address: look for NAT between the agents and the server.",
    "SlowerThanPlain": "On a short path without loss, delete the service: SOS gains nothing there. Otherwise look at the agents' CPU time "
    "and send the bundle of kubectl sos report.",
    "NotAccelerated": "It passed as plain TCP: kubectl sos trace, the agents' logs.",
}
ORDER = tuple(REMEDIES)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. `where`: its location; `what`: a sentence that describes it; `near`: False if it is between the two sites, not at them."""

    code: str
    where: str
    what: str
    near: bool = True

    @property
    def remedy(self) -> str:
        """Remedy."""
        return REMEDIES[self.code]


def in_order(found: list[Finding]) -> list[Finding]:
    """Sort findings by cause, without duplicates; among findings of one code, those at the requested sites come first. A refused object on
    the path may be on one of several paths, so it comes after all faults that were seen."""
    last = {finding: finding.code == "NotAccepted" and not finding.near for finding in found}
    return sorted(last, key=lambda finding: (last[finding], ORDER.index(finding.code), not finding.near, finding.where))
