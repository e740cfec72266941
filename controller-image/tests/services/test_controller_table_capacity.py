"""Test that a service that exceeds a switch's table is reported before its entries are sent."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from controller_fake import E1
from controller_lab import document
from controller_world import World
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core import snapshot
from sos_controller.core.events import TablesRead
from sos_controller.core.openflow.pipeline import TABLE_REDIRECT, Kind, cookie_kind
from sos_controller.core.tables.policies import MAX_PUNTS
from sos_controller.files.config import document_hash
from sos_controller.openflow import ofp


def with_service(clients: int, servers: int, ports: int, **more: Any) -> dict[str, Any]:
    made = document()
    del made["hash"]
    bulk = made["services"][0]
    bulk["from"]["prefixes"] = [f"10.0.0.{2 * i + 1}/32" for i in range(clients)]
    bulk["to"]["prefixes"] = [f"10.0.0.{129 + 2 * i}/32" for i in range(servers)]
    bulk["ports"] = [{"first": 5001 + 2 * i, "last": 5001 + 2 * i} for i in range(ports)]
    made["services"] = [{**bulk, **more}]
    return {**made, "hash": document_hash(made)}


def row(world: World) -> dict[str, Any]:
    (found,) = snapshot.status(world.engine, "", "")["services"]
    return dict(found)


def punts(world: World) -> int:
    return sum(cookie_kind(e.cookie) == Kind.PUNT for e in world.network.entries(E1))


@pytest.mark.parametrize(
    ("counts", "expected", "words"),
    [((17, 16, 3), 816, ""), ((17, 16, 16), 272, "to any port between"), ((60, 60, 1), 60, "of any client to any port")],
)
def test_service_with_wider_entries_reports_them(counts: tuple[int, int, int], expected: int, words: str) -> None:
    world = World(with_service(*counts))
    world.converge()
    assert world.service() == "Programmed/Programmed" and punts(world) == expected
    message = row(world)["message"]
    assert (words in message and str(MAX_PUNTS) in message) if words else message == ""


def test_service_with_wider_entries_is_not_proactive() -> None:
    world = World(with_service(17, 16, 16, setup="Proactive"))
    world.converge()
    assert punts(world) == 272
    assert "set up reactively: 4352 entries would match" in row(world)["message"]


def test_service_that_exceeds_a_table_is_pending_and_reports_the_numbers() -> None:
    world = World(with_service(10, 10, 3))
    world.converge()
    assert punts(world) == 300
    world.do(TablesRead(E1, {TABLE_REDIRECT: 200}))
    world.tick(0.1)
    assert punts(world) == 0 and world.service() == "Pending/TableFull"
    assert "table 0 takes 200 entries" in row(world)["message"] and "730 are needed" in row(world)["message"]
    world.do(TablesRead(E1, {TABLE_REDIRECT: 2_000}))
    world.tick(0.5)
    assert punts(world) == 300 and world.service() == "Programmed/Programmed"


def test_first_of_two_services_keeps_its_table_capacity() -> None:
    made = with_service(10, 10, 3)
    del made["hash"]
    made["services"].append({**made["services"][0], "id": "default/more", "ports": [{"first": 80, "last": 80}]})
    world = World({**made, "hash": document_hash(made)})
    world.converge()
    # Three quarters of the table minus 540 entries of other kinds: enough for 300 punt entries, too small for 100 more
    world.do(TablesRead(E1, {TABLE_REDIRECT: 1_150}))
    world.tick(0.5)
    states = {s["id"]: s["reason"] for s in snapshot.status(world.engine, "", "")["services"]}
    assert states == {"default/bulk": "Programmed", "default/more": "TableFull"}


def features(table: int, most: int, properties: bytes = b"") -> bytes:
    return struct.pack("!HB5x32sQQII", 64 + len(properties), table, b"name", 0, 0, 0, most) + properties


def test_table_features_are_parsed_without_their_properties() -> None:
    assert ofp.parse_table_features(features(0, 1_300, bytes(24)) + features(1, 4_000)) == {0: 1_300, 1: 4_000}
    with pytest.raises(ofp.WireError):
        ofp.parse_table_features(features(0, 1)[:-1])


@given(st.binary(max_size=300))
def test_any_bytes_parse_as_table_features_or_raise_an_error(data: bytes) -> None:
    for candidate in (data, features(0, 1)[:3] + data):
        try:
            assert all(0 <= table < 256 for table in ofp.parse_table_features(candidate))
        except ofp.WireError as error:
            assert str(error)
