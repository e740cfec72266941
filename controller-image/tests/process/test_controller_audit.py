"""Test the audit log: each session has exactly one record, however it ends. Test the format of a record's line."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from controller_lab import AGENTS, SWITCHES, document, document_hash
from controller_world import WALL_MS, World, encode, syn_frame
from sos_controller import audit, logs
from sos_controller.app import Controller
from sos_controller.core.commands import SessionOver
from sos_controller.core.events import ConfigChanged, KeysChanged, Leaving, PacketIn
from sos_controller.core.tables.sessions import Phase
from sos_controller.core.types import AgentId, DatapathId, Location, PortNo, flow_key, parse_address
from sos_controller.core.wire import order
from sos_controller.core.wire.order import OrderType
from sos_controller.files.config import parse

INGRESS, EGRESS = "agent1", "agent2"
PORT = 40000


def only(world: World) -> dict[str, Any]:
    """Return the only record. Its session must be gone."""
    (over,) = world.over
    assert world.engine.state.sessions.by_uuid(over.uuid) is None
    return audit.fields(over)


def uuid_of(world: World) -> bytes:
    (session,) = world.engine.state.sessions
    return session.uuid


def dead(world: World, name: str) -> None:
    world.agents[name].mode = "dead"
    world.tick(5)


def both_say_so(world: World) -> None:
    world.end(uuid_of(world))
    world.tick(1.5)


def one_is_lost(world: World) -> None:
    uuid = uuid_of(world)
    dead(world, INGRESS)
    assert not world.over, "the session continues at the other agent"
    world.end(uuid, [EGRESS])
    world.tick(1.5)


def both_are_lost(world: World) -> None:
    world.agents[EGRESS].mode = "dead"
    dead(world, INGRESS)


def omitted(world: World) -> None:
    world.tick(5)
    for agent in world.agents.values():
        agent.held.clear()
    world.tick(8)


def used_again(world: World) -> None:
    world.end(uuid_of(world), [EGRESS])
    world.end(uuid_of(world), [INGRESS])
    world.syn(PORT, isn=99)


ACTIVE: dict[str, tuple[Callable[[World], None], str, str]] = {
    "ended": (both_say_so, "closed", "closed"),
    "agent-lost": (one_is_lost, "agent-lost", "closed"),
    "not-reported": (omitted, "not-reported", "not-reported"),
    "port-reused": (used_again, "closed", "closed"),
}


@pytest.mark.parametrize("reason", ACTIVE)
def test_active_session_has_one_record_however_it_ends(world: World, reason: str) -> None:
    way, ingress_end, egress_end = ACTIVE[reason]
    began, service = world.now, document()["services"][0]["id"]
    world.syn(PORT)
    uuid = uuid_of(world)
    world.tick(0.5)
    way(world)
    record, told = only(world), "closed" in (ingress_end, egress_end)
    stamp = datetime.fromisoformat(record.pop("began"))
    assert stamp == datetime.fromtimestamp(int(WALL_MS + began * 1000) / 1000, UTC)
    assert 0.5 <= record.pop("seconds") <= world.now - began + 0.001
    assert record == {
        **{"uuid": uuid.hex(), "service": service, "client": f"10.0.0.11:{PORT}", "server": "10.0.0.139:5001"},
        **{"ingress": AGENTS[INGRESS][2].hex(), "egress": AGENTS[EGRESS][2].hex(), "labels": [0], "adopted": False},
        **{"reason": reason, "ingressEnd": ingress_end, "egressEnd": egress_end},
        **{"bytesToServer": 1 if told else None, "bytesToClient": 2 if told else None},
    }
    world.tick(20)
    assert len(world.over) == 1 or reason == "port-reused"


def test_session_with_two_lost_agents_has_one_record(world: World) -> None:
    world.syn(PORT)
    both_are_lost(world)
    record = only(world)
    assert (record["reason"], record["ingressEnd"], record["egressEnd"]) == ("agent-lost",) * 3


def two_switches_at_west(*names: str, generation: int) -> ConfigChanged:
    """Return a configuration in which site west has the given switches among edge1 and core1."""
    changed = document(generation)
    west, _, core1, _ = changed["sites"]
    both = west["datapaths"] + core1["datapaths"]
    west["datapaths"], core1["datapaths"] = [d for d in both if d["name"] in names], []
    changed["hash"] = document_hash(changed)
    return ConfigChanged(parse(encode(changed)))


def test_session_at_an_unclaimed_datapath_has_one_record() -> None:
    world = World()
    world.agents[INGRESS].where = Location(DatapathId(SWITCHES["core1"]), PortNo(4))
    world.do(two_switches_at_west("edge1", "core1", generation=2))
    world.converge()
    world.syn(PORT)
    (session,) = world.engine.state.sessions
    assert session.state is Phase.ACTIVE
    world.do(two_switches_at_west("core1", generation=3))
    record = only(world)
    assert (record["reason"], record["ingressEnd"], record["egressEnd"]) == ("datapath-unclaimed", None, None)


def refused(world: World) -> None:
    world.agents[INGRESS].mode = "refuse"
    world.syn(PORT)


def silent(world: World) -> None:
    world.agents[INGRESS].mode = "silent"
    world.syn(PORT)
    world.tick(1.2)


def lost_early(world: World) -> None:
    world.agents[INGRESS].mode = "silent"
    world.syn(PORT)
    world.agents[INGRESS].boot += 10**9
    world.agents[INGRESS].beacons = world.agents[INGRESS].sequence = 0
    world.beacons()


def ended_early(world: World) -> None:
    world.agents[INGRESS].mode = "silent"
    world.syn(PORT)
    world.end(uuid_of(world), [EGRESS])


def leaving(world: World) -> None:
    world.agents[INGRESS].mode = "silent"
    world.syn(PORT)
    world.do(Leaving())


def switch_gone(world: World) -> None:
    world.mute.add(world.west)
    world.syn(PORT)
    world.disconnect("edge1")


def no_key(world: World) -> None:
    world.do(KeysChanged({}))
    world.syn(PORT)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (refused, "refused-2"), (silent, "timeout"), (lost_early, "agent-lost"), (ended_early, "agent-ended"), (leaving, "leaving"),
        (switch_gone, "datapath-failed"), (no_key, "no-key"),
    ],
)  # fmt: skip
def test_session_that_never_became_active_has_one_record(world: World, way: Callable[[World], None], reason: str) -> None:
    way(world)
    record = only(world)
    assert record["reason"] == reason and record["client"] == f"10.0.0.11:{PORT}" and record["bytesToServer"] is None
    world.tick(5)
    assert len(world.over) == 1


def reborn(world: World, mode: str = "ready") -> World:
    """Return a new controller over the same switches and agents."""
    other = World(network=world.network, epoch=2, now=world.now + 3)
    other.agents = world.agents
    for agent in other.agents.values():
        agent.mode = mode
    other.connect()
    return other


def test_adopted_session_has_one_record(world: World) -> None:
    world.syn(PORT)
    uuid = uuid_of(world)
    other = reborn(world)
    other.tick(12, step=0.1)
    assert not world.over and not other.over
    other.end(uuid)
    other.tick(1.5)
    record = only(other)
    assert (record["uuid"], record["client"], record["adopted"], record["reason"]) == (uuid.hex(), f"10.0.0.11:{PORT}", True, "ended")
    assert (record["ingress"], record["service"], record["labels"]) == (AGENTS[INGRESS][2].hex(), None, None)
    assert (record["bytesToServer"], record["bytesToClient"]) == (1, 2)


def test_adopted_session_without_agents_has_one_record(world: World) -> None:
    world.syn(PORT)
    number = uuid_of(world)[-2:]
    other = reborn(world, "dead")
    other.tick(17, step=0.1)
    record = only(other)
    assert (record["uuid"], record["ingress"], record["egress"]) == ((bytes(14) + number).hex(), None, None)
    assert record["reason"] == "agent-unknown"


def over(**changes: Any) -> SessionOver:
    fields = {
        **{"uuid": bytes(range(16)), "service": "default/bulk", "ingress": AgentId(b"\1" * 16), "egress": AgentId(b"\2" * 16)},
        "key": flow_key(parse_address("10.0.0.11"), parse_address("10.0.0.139"), PORT, 443),
        **{"labels": 5, "adopted": False, "began_ms": 1_700_000_000_123, "seconds": 1.23456, "reason": "ended"},
        **{"ingress_end": order.Ended(b"", 1, 10, 0, 1), "egress_end": order.Ended(b"", 99, 9, 20, 1)},
    }
    return SessionOver(**{**fields, **changes})


def test_record_holds_times_ends_and_byte_counts() -> None:
    record = audit.fields(over())
    assert record["began"] == "2023-11-14T22:13:20.123Z" and record["seconds"] == 1.235 and record["labels"] == [0, 2]
    assert (record["ingressEnd"], record["egressEnd"]) == ("client-reset", "reason-99")
    assert (record["bytesToServer"], record["bytesToClient"]) == (10, 20), "the larger of the two agents' counts"


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the loggers after a test."""
    for flag in ("logThreads", "logProcesses", "logMultiprocessing"):
        monkeypatch.setattr(logging, flag, getattr(logging, flag))
    root, kept = logging.getLogger(), logging.getLogger().handlers[:]
    level, noisy = (
        root.level,
        {name: logging.getLogger(name).level for name in ("ryu", "ofp_event", "Handshake", "ryu.ofproto.ofproto_parser")},
    )
    yield
    root.handlers[:] = kept
    root.setLevel(level)
    audit.LOG.disabled = False
    for name, was in noisy.items():
        logging.getLogger(name).setLevel(was)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    ("level", "wanted", "lines"), [("info", True, 1), ("debug", True, 1), ("info", False, 0), ("debug", False, 0), ("warning", True, 0)]
)
def test_audit_records_can_be_disabled(capsys: pytest.CaptureFixture[str], level: str, wanted: bool, lines: int) -> None:
    logs.setup(level, "json", audit=wanted)
    audit.record(over())
    audit.LOG.parent.info("other")  # type: ignore[union-attr]
    written = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["logger"] for line in written if line["message"] == "session"] == ["sos_controller.audit"] * lines
    assert len(written) == lines + (level != "warning")


@pytest.mark.usefixtures("restored")
def test_disabled_records_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    logs.setup("info", "json", audit=False)
    monkeypatch.setattr(audit, "fields", lambda _: pytest.fail("made"))
    audit.record(over())


@pytest.mark.usefixtures("restored")
def test_json_log_writes_fields_as_members(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("info", "json")
    audit.record(over())
    line = json.loads(capsys.readouterr().err)
    assert {"level", "logger", "message", "time"} | set(audit.fields(over())) == set(line)
    assert (line["level"], line["message"], line["client"]) == ("info", "session", f"10.0.0.11:{PORT}")


@pytest.mark.usefixtures("restored")
def test_extra_fields_of_any_name_and_type_overwrite_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("info", "json")
    fields = {"name": "edge1", "level": "none", "where": DatapathId(7), "odd": "\udcff\n"}
    logging.getLogger("x").warning("moved %d", 1, extra={"why": {1}, "fields": fields})
    text = capsys.readouterr().err
    line = json.loads(text)
    assert text.count("\n") == 1 and line.pop("time")
    assert line == {"level": "warning", "logger": "x", "message": "moved 1", "why": "{1}", "name": "edge1", "where": 7, "odd": "\udcff\n"}


@pytest.mark.usefixtures("restored")
def test_text_log_appends_fields_to_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("info", "text")
    logging.getLogger("x").info("agent", extra={"fields": {"name": "edge1", "state": "gone"}})
    logging.getLogger("x").info("plain")
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("INFO    x: agent name=edge1 state=gone") and second.endswith("x: plain")


@pytest.mark.usefixtures("restored")
def test_edge_logs_the_sessions_that_the_core_reports(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("info", "json")
    controller = Controller(world.engine)
    world.agents[INGRESS].mode = "refuse"
    frame = syn_frame(10 << 24 | 11, 10 << 24 | 139, PORT, 5001)
    controller.carry_out(world.engine.handle(PacketIn(world.west, PortNo(3), world.punt_cookie, frame), world.now))
    (session,) = world.engine.state.sessions
    said = world.agents[INGRESS].order(OrderType.REFUSED, order.encode_refused(session.uuid, 2), world.wall(world.now))
    controller.carry_out(world.engine.handle(PacketIn(*world.agents[INGRESS].where, 0, said), world.now))
    (line,) = [json.loads(text) for text in capsys.readouterr().err.splitlines()]
    assert (line["logger"], line["uuid"], line["reason"]) == ("sos_controller.audit", session.uuid.hex(), "refused-2")
