"""Health of every SOS kind in every state, as Argo CD (by the script of docs/platforms.md) and Flux assess it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_fixtures import OWN
from operator_gitops import assessments, configure_argo_cd, health_script
from operator_kube import ROOT, Kube
from sos_operator.core.model.conditions import Status, Verdict, build_conditions

FRESH, OLD = timedelta(minutes=1), timedelta(minutes=20)
"""Ages of a condition on both sides of the script's five minutes."""
HELD = "test.sos.network/held"
SPECS: dict[str, dict[str, Any]] = {
    "SosAgent": {"siteSelector": {}},
    "SosController": {"type": "Managed"},
    "SosLink": {"a": {"site": "a"}, "b": {"site": "b"}, "transport": {"encryption": "TLS"}},
    "SosPeer": {"prefixes": ["10.50.0.0/16"]},
    "SosService": {"from": {"site": "a"}, "to": {"site": "b"}},
    "SosSite": {"nodeSelector": {"matchLabels": {"site": "a"}}},
}


@dataclass(frozen=True)
class State:
    """A state of an object, and the health that Argo CD and Flux should see."""

    argo: str
    flux: str
    status: Status | None = None
    """Status of Ready; None for an object without a status by the operator."""
    reason: str = "Ready"
    age: timedelta = FRESH
    outdated: bool = False
    """The spec has changed since the operator's last look."""
    deleted: bool = False


STATES = {
    "new": State("Progressing", "InProgress"),
    "ready": State("Healthy", "Current", "True", age=OLD),
    "observing": State("Healthy", "Current", "True"),
    "changed": State("Progressing", "InProgress", "True", age=OLD, outdated=True),
    "refused": State("Degraded", "InProgress", "False", "Invalid"),
    "failing": State("Degraded", "InProgress", "False", "NodeFailed"),
    "broken": State("Degraded", "InProgress", "Unknown", "InternalError"),
    "rolling-out": State("Progressing", "InProgress", "False", "RollingOut", OLD),
    "waiting": State("Progressing", "InProgress", "False", "NotConnected"),
    "stuck": State("Degraded", "InProgress", "False", "NotConnected", OLD),
    "unreachable": State("Progressing", "InProgress", "Unknown", "ControllerUnreachable"),
    "lost": State("Degraded", "InProgress", "Unknown", "ControllerUnreachable", OLD),
    "unobserved": State("Unknown", "InProgress", "Unknown", "NotObserved", OLD),
    "leaving": State("Progressing", "Terminating", "False", "Terminating", deleted=True),
    "leaving-ready": State("Progressing", "Terminating", "True", deleted=True),
}


@pytest.fixture(scope="module")
def health(installed: Kube) -> Iterator[dict[tuple[str, str], dict[str, str]]]:
    """Health of one object of every kind in every state; no operator runs."""
    configure_argo_cd(installed)
    for kind, spec in SPECS.items():
        for name, state in STATES.items():
            create(installed, kind, name, spec, state)
    yield assessments(installed)
    installed.clear(",".join(OWN), "-A")


def create(kube: Kube, kind: str, name: str, spec: dict[str, Any], state: State) -> None:
    """Create an object with the status that the operator would write."""
    mode = {"mode": "Observe"} if kind == "SosService" and name == "observing" else {}
    place = {"name": name, "namespace": "default"} if kind == "SosService" else {"name": name}
    meta = {**place, "finalizers": [HELD]}
    kube.apply({"apiVersion": "sos.network/v1alpha1", "kind": kind, "metadata": meta, "spec": {**spec, **mode}})
    resource = kind.lower()
    if state.status is not None:
        generation = kube.get(resource, name)["metadata"]["generation"]
        now = (datetime.now(UTC) - state.age).strftime("%Y-%m-%dT%H:%M:%SZ")
        verdicts = [Verdict("Accepted", "True", "Accepted"), Verdict("Ready", state.status, state.reason, f"message of {name}")]
        content = {"observedGeneration": generation, "conditions": build_conditions(verdicts, (), generation, now)}
        kube.patch_status(resource, name, "default", content)
    if state.outdated:
        kube.patch_spec(resource, name, "default", CHANGES[kind])
    if state.deleted:
        kube.kubectl("delete", resource, name, "-n", "default", "--wait=false")


CHANGES: dict[str, dict[str, Any]] = {
    "SosAgent": {"drainSeconds": 7},
    "SosController": {"replicas": 2},
    "SosLink": {"transport": {"streams": 4}},
    "SosPeer": {"prefixes": ["10.51.0.0/16"]},
    "SosService": {"mode": "Observe"},
    "SosSite": {"nodeSelector": {"matchLabels": {"site": "b"}}},
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", SPECS)
def test_health_is_right(health: dict[tuple[str, str], dict[str, str]], kind: str, state: str) -> None:
    found, wanted = health[kind, state], STATES[state]
    assert (found["argo"], found["flux"]) == (wanted.argo, wanted.flux), found
    if wanted.status is not None and not wanted.outdated and not wanted.deleted:
        assert f"message of {state}" in found["argoMessage"]


def test_an_object_without_the_operator_says_so(health: dict[tuple[str, str], dict[str, str]]) -> None:
    assert {health[kind, "new"]["argoMessage"] for kind in SPECS} == {"Pending: Waiting for the operator"}


def test_the_script_names_only_reasons_of_the_operator() -> None:
    """A misspelt reason would never match."""
    (script,) = health_script()["data"].values()
    named = set(re.findall(r'(\w+) = "(?:Progressing|Degraded|Unknown)"', script)) - {"status"}
    sources = [path.read_text() for package in ("operator", "compile") for path in (ROOT / package / "src").rglob("*.py")]
    assert {"NodeFailed", "RollingOut", "NotObserved"} <= named
    assert {reason for reason in named if not any(f'"{reason}"' in text for text in sources)} == set()
