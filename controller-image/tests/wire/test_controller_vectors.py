"""Test keys, beacons and orders with the golden vectors of spec/ and with arbitrary bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.types import (
    AgentId,
    format_address,
    parse_address,
    parse_mac,
)
from sos_controller.core.wire import beacon, keys, order, path_report, plain_report

VECTORS = Path(__file__).resolve().parents[3] / "spec" / "vectors"


def vectors(kind: str) -> list:
    found = [v for path in sorted((VECTORS / kind).glob("*.json")) for v in json.loads(path.read_text())]
    assert found, f"no vectors of {kind}"
    return [pytest.param(v, id=v["name"]) for v in found]


@pytest.mark.parametrize("vector", vectors("keys"))
def test_keys_match_the_vectors(vector: dict) -> None:
    fields = vector["fields"]
    if "info" in fields:
        assert keys.expand(bytes.fromhex(fields["key"]), bytes.fromhex(fields["info"])).hex() == vector["hex"]


@pytest.mark.parametrize("vector", vectors("beacon"))
def test_beacons_match_the_vectors(vector: dict) -> None:
    fields = dict(vector["fields"])
    fields["agent_id"] = bytes.fromhex(fields["agent_id"])
    fields["address"], fields["mac"] = parse_address(fields["address"]), parse_mac(fields["mac"])
    fields["service_types"] = tuple(fields["service_types"])
    data, key = bytes.fromhex(vector["hex"]), bytes.fromhex(vector["key"])
    assert beacon.encode(beacon.Beacon(**fields), key) == data
    assert beacon.decode(data) == beacon.Beacon(**fields)
    assert beacon.signed_by(data, key) and not beacon.signed_by(data[:-1] + bytes([data[-1] ^ 1]), key)


@pytest.mark.parametrize("vector", vectors("order"))
def test_orders_match_the_vectors(vector: dict) -> None:
    fields, data, key = vector["fields"], bytes.fromhex(vector["hex"]), bytes.fromhex(vector["key"])
    head = dict(fields["header"], type=fields["type"])
    head["agent_id"] = AgentId(bytes.fromhex(head["agent_id"]))
    header = order.Header(**head)
    body, expect = order.body(data), dict(fields["body"])
    assert order.decode_header(data) == header and order.signed_by(data, key)
    assert order.encode(header, body, key) == data
    for name in ("uuid", "peer_id"):
        if name in expect:
            expect[name] = bytes.fromhex(expect[name])
    for name in ("client", "server", "peer_address"):
        if name in expect:
            expect[name] = parse_address(expect[name])
    kind = order.OrderType(fields["type"])
    if kind is order.OrderType.PREPARE:
        assert expect.pop("transport") == 1
        assert order.decode_prepare(body) == order.Prepare(**expect) and order.encode_prepare(order.Prepare(**expect)) == body
    elif kind is order.OrderType.REFUSED:
        assert order.decode_refused(body) == (expect["uuid"], expect["reason"])
        assert order.encode_refused(expect["uuid"], expect["reason"]) == body
    elif kind is order.OrderType.ENDED:
        ended = order.decode_ended(body)
        assert ended.uuid == expect["uuid"] and ended.reason == expect["reason"] and order.encode_ended(ended) == body
    elif kind is order.OrderType.SESSION_REPORT:
        report = order.decode_report(body)
        assert order.encode_report(report) == body
        assert [u.hex() for u in report.uuids] == expect["uuids"]
    elif kind is order.OrderType.FLOW_REPORT:
        flows = order.decode_flow_report(body)
        assert order.encode_flow_report(flows) == body
        assert [reported(flow) for flow in flows.flows] == expect["flows"]
    elif kind in CHECKS:
        CHECKS[kind](body, expect)
    elif kind is order.OrderType.WATCH:
        assert not body
    else:
        assert order.decode_uuid(body) == expect["uuid"]


def check_ready(body: bytes, expect: dict) -> None:
    assert order.decode_ready(body) == (expect["uuid"], bool(expect["accepted"]))
    assert body == (order.encode_accepted(expect["uuid"]) if expect["accepted"] else expect["uuid"])


def check_path_report(body: bytes, expect: dict) -> None:
    measured = path_report.decode_path_report(body)
    assert path_report.encode_path_report(measured) == body
    assert measured.sampled_ms == expect["sampled_ms"]
    assert [(row[0].hex(), *row[1:]) for row in measured.paths] == [tuple(row.values()) for row in expect["paths"]]
    for counted, said in zip(measured.services, expect["services"], strict=True):
        assert counted == (path_report.service_mark(said["id"]), said["sessions"], said["up"], said["down"])


def check_plain_report(body: bytes, expect: dict) -> None:
    told = plain_report.decode_plain_report(body)
    assert plain_report.encode_plain_report(told) == body
    rows = [(path_report.service_mark(row["id"]), row["reason"], row["count"]) for row in expect["rows"]]
    assert [tuple(row) for row in told.rows] == rows
    for sample, said in zip(told.samples, expect["samples"], strict=True):
        ends = parse_address(said["client"]).to_bytes(4, "big") + parse_address(said["server"]).to_bytes(4, "big")
        ports = said["client_port"].to_bytes(2, "big") + said["server_port"].to_bytes(2, "big")
        assert sample == (path_report.service_mark(said["id"]), said["reason"], ends + ports)


CHECKS = {
    order.OrderType.READY: check_ready,
    order.OrderType.PATH_REPORT: check_path_report,
    order.OrderType.PLAIN_REPORT: check_plain_report,
}


def reported(flow: order.ReportedFlow) -> dict:
    """Return a session of a FlowReport in the format of the vectors."""
    client, server = (format_address(int.from_bytes(flow.key[at : at + 4], "big")) for at in (0, 4))
    ports = (int.from_bytes(flow.key[8:10], "big"), int.from_bytes(flow.key[10:], "big"))
    return {
        **{"uuid": flow.uuid.hex(), "role": flow.role, "client": client, "client_port": ports[0]},
        **{"server": server, "server_port": ports[1], "peer_id": flow.peer.hex()},
    }


@given(st.binary(max_size=600), st.integers(0, 600))
def test_any_bytes_parse_as_a_beacon_or_raise_an_error(data: bytes, at: int) -> None:
    good = bytes.fromhex(json.loads((VECTORS / "beacon" / "v1.json").read_text())[0]["hex"])
    for candidate in (data, good[:at], good[:at] + data[:1] + good[at + 1 :]):
        try:
            assert isinstance(beacon.decode(candidate), beacon.Beacon)
        except beacon.BeaconError as error:
            assert str(error)


@given(st.binary(max_size=1500))
def test_any_bytes_parse_as_an_order_or_raise_an_error(data: bytes) -> None:
    for decode in (
        order.decode_header,
        order.decode_report,
        order.decode_flow_report,
        path_report.decode_path_report,
        plain_report.decode_plain_report,
        order.decode_ended,
        order.decode_refused,
        order.decode_uuid,
        order.decode_ready,
        order.decode_prepare,
    ):
        try:
            decode(data)
        except order.OrderError as error:
            assert str(error)
