"""Condition InterfacesAttached: reported states of uplinks and LAN interfaces."""

from __future__ import annotations

import json
from typing import Any

from sos_operator.core.model.remote.node_status import INTERFACES_MAX, NodeAnswer, parse_answer
from sos_operator.core.status.interfaces import NAMED_MAX, attached_verdict


def documents(**lan: list[str]) -> dict[str, Any]:
    """Documents of nodes with an uplink and these LAN ports."""
    return {node: {"uplinks": [{"name": "wan0"}], "lan": [{"name": name} for name in names]} for node, names in lan.items()}


def answer(**states: str) -> NodeAnswer:
    ports = [{"name": name, "kind": "Uplink" if name.startswith("wan") else "Lan", "state": state} for name, state in states.items()]
    tunnel = {"name": "sosvx1", "kind": "Tunnel", "state": "Waiting"}
    found = parse_answer(json.dumps({"state": "Ready", "hash": "sha256:x", "ports": [tunnel, *ports, "odd"]}).encode())
    assert found is not None
    return found


def says(nodes: dict[str, Any], **answers: NodeAnswer) -> tuple[str, str, str]:
    verdict = attached_verdict(nodes, answers)
    assert verdict is not None and verdict.type == "InterfacesAttached"
    return verdict.status, verdict.reason, verdict.message


def test_a_site_without_interfaces_has_no_condition() -> None:
    assert attached_verdict({"a1": {"uplinks": []}}, {"a1": answer()}) is None


def test_a_missing_interface_is_named_with_its_node() -> None:
    nodes = documents(a1=["eth1"], a2=["eth1"])
    good = answer(wan0="Up", eth1="Up")
    assert says(nodes, a1=good, a2=answer(wan0="Down", eth1="Up")) == ("True", "Attached", "4 interfaces"), "no carrier, but attached"
    assert says(nodes, a1=good, a2=answer(wan0="Up", eth1="Waiting")) == ("False", "InterfaceMissing", "a2: eth1 does not exist")
    assert says(nodes, a1=answer(wan0="Waiting", eth1="Refused"), a2=good) == (
        "False",
        "InterfaceMissing",
        "a1: wan0 does not exist; a1: eth1 is refused (see BridgesReady)",
    )
    assert says(nodes, a1=good, a2=answer(wan0="Up", eth1="Refused"))[:2] == ("False", "InterfaceRefused")


def test_interfaces_that_are_not_reported_yet_are_unknown() -> None:
    nodes = documents(a1=["eth1"])
    assert says(nodes) == ("Unknown", "RollingOut", "a1: wan0 is not reported yet; a1: eth1 is not reported yet")
    assert says(nodes, a1=answer(wan0="Up"))[0] == "Unknown", "the node has not applied the document yet"
    assert says(nodes, a1=answer(wan0="Waiting"))[0] == "False", "a known fault comes first"


def test_messages_and_answers_are_bounded() -> None:
    names = [f"e{i}" for i in range(NAMED_MAX + 3)]
    missing = answer(wan0="Up", **dict.fromkeys(names, "Waiting"))
    assert says(documents(a1=names), a1=missing)[2].endswith("; and 3 more")
    assert len(answer(**{f"e{i}": "Up" for i in range(INTERFACES_MAX + 9)}).interfaces) == INTERFACES_MAX
