"""Network policies of both clusters hold for accelerated connections."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

import pytest
from sos_e2e.environment import network_policy
from sos_e2e.observation import workload
from sos_e2e.run import run, say, wait_for
from two_clusters import COVERED, NAMESPACE, PLAIN, POLICY_S, Pair, address, download, is_accelerated

TIMED_OUT = 28
"""curl's exit code for a timeout."""


@pytest.mark.parametrize("end", ["client's node", "server's node"])
def test_connections_that_a_policy_forbids_stay_forbidden(paired: Pair, end: str) -> None:
    """Drop the pod's packets on a node, as a network plugin does for a NetworkPolicy. The rule does not match the agents' streams, so only
    the agents' checks of the plain path can detect it."""
    a, b = paired.sides
    wait_for("acceleration", lambda: is_accelerated(a, b), 60)
    node = (a if end == "client's node" else b).worker
    rule = ("FORWARD", "-s", address(a), "-d", address(b), "-p", "tcp", "--dport", str(COVERED), "-j", "DROP")
    run("docker", "exec", node, "iptables", "-w", "-I", *rule)
    began = time.monotonic()
    try:
        forbidden = f"{workload.FILE}.sha256"
        wait_for("a forbidden connection", lambda: download(a, b, COVERED, 5, forbidden).exit_code == TIMED_OUT, POLICY_S)
        say(f"forbidden at the {end} after {time.monotonic() - began:.0f} s")
        assert download(a, b, COVERED, 5, forbidden).exit_code == TIMED_OUT
        assert download(a, b, PLAIN, 5, forbidden).exit_code == 0, "the policy names one port"
        assert download(b, a, COVERED, 5, forbidden).exit_code == 0, "the policy names one direction"
    finally:
        run("docker", "exec", node, "iptables", "-w", "-D", *rule)
    wait_for("acceleration again", lambda: is_accelerated(a, b), 60)


@pytest.fixture(scope="module")
def enforced(paired: Pair) -> Iterator[Pair]:
    """Both clusters with a network plugin that enforces NetworkPolicies."""
    with contextlib.ExitStack() as undo:
        for side in paired.sides:
            undo.enter_context(network_policy.enforced(side))
        yield paired


def policy(direction: str, ports: Sequence[int]) -> dict[str, object]:
    """A NetworkPolicy of all pods: connections in one direction are permitted to these ports only."""
    rule = {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}
    spec = {"podSelector": {}, "policyTypes": [direction], direction.lower(): [rule]}
    meta = {"name": "ports", "namespace": NAMESPACE}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": spec}


REFUSED = 7
"""curl's exit code for a connection that was refused: the plugin rejects with an ICMP error."""


@pytest.mark.parametrize("direction", ["Egress", "Ingress"])
def test_network_policies_hold_at_both_ends(enforced: Pair, direction: str) -> None:
    """A NetworkPolicy at the client's end (Egress) or at the server's end (Ingress) forbids and permits as without SOS."""
    a, b = enforced.sides
    end = a if direction == "Egress" else b
    file = f"{workload.FILE}.sha256"
    try:
        end.kube.apply(policy(direction, [COVERED, PLAIN]))
        wait_for("acceleration of permitted connections", lambda: is_accelerated(a, b), POLICY_S)
        end.kube.apply(policy(direction, [PLAIN]))
        began = time.monotonic()
        wait_for("a forbidden connection", lambda: download(a, b, COVERED, 5, file).exit_code in (TIMED_OUT, REFUSED), POLICY_S)
        say(f"{direction}: forbidden after {time.monotonic() - began:.0f} s")
        for _ in range(3):
            assert download(a, b, COVERED, 5, file).exit_code in (TIMED_OUT, REFUSED)
        assert download(a, b, PLAIN, 5, file).exit_code == 0
    finally:
        end.kube.ctl("-n", NAMESPACE, "delete", "networkpolicy", "ports", "--ignore-not-found")
    wait_for("acceleration again", lambda: is_accelerated(a, b), POLICY_S)
