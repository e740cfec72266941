"""Condition InterfacesAttached of a SosSite: uplinks and LAN interfaces of its nodes that are not on the bridge.

Like PodsAttachable, the condition does not affect Ready: the rest of the site works without the interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sos_operator.core.model.conditions import Verdict
from sos_operator.core.model.remote.node_status import NodeAnswer

TYPE = "InterfacesAttached"
NAMED_MAX = 5  # interfaces listed in a message
_SAID = {"Waiting": "does not exist", "Refused": "is refused (see BridgesReady)", "Error": "is not attached (see BridgesReady)"}
"""States of a port that is not on the bridge (spec/node-config.md clause 17)."""


def attached_verdict(documents: Mapping[str, Mapping[str, Any]], answers: Mapping[str, NodeAnswer]) -> Verdict | None:
    """Return the condition; None if the nodes' documents declare no interface. Both arguments by node."""
    declared = [
        (node, port["name"]) for node in sorted(documents) for port in (*documents[node]["uplinks"], *documents[node].get("lan", ()))
    ]
    if not declared:
        return None
    states = {(node, name): state for node, answer in answers.items() for name, state in answer.interfaces}
    detached = [(node, name, states[node, name]) for node, name in declared if states.get((node, name)) in _SAID]
    if detached:
        reason = "InterfaceMissing" if any(state == "Waiting" for *_, state in detached) else "InterfaceRefused"
        return Verdict(TYPE, "False", reason, _listed([f"{node}: {name} {_SAID[state]}" for node, name, state in detached]))
    unknown = [f"{node}: {name} is not reported yet" for node, name in declared if (node, name) not in states]
    if unknown:
        return Verdict(TYPE, "Unknown", "RollingOut", _listed(unknown))
    return Verdict(TYPE, "True", "Attached", f"{len(declared)} interfaces")


def _listed(parts: list[str]) -> str:
    rest = len(parts) - NAMED_MAX
    return "; ".join(parts[:NAMED_MAX]) + (f"; and {rest} more" if rest > 0 else "")
