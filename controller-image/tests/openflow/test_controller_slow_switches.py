"""Test slow and long reports, and failed commands.

The controller waits until a slow switch has reported all entries. A switch with too many entries stays connected. After a partly sent
command, the switch has to reconnect.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from sos_controller.app import Controller
from sos_controller.core.commands import Apply, ReadEntries
from sos_controller.core.engine import Engine
from sos_controller.core.events import EntriesRead, EntriesUnreadable, Event, Rejected
from sos_controller.core.openflow.flow_entries import FlowEntry, Match, Output
from sos_controller.core.state import MAX_PORTS, Identity
from sos_controller.core.types import DatapathId, PortNo
from sos_controller.openflow import connection as connections
from sos_controller.openflow import ofp
from sos_controller.openflow.connection import REPORTING_S, SwitchConnection
from sos_controller.openflow.framework import eventlet

DPID = DatapathId(1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Controller, SwitchConnection, socket.socket]]:
    from ryu.base import app_manager  # importable only after the framework

    monkeypatch.setitem(app_manager.SERVICE_BRICKS, "ofp_event", SimpleNamespace(send_event_to_observers=lambda *_: None))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    controller = Controller(Engine(Identity(1, 1, 1, b"key")))
    connection = SwitchConnection(eventlet.greenio.GreenSocket(ours), ("switch", 1), controller)
    connection.id = DPID
    controller._connections[DPID] = connection
    theirs.settimeout(0.1)
    with ours, theirs:
        yield controller, connection, theirs


def part(xid: int, more: bool, cookies: tuple[int, ...] = (7,)) -> bytes:
    """Return a part of a report, with an entry for each cookie."""
    fixed = [struct.pack("!HBxIIHHHH4xQQQ", 56, 0, 1, 2, 100, 0, 0, 0, cookie, 3, 4) for cookie in cookies]
    entries = b"".join(each + struct.pack("!HH4x", 1, 4) for each in fixed)
    return struct.pack("!BBHIHH4x", 4, ofp.MULTIPART_REPLY, 16 + len(entries), xid, ofp.MULTIPART_FLOW, ofp.REPLY_MORE * more) + entries


def events(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Return the list of events that the controller handles from now on."""
    seen: list[Event] = []
    monkeypatch.setattr(controller, "happen", lambda event: seen.append(event) or True)
    return seen


def requests(controller: Controller, theirs: socket.socket) -> list[int]:
    """Return the transaction ids of requests that the engine's ReadEntries causes."""
    controller.carry_out([ReadEntries(DPID, 0, 0)])
    controller.flush()
    try:
        said = theirs.recv(4096)
    except TimeoutError:
        return []
    return [int.from_bytes(said[4:8], "big")]


def test_only_a_silent_switch_gets_a_second_request_for_entries(asked: tuple[Controller, SwitchConnection, socket.socket]) -> None:
    controller, connection, theirs = asked
    (xid,) = requests(controller, theirs)
    connection._multipart(part(xid, more=True))
    assert requests(controller, theirs) == []
    connection._told_at -= REPORTING_S
    (again,) = requests(controller, theirs)
    assert again != xid
    connection._multipart(part(xid, more=False))
    assert connection._reading is not None, "the last part of an abandoned report is ignored"
    connection._multipart(part(again, more=True))
    connection._multipart(part(again, more=False))
    assert connection._reading is None
    assert len(requests(controller, theirs)) == 1


def test_switch_with_too_many_entries_stays_connected_and_is_reported_once(
    asked: tuple[Controller, SwitchConnection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, connection, _ = asked
    monkeypatch.setattr(connections, "MAX_ENTRIES", 300)
    seen = events(controller, monkeypatch)
    request = connection.read_entries(7, 0xFF)
    xid = int.from_bytes(request[4:8], "big")
    for _ in range(1_000):
        connection._multipart(part(xid, True, (7,) * 3))
    connection._multipart(part(xid, False))
    assert seen == [EntriesUnreadable(DPID)] and not connection.is_reporting
    assert not controller.engine.state.counters["wire_errors", "too many entries"]


def test_switch_that_reports_300000_entries_of_others_is_served(
    asked: tuple[Controller, SwitchConnection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, connection, _ = asked
    seen = events(controller, monkeypatch)
    xid = int.from_bytes(connection.read_entries(0x100, 0xFF00)[4:8], "big")
    foreign = part(xid, True, (0x200,) * 1_000)
    for _ in range(300):
        connection._multipart(foreign)
        assert connection.is_reporting
    connection._multipart(part(xid, False, (0x107, 0x207)))
    (event,) = seen
    assert isinstance(event, EntriesRead) and [entry.cookie for entry in event.entries] == [0x107]


def test_refusal_because_of_a_full_table_names_the_table(
    asked: tuple[Controller, SwitchConnection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, connection, _ = asked
    connection.state = connections.MAIN_DISPATCHER
    seen = events(controller, monkeypatch)
    refused = ofp.flow_mod(flood(2), ofp.ADD, 77)
    for code, quoted in ((1, refused[:64]), (1, b""), (2, refused[:64]), (1, ofp.barrier_request(77))):
        connection._error(struct.pack("!BBHIHH", 4, ofp.ERROR, 12 + len(quoted), 77, 5, code) + quoted)
    assert seen == [Rejected(DPID, 77, 1), Rejected(DPID, 77), Rejected(DPID, 77), Rejected(DPID, 77)]


def flood(ports: int) -> FlowEntry:
    return FlowEntry(1, 1, Match(), tuple(Output(PortNo(port)) for port in range(1, ports + 1)), 0)


def test_unencodable_command_costs_only_its_connection(asked: tuple[Controller, SwitchConnection, socket.socket]) -> None:
    controller, _, theirs = asked
    controller.carry_out([Apply(DPID, (flood(5_000),), (), 1, True), ReadEntries(DatapathId(2), 0, 0)])
    assert theirs.recv(1) == b"", "the controller closes the connection and reads the switch on reconnect"
    assert controller.engine.state.counters["bugs", "Apply"] == 1


def test_all_ports_of_a_datapath_fit_an_entry() -> None:
    assert len(ofp.flow_mod(flood(MAX_PORTS), ofp.ADD, 0)) < 1 << 16
