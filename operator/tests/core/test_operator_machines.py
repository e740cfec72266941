"""Machines outside Kubernetes: reports, configurations, keys and status (spec/card.md section 5)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import sos_compile
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import ObjectKey
from sos_operator.core.desired.generation import claims_of
from sos_operator.core.model.cluster_objects import ConfigMap
from sos_operator.core.model.custom_resources import SosPeer
from sos_operator.core.peers import desired
from sos_operator.core.peers.contact import CONNECTED_S, Contact, Received
from sos_operator.core.peers.desired import Pairings, Peering, key_files, machine_configurations, peer_manifests, targets
from sos_operator.core.peers.documents import AGENTS_FILE, issued_cards
from sos_operator.core.peers.machine import ReportError, parse_report
from sos_operator.core.peers.messages import OFFER, Message
from sos_operator.core.peers.pairing import Pairing
from sos_operator.core.status.direct_agents import programmed
from sos_operator.core.status.peer_report import build_peer_report
from sos_operator.core.status.situation import Situation
from test_operator_peers import CARD, PAIRING, SETTINGS, THEM, pairings, peer, seen, site

KEYS = Pairing(PAIRING.id, {1: b"1" * 32, 2: b"2" * 32})


def machine(name: str = "gw") -> dict[str, Any]:
    found = peer(name)
    spec = {"prefixes": ["10.9.0.0/16"], "machine": {"siteID": 9, "addresses": ["192.0.2.9"], "interface": "lan0"}}
    return {**found, "spec": spec}


def service() -> dict[str, Any]:
    meta = {"name": "web", "namespace": "sos-system"}
    return {
        "apiVersion": "sos.network/v1alpha1",
        "kind": "SosService",
        "metadata": meta,
        "spec": {"from": {"site": "s1"}, "to": {"site": "gw"}},
    }


def compiled() -> sos_compile.Compiled:
    """Compile a cluster with site s1 and the machine gw."""
    pool = {"apiVersion": "sos.network/v1alpha1", "kind": "SosAgent", "metadata": {"name": "default"}, "spec": {}}
    nodes = (sos_compile.Node("n1", {"site": "1"}, "172.18.0.1"),)
    names = (sos_compile.Namespace("sos-system"),)
    world = sos_compile.World(objects=(site(1), pool, machine(), service()), nodes=nodes, namespaces=names)
    return sos_compile.compile_world(world)


HASH = compiled().machines["gw"]["hash"]


def report(**changes: Any) -> bytes:
    return json.dumps({"version": "v1alpha1", "software": "0.1.0", "generation": 1, "hash": HASH, "problem": ""} | changes).encode()


def heard(content: bytes, key_id: int = 1, installation: bytes = THEM, contact: Contact | None = None, sequence: int = 1) -> Contact:
    before = contact or Contact(machine=True)
    return before.heard(Message(OFFER, key_id, PAIRING.id, installation, b"", sequence, content), 100.0)


def test_a_report_is_kept_with_the_key_that_signed_it() -> None:
    contact = heard(report(generation=7, later="ignored"), key_id=2)
    assert contact.report and (contact.report.generation, contact.key_id, contact.refused) == (7, 2, "")
    assert contact.received == Received(PAIRING.id.hex(), THEM.hex(), CARD)
    assert contact.connected(100.0 + CONNECTED_S)


def test_a_second_machine_cannot_use_the_enrollment() -> None:
    contact = heard(report(generation=9), installation=b"X" * 16, contact=heard(report()))
    assert contact.report and contact.report.generation == 1
    assert "uses the pairing of installation" in contact.refused


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "report: "),
        (report(version="v2"), "version: "),
        (report(generation=-1), "generation: "),
        (report(generation="1"), "generation: "),
        (report(problem="x" * 301), "problem: "),
        (report(software=None), "software: "),
        (b" " * 5000, "more than 4096"),
        (CARD.encode().encode(), "generation: "),
    ],
)
def test_an_unusable_report_names_the_field(content: bytes, says: str) -> None:
    with pytest.raises(ReportError, match=says):
        parse_report(content)
    contact = heard(content, contact=heard(report(generation=3)))
    assert contact.report and contact.report.generation == 3
    assert "cannot be used" in contact.refused


def test_agents_get_the_configuration_of_a_machine_in_place_of_a_card() -> None:
    found, peering = compiled(), Peering(pairings("gw"), {"gw": Received(PAIRING.id.hex(), THEM.hex(), CARD)})
    machines = machine_configurations(found, {}, peering)
    agents, *_ = peer_manifests(SETTINGS, seen(machine()), {}, machines, peering)
    (row,) = json.loads(agents["data"][AGENTS_FILE])["peers"]
    assert json.loads(row["card"]) == found.machines["gw"]
    assert (row["pairing"], row["installation"], row["sequence"]) == (PAIRING.id.hex(), THEM.hex(), 1)
    assert issued_cards(seen(machine(), children=(agents,))) == {}
    assert list(claims_of([ConfigMap.parse(agents)])) == [(1, found.machines["gw"]["hash"])]
    aim = targets(seen(machine()), {}, machines, peering)["gw"]
    assert aim.machine and aim.endpoints == ()


def test_without_a_pairing_there_is_no_configuration() -> None:
    assert machine_configurations(compiled(), {}, Peering(pairings("other"))) == {}


def test_agents_send_with_the_newest_key_that_the_machine_has_used() -> None:
    def files(**key_ids: int) -> dict[str, str]:
        return key_files(compiled(), Peering(Pairings({"gw": KEYS}), {}, key_ids))[1]

    names = {f"card-{PAIRING.id.hex()}-1", f"card-{PAIRING.id.hex()}-2", "pair-9-1", "pair-9-2", "sending-9"}
    for key_ids, sending in (({}, "1"), ({"gw": 1}, "1"), ({"gw": 2}, "2")):
        found = files(**key_ids)
        assert (set(found), found["sending-9"]) == (names, sending), key_ids


def test_an_older_offer_changes_nothing() -> None:
    """Agents keep Offers for as long as they run, and an observer can send a recorded Offer to an agent without one."""
    newer = heard(report(generation=9), sequence=7, key_id=2)
    assert heard(report(generation=3), sequence=6, contact=newer) == newer
    again = heard(report(generation=9), sequence=7, key_id=2, contact=newer)
    assert again == newer
    assert heard(report(generation=9), sequence=8, key_id=1, contact=newer).key_id == 2


def test_configurations_share_the_room_of_one_config_map(monkeypatch: pytest.MonkeyPatch) -> None:
    peering = Peering(pairings("gw"))
    monkeypatch.setattr(desired, "FILE_BYTES", 100)
    assert machine_configurations(compiled(), {}, peering) == {}
    full = replace(situation(heard(report())), undelivered=frozenset({"gw"}))
    built = build_peer_report(SosPeer.parse(machine()), full.compiled.facts[ObjectKey("SosPeer", "", "gw")], full)
    assert {verdict.type: verdict.reason for verdict in built.verdicts}["Programmed"] == "LimitExceeded"


def situation(contact: Contact) -> Situation:
    found = compiled()
    received = {"gw": contact.received} if contact.received else {}
    return Situation(seen=seen(machine()), compiled=found, contacts={"gw": contact}, received=received, now_s=101.0)


def conditions(contact: Contact) -> dict[str, tuple[str, str, str]]:
    now = situation(contact)
    built = build_peer_report(SosPeer.parse(machine()), now.compiled.facts[ObjectKey("SosPeer", "", "gw")], now)
    return {verdict.type: (verdict.status, verdict.reason, verdict.message) for verdict in built.verdicts}


def test_the_status_says_whether_the_configuration_is_in_force() -> None:
    silent = conditions(Contact(machine=True))
    assert silent["Connected"][:2] == ("False", "NeverConnected") and silent["Programmed"][:2] == ("Unknown", "NotObserved")
    current = conditions(heard(report(generation=1)))
    assert current["Ready"][0] == "True" and current["Programmed"][0] == "True"
    behind = conditions(heard(report(generation=9, hash="sha256:other")))
    assert behind["Programmed"][:2] == ("False", "Programming") and behind["Ready"][0] == "False"
    refused = conditions(heard(report(hash="", problem="wan has changed: restart the agent to apply it")))
    assert refused["Programmed"][:2] == ("False", "ConfigRefused") and "restart the agent" in refused["Programmed"][2]
    gone = conditions(Contact(machine=True, received=heard(report()).received, last_s=100.0 - CONNECTED_S))
    assert gone["Connected"][:2] == ("False", "Disconnected") and "sos-agent" in gone["Connected"][2]


def test_a_service_waits_for_the_machine() -> None:
    behind = programmed("sos-system/web", situation(heard(report(hash="sha256:other"))), "s1", "gw")
    assert behind.reason == "Programming" and "machine gw has not taken over" in behind.message
    current = programmed("sos-system/web", situation(heard(report(generation=1))), "s1", "gw")
    assert "SosSite s1" in current.message, "then the agents of the cluster count"


@given(st.binary(max_size=5000))
def test_any_report_is_read_or_refused(content: bytes) -> None:
    contact = heard(content)
    assert (contact.report is None) == bool(contact.refused) or not content
