"""Removal: of the peer, then of SOS in both clusters."""

from __future__ import annotations

import json
import time

from sos_e2e.observation import workload
from sos_e2e.run import say, wait_for
from two_clusters import NAMESPACE, Pair, is_accelerated, left_behind

DISCONNECTED_S = 10.0


def test_a_removed_peer_is_disconnected_and_its_connections_are_plain(paired: Pair) -> None:
    a, b = paired.sides
    began = time.monotonic()
    b.kube.ctl("delete", "sospeer", "a", "--wait=false")
    wait_for("plain connections", lambda: not is_accelerated(a, b), DISCONNECTED_S)
    say(f"plain after {time.monotonic() - began:.1f} s")
    row = a.kube.wait_condition("sospeer/b", "Connected", "False", timeout=30)
    took = time.monotonic() - began
    say(f"{row['reason']} after {took:.1f} s")
    assert (row["reason"], took <= DISCONNECTED_S) == ("Disconnected", True), (row, took)
    a.kube.wait_condition("sosservice/a-to-b", "Ready", "False", namespace=NAMESPACE, timeout=30)


def test_uninstall_leaves_nodes_and_pods_as_they_were(paired: Pair) -> None:
    shown = set(left_behind(paired))
    assert shown == set(paired.untouched), "before the removal, the comparison detects SOS on every node and in every host"
    for side in paired.sides:
        side.kube.helm("uninstall", "sos", "--namespace", workload.RELEASE_NAMESPACE, "--wait", timeout=300)
    wait_for("the former state", lambda: (rest := left_behind(paired)) == {} or _fail(rest), 60)


def _fail(rest: object) -> bool:
    raise LookupError(json.dumps(rest, indent=1))
