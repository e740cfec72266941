"""Findings of `kubectl sos diagnose`, in the order of dependency: the first that is broken explains the rest.

Every code has an entry in docs/troubleshooting.md; a test compares.
"""

from __future__ import annotations

from dataclasses import dataclass

REMEDIES: dict[str, str] = {
    "ControllerUnreachable": "Look at its pod: kubectl -n sos-system logs deploy/sos-controller-default (a lab: ./lab logs controller).",
    "NoConfiguration": "The operator hands it over: kubectl sos status says what keeps it.",
    "NotAccepted": "Change the object as its condition says: kubectl sos status.",
    "NoService": "Apply a SosService from the one site to the other.",
    "NotCovered": "Change the service's prefixes or ports, or the address asked for: kubectl sos trace follows it step by step.",
    "NotRedirected": "Set spec.mode to Accelerate and spec.percent to 100, if it is to be accelerated.",
    "NoEnds": "Diagnose needs a host (in a cluster: may create a pod) at either site.",
    "DatapathDisconnected": "Look at Open vSwitch and sos-node there, and whether the controller's port 6653 is reached from there.",
    "LinkDown": "Look at the cable or the interface: the switch says that the port has no carrier.",
    "LinkSilent": "The port is up but nothing comes through: look at what carries it (VLAN, tunnel, firewall for UDP 14789, the provider).",
    "MtuTooSmall": "Set the site's network.mtu to the size that passes, or raise the MTU of what carries the link.",
    "HostUnreachable": "Not a matter of acceleration: look at the host's interface, its address and route, and firewalls on the way.",
    "AgentDown": "Look at its pod: kubectl -n sos-system get pods -o wide (a lab: ./lab logs agent1).",
    "AgentRefused": "Its key is not the controller's for that site, or clocks differ: compare the sites' Secrets and the nodes' clocks.",
    "AgentSilent": "It runs but its beacons do not arrive: look at its port on the site bridge: kubectl sos topology.",
    "AgentUnwilling": "It is draining or full: wait, raise spec.limits of its SosAgent, or kubectl sos drain --undo.",
    "StreamsBlocked": "Agents hear the controller but not each other: let TCP pass between their addresses (TCP 10000-10007).",
    "ServicePending": "kubectl sos status and kubectl sos topology say what the service waits for.",
    "ServerRefuses": "Nothing listens there: start the server, or correct the address and port. SOS has no part in it.",
    "ServerUnreachable": "It does not answer even from beside it: look at the server's host and its firewall. SOS has no part in it.",
    "NoPort": "Free a port, or let a service leave one out: without it nobody knows whether that way works.",
    "ThroughFails": "Switch the service off (spec.mode: Observe) and send the bundle of kubectl sos report.",
    "AddressChanged": "The server does not see the client's own address: look for NAT between the agents and the server.",
    "NotAccelerated": "It passed as plain TCP: kubectl sos trace, the agents' logs.",
}
ORDER = tuple(REMEDIES)


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken thing. `where` names it; `what` says in a sentence what is wrong; `near` = at the two sites, not between them."""

    code: str
    where: str
    what: str
    near: bool = True

    @property
    def remedy(self) -> str:
        """Remedy."""
        return REMEDIES[self.code]


def in_order(found: list[Finding]) -> list[Finding]:
    """Sort findings, the one that explains most first, without duplicates; of two alike, keep the one at the requested sites. A refused
    object on the path may be on one of several paths, so it comes after everything seen to be broken."""
    last = {finding: finding.code == "NotAccepted" and not finding.near for finding in found}
    return sorted(last, key=lambda finding: (last[finding], ORDER.index(finding.code), not finding.near, finding.where))
