"""Stateful targets: the receive loop of a switch's connection, and a whole engine that receives hosts' packets.

State is discarded at intervals, so that an input reproduces its finding by itself.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import targets
from sos_controller.core.events import PacketIn
from sos_controller.core.topology.hosts import MAX_ADDRESSES
from sos_controller.core.types import DatapathId, PortNo
from sos_controller.core.wire import keys
from sos_controller.openflow import ofp
from sos_controller.openflow.connection import Reading, SwitchConnection
from sos_controller.openflow.framework import start_handshake  # imported first: it patches modules that later imports use

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from controller_world import World
from ryu.controller.handler import CONFIG_DISPATCHER, HANDSHAKE_DISPATCHER, MAIN_DISPATCHER

CASES_PER_LIFE = 2_000


class Told:
    """Recorder of a connection's reports to its controller."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def barrier_replies(self, _connection: SwitchConnection, tokens: tuple[int, ...]) -> None:
        """Record each barrier separately: consecutive barrier replies are one event only if one read contains them."""
        self.said += (("barrier_reply", token) for token in tokens)

    def __getattr__(self, what: str) -> Any:
        return lambda connection, *said: self.said.append((what, *said))


class Streams:
    """One connection, reset to a chosen state before each case. Its socket is never connected, so nothing is sent."""

    def __init__(self) -> None:
        start_handshake()
        self.ours = socket.socket()
        self._told = Told()
        self._connection = SwitchConnection(self.ours, ("fuzzer", 0), self._told)  # type: ignore[arg-type]
        self._fresh = dict(self._connection.__dict__)

    def stream(self, data: bytes) -> None:
        """Check that the result does not depend on how a switch's bytes are split, and that only WireError ends the connection."""
        if not data:
            return
        state = (HANDSHAKE_DISPATCHER, CONFIG_DISPATCHER, MAIN_DISPATCHER)[data[0] % 3]
        whole = self._take(state, data[1:], len(data))
        assert self._take(state, data[1:], 1 + data[0] // 3) == whole

    def _take(self, state: str, data: bytes, size: int) -> tuple[Any, ...]:
        connection, told = self._connection, self._told
        connection.__dict__.update(self._fresh, _out=[], _known_ports={}, _reading=Reading(7, 0, 0, []), state=state)
        connection.id = None if state != MAIN_DISPATCHER else 1
        told.said = []
        rest, error = b"", ""
        try:
            for piece in targets.pieces(data, size):
                rest = connection._split(rest + piece)
        except ofp.WireError as wrong:
            error, rest = str(wrong), b""
            assert error
        assert len(rest) < ofp.MAX_MESSAGE
        sent = b"".join(connection._out)
        return told.said, error, rest, connection.state, _without_transactions(sent)


def _without_transactions(sent: bytes) -> bytes:
    """Return the output without the transaction ids, which Ryu draws at random."""
    shown, at = bytearray(sent), 0
    while at < len(shown):
        shown[at + 4 : at + 8] = bytes(4)
        at += struct.unpack_from("!H", shown, at + 2)[0]
    return bytes(shown)


class Network:
    """An engine in a converged network. Ports of hosts and agents send frames to it."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._cases = 0

    def engine(self, data: bytes) -> None:
        """Check that any frame at any port is handled, and that tables stay within the configuration and their bounds."""
        if len(data) < 2:
            return
        world = self._world
        if world is None or self._cases >= CASES_PER_LIFE:
            world = self._world = World()
            world.converge()
            self._cases = 0
        self._cases += 1
        switch = (world.west, world.east)[data[0] & 1]
        cookie = world.punt_cookie if data[0] & 2 else 0
        frame = _signed(world, data[2:]) if data[0] & 4 else data[2:]
        world.delivered.clear()
        world.do(PacketIn(DatapathId(switch), PortNo(data[1] % 7), cookie, frame))
        state = world.engine.state
        assert {a.agent_id for a in state.agents.all()} <= {a.id for a in world.agents.values()}, "only holders of the key are agents"
        assert all(len(h.addresses) <= MAX_ADDRESSES for h in state.hosts.all()[:8])
        assert len(state.hosts) <= CASES_PER_LIFE + 8 and len(state.counters) < 256


def stateful() -> dict[str, Callable[[bytes], None]]:
    """Return the targets of this file by name."""
    return {"stream": Streams().stream, "engine": Network().engine}


def _signed(world: World, frame: bytes) -> bytes:
    """Return the datagram with a valid tag of the agent that it names; in reality only that agent can make the tag."""
    by_id = {a.id: a for a in world.agents.values()}
    agent = by_id.get(frame[42 + 16 : 42 + 32])  # type: ignore[call-overload]
    if agent is None or len(frame) < 42 + 64 + keys.TAG_BYTES:
        return frame
    purpose = keys.BEACON if frame[42:46] == b"SOSB" else keys.FROM_AGENT
    message = frame[42 : -keys.TAG_BYTES]
    return frame[:42] + message + keys.tag(agent.keys[purpose], message)
