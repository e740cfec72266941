"""Adapter: passes events to the engine and carries out its commands. Contains clocks, timers and connections, and makes no decisions."""

from __future__ import annotations

import gc
import heapq
import logging
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from sos_controller import audit
from sos_controller.core.commands import (
    Apply,
    ApplyGroup,
    Barrier,
    Command,
    Echo,
    Install,
    Notice,
    PacketOut,
    ReadEntries,
    ReadTables,
    SessionOver,
    Withdraw,
)
from sos_controller.core.config import Config
from sos_controller.core.engine import Engine
from sos_controller.core.events import (
    BarrierReplies,
    ConfigChanged,
    DatapathDown,
    DatapathUp,
    Echoed,
    EndLeases,
    EntriesRead,
    EntriesUnreadable,
    EntryGone,
    Event,
    KeysChanged,
    Leaving,
    PacketIn,
    PortChanged,
    Rejected,
    TablesRead,
    Tick,
)
from sos_controller.core.flow_tables.budget import MAX_ENTRIES
from sos_controller.core.openflow.channel_policy import ChannelPolicy
from sos_controller.core.openflow.election import RoleReport
from sos_controller.core.openflow.flow_entries import FlowEntry, Match
from sos_controller.core.openflow.groups import ApplyFailovers, ApplyGroups
from sos_controller.core.types import DatapathId, Port, format_dpid
from sos_controller.files.config import ConfigError, follows, parse
from sos_controller.files.identity import identity_of_term
from sos_controller.files.key_files import Folder
from sos_controller.mastership import Mastership
from sos_controller.openflow import flow_mods, ofp, rewrite
from sos_controller.openflow.connection import SwitchConnection
from sos_controller.openflow.framework import eventlet

LOG = logging.getLogger("sos_controller.app")

TICK_S = 0.025
"""Half the shortest timer of an order (spec/order.md 8)."""
MAX_UNCLAIMED = 256
"""Maximum number of connections without a claimed datapath. Beyond it the oldest is closed, so that unclaimed connections cannot exclude a
switch that completes its handshake promptly."""
MAX_CONNECTIONS = 4_096 + MAX_UNCLAIMED
"""Maximum number of connections: the maximum number of datapaths of a configuration, plus MAX_UNCLAIMED."""

GC_THRESHOLDS = (50_000, 20, 50)
"""Thresholds of garbage collection. The default, every 700 objects, is far too frequent, since sessions make no reference cycles."""

LEAVE_POLL_S = 0.01
DELAY_GAP_S = 0.001
"""Minimum interval between checks for due packets, and so the maximum lateness of a packet."""

Listener = Callable[[Notice], None]


class DelayedPacketOut(NamedTuple):
    """A packet-out that is not due yet. The number of kept packet-outs is bounded by the number of connections that start within the
    delay."""

    due: float
    number: int
    connection: SwitchConnection
    command: PacketOut


class Controller:
    """Link between the engine and the switches."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.raw_config: bytes | None = None
        self.listeners: list[Listener] = []
        self.busy_seconds = 0.0
        self.offers_tls = False
        """True if the listener for switches has a certificate."""
        self._connections: dict[DatapathId, SwitchConnection] = {}
        self._unsent: dict[SwitchConnection, list[bytes]] = {}
        self._unclaimed: dict[SwitchConnection, None] = {}
        self._renewals = flow_mods.Renewals()
        self._delayed: list[DelayedPacketOut] = []
        self._delayed_number = 0
        self._delay_timer: Any = None
        self._channels = ChannelPolicy(None)
        self._keys: Folder | None = None
        self._latest = 0.0
        self.mastership = Mastership(self)
        self._do: dict[type[Command], Callable[[Any], None]] = {
            Notice: self._tell,
            SessionOver: audit.record,
            PacketOut: self._packet_out,
            Apply: self._apply,
            Install: self._install,
            Barrier: lambda command: self._queue(command.dpids, ofp.barrier_request(command.token)),
            Withdraw: self._withdraw,
            ReadEntries: self._read_entries,
            ReadTables: self._read_tables,
            Echo: lambda command: self._queue((command.dpid,), ofp.echo_marker(command.marker_ms)),
            ApplyGroups: lambda command: self._queue((command.dpid,), rewrite.encode_groups(command)),
            ApplyFailovers: lambda command: self._queue((command.dpid,), ofp.apply_failovers(command)),
            ApplyGroup: lambda command: self._queue((command.dpid,), ofp.apply_group(command)),
        }

    # -- events

    def happen(self, event: Event) -> bool:
        """Handle a single event now. Return False if an exception prevented this."""
        began = time.monotonic()
        handled = self._happen(event, began)
        self.busy_seconds += time.monotonic() - began
        return handled

    def _happen(self, event: Event, now: float, more: bool = False) -> bool:
        """Pass an event to the engine and carry out its commands. An exception in the engine is logged and loses one event; the process
        continues."""
        self._latest = max(self._latest, now)
        try:
            commands = self.engine.handle(event, self._latest, more)
        except Exception:
            self.bug(type(event).__name__)
            return False
        self.carry_out(commands)
        if self.engine.replan_gap.is_open:
            self.engine.replan_gap.end(time.monotonic())
        return True

    def bug(self, what: str) -> None:
        """Log and count the exception that is being handled. Its event is lost; the process continues."""
        LOG.exception("bug: %s was not handled", what)
        self.count("bugs", what)

    def carry_out(self, commands: list[Command]) -> None:
        """Carry out commands; skip datapaths that are not connected."""
        do = self._do
        for command in commands:
            try:
                do[type(command)](command)
            except Exception:
                self._not_carried_out(command)

    def _not_carried_out(self, command: Command) -> None:
        """Handle an exception in a command: abort the connections of its datapaths, which may have received any part of it. Their entries
        are read when they reconnect."""
        name = type(command).__name__
        LOG.exception("bug: %s was not carried out", name)
        self.count("bugs", name)
        named: list[DatapathId | None] = [*getattr(command, "dpids", ()), getattr(command, "dpid", None)]
        for connection in [self._connections[dpid] for dpid in named if dpid in self._connections]:
            connection.abort()

    def packet_in(self, connection: SwitchConnection, message: bytes) -> None:
        """Handle a packet-in of the current read. Raise WireError if the message is malformed."""
        cookie, in_port, data = ofp.parse_packet_in(message)
        self._happen(PacketIn(connection.dpid, in_port, cookie, data), connection.heard, more=True)

    def barrier_replies(self, connection: SwitchConnection, tokens: tuple[int, ...]) -> None:
        """Handle a switch's barrier replies."""
        self._happen(BarrierReplies(connection.dpid, tokens), connection.heard, more=True)

    def echoed(self, connection: SwitchConnection, marker_ms: int) -> None:
        """Handle a switch's reply to an echo request with a marker."""
        self._happen(Echoed(connection.dpid, marker_ms), connection.heard, more=True)

    def was_read(self, connection: SwitchConnection) -> None:
        """Finish the events of one read."""
        self.carry_out(self.engine.close())
        self.flush()
        self.busy_seconds += time.monotonic() - connection.heard

    def rejected(self, connection: SwitchConnection, token: int, why: str, full_table: int | None) -> None:
        """Handle a message refused by a switch; `full_table` is set if a table is full."""
        self.count("switch_errors", why)
        self.happen(Rejected(connection.dpid, token, full_table))

    def port_changed(self, connection: SwitchConnection, port: Port, gone: bool) -> None:
        """Handle a port added, removed or changed."""
        self.happen(PortChanged(connection.dpid, port, gone))

    def entry_gone(self, connection: SwitchConnection, cookie: int, match: Match) -> None:
        """Handle an entry removed with notification."""
        self.happen(EntryGone(connection.dpid, cookie, match))

    def entries_read(self, connection: SwitchConnection, entries: list[FlowEntry]) -> None:
        """Handle a switch's entries."""
        self.happen(EntriesRead(connection.dpid, tuple(entries)))

    def entries_unreadable(self, connection: SwitchConnection) -> None:
        """Handle a switch that has too many entries of this controller."""
        LOG.warning("datapath %s has more than %d entries of this controller: not programmed", format_dpid(connection.dpid), MAX_ENTRIES)
        self.happen(EntriesUnreadable(connection.dpid))

    def tables_read(self, connection: SwitchConnection, sizes: dict[int, int]) -> None:
        """Handle the capacity of a switch's tables."""
        self.happen(TablesRead(connection.dpid, sizes))

    def claims(self, dpid: DatapathId) -> bool:
        """Return whether the configuration in force names a datapath."""
        return dpid in self.engine.state.claims

    def arrived(self, connection: SwitchConnection) -> None:
        """Register a new connection. Beyond the limit of unclaimed connections, close the oldest."""
        self._unclaimed[connection] = None
        if len(self._unclaimed) > MAX_UNCLAIMED:
            for known in [c for c in self._unclaimed if not c.is_unclaimed]:
                del self._unclaimed[known]
        if len(self._unclaimed) > MAX_UNCLAIMED:
            self.count("connections_refused")
            oldest = next(iter(self._unclaimed))
            del self._unclaimed[oldest]
            oldest.abort()

    def left(self, connection: SwitchConnection) -> None:
        """Unregister a connection that has ended, claimed or not."""
        self._unclaimed.pop(connection, None)

    def connected(self, connection: SwitchConnection) -> None:
        """Handle a completed handshake. An existing connection with the same datapath id remains while its switch answers
        (docs/adr/0014)."""
        if not self._admits(connection):
            connection.abort()
            return
        older = self._connections.get(connection.dpid)
        if older is not None:
            LOG.warning(
                "datapath %s is connected from %s already: %s has to wait", format_dpid(connection.dpid), older.address, connection.address
            )
            self.count("connections_refused")
            older.challenge()
            connection.abort()
            return
        self._connections[connection.dpid] = connection
        if self.mastership.elects:
            self.mastership.connected(connection.dpid)
        else:
            self.join(connection.dpid)

    def join(self, dpid: DatapathId) -> None:
        """Use a connected datapath."""
        connection = self._connections[dpid]
        self._gather(connection, ofp.set_config())
        self.happen(DatapathUp(dpid, connection.known_ports()))
        self.flush()

    @property
    def admits_plain(self) -> bool:
        """Return whether a switch may connect without TLS."""
        return self._channels.admits_plain

    def _admits(self, connection: SwitchConnection) -> bool:
        reason = self._channels.refusal(connection.dpid, connection.certified_site)
        if reason is not None:
            LOG.warning("datapath %s at %s refused: %s", format_dpid(connection.dpid), connection.address, reason)
            self.count("tls_refusals")
        return reason is None

    def disconnected(self, connection: SwitchConnection) -> None:
        """Handle a lost connection."""
        if self._connections.get(connection.dpid) is connection:
            del self._connections[connection.dpid]
            self._renewals.forget(connection.dpid)
            self.mastership.disconnected(connection.dpid)
            self.happen(DatapathDown(connection.dpid))
            self.flush()

    def keys(self, folder: Folder) -> None:
        """Pass the contents of the key folder to the engine, if they have changed."""
        if folder != self._keys:
            self._keys = folder
            self.happen(KeysChanged(folder.sites, folder.sending))
            LOG.info("keys of %d sites%s", len(folder.sites), f", signing with {folder.sending}" if folder.sending else "")

    def configure(self, data: bytes) -> tuple[Config, bool]:
        """Apply a configuration document. Raise ConfigError or ConflictError; the configuration in force then remains."""
        config, before = parse(data), self.engine.state.config
        changed = follows(config, before)
        if config.controller.tls == "Required" and not self.offers_tls:
            raise ConfigError("controller.tls", "Required needs a certificate: start the controller with --openflow-tls")
        if changed:
            if not self.happen(ConfigChanged(config)):
                self._restore(before)
                raise ConfigError("", "could not be applied; see the log")
            self.raw_config = data
            self._channels = ChannelPolicy(config)
            for connection in [c for c in self._connections.values() if not self._admits(c)]:
                connection.abort()
            self.mastership.configure(config.controller.replicas, self.engine.state.switches.keys() & self._connections.keys())
            self.flush()
            LOG.info("configuration generation %d, %d sites, %d services", config.generation, len(config.sites), len(config.services))
        return config, changed

    def _restore(self, before: Config | None) -> None:
        """Restore the former configuration: some parts of the engine may have applied the failed configuration."""
        if self.engine.state.config is before:
            return
        if before is None:
            self.engine.state.config = None
        else:
            self.happen(ConfigChanged(before))
        self.flush()

    # -- roles

    def role_reported(self, connection: SwitchConnection, report: RoleReport) -> None:
        """Handle a switch's report about roles."""
        if self._connections.get(connection.dpid) is connection:
            self.mastership.reported(connection.dpid, report)

    def connections(self) -> Collection[DatapathId]:
        """Return the datapaths that are connected."""
        return self._connections.keys()

    def send(self, dpid: DatapathId, message: bytes) -> None:
        """Send a message to a datapath now."""
        connection = self._connections.get(dpid)
        if connection is not None:
            connection.queue(message)
            connection.kick()

    def begin(self, term: int | None) -> None:
        """Become active in a term, or a standby (None). All knowledge of switches is void, because another replica changes or has changed
        them: the engine starts empty, as after a start (docs/adr/0016)."""
        former = self.engine.state
        self.engine = Engine(former.identity if term is None else identity_of_term(term, former.identity))
        state = self.engine.state
        state.counters, state.set_up_times = former.counters, former.set_up_times
        state.programmer.continue_tokens(former.programmer)
        self._renewals = flow_mods.Renewals()
        self._delayed.clear()
        self._unsent.clear()
        if self._keys is not None:
            self.happen(KeysChanged(self._keys.sites, self._keys.sending))
        self.happen(Tick(time.time_ns() // 1_000_000))
        if former.config is not None:
            self.happen(ConfigChanged(former.config))

    def count(self, what: str, which: str = "") -> None:
        """Count for the metrics."""
        self.engine.state.count(what, which)

    # -- commands

    def flush(self) -> None:
        """Write the pending output of the last events.

        A connection that does not accept its output is closed, and this call also flushes the output that the closing causes. No message
        overtakes an earlier message to the same switch.
        """
        while self._unsent:
            connection = next(iter(self._unsent))
            connection.queue(b"".join(self._unsent.pop(connection)))
            connection.kick()

    def _packet_out(self, command: PacketOut) -> None:
        connection = self._connections.get(command.dpid)
        if connection is not None and command.after_s:
            self._delay(connection, command)
        elif connection is not None:
            self._gather(connection, ofp.packet_out(command.in_port, command.actions, command.data))

    def _apply(self, command: Apply) -> None:
        self._queue((command.dpid,), self._renewals.encode(command))
        self.engine.state.counters["flow_mods", "add"] += len(command.adds)
        self.engine.state.counters["flow_mods", "delete"] += len(command.deletes)

    def _install(self, command: Install) -> None:
        self._queue(command.dpids, flow_mods.install(command))
        self.engine.state.counters["flow_mods", "add"] += len(command.dpids)

    def _withdraw(self, command: Withdraw) -> None:
        self._queue(command.dpids, flow_mods.withdraw(command))
        self.engine.state.counters["flow_mods", "delete"] += len(command.dpids)

    def _read_entries(self, command: ReadEntries) -> None:
        connection = self._connections.get(command.dpid)
        if connection is not None and not connection.is_reporting:  # another request would restart the reply
            self._gather(connection, connection.read_entries(command.cookie, command.mask))

    def _read_tables(self, command: ReadTables) -> None:
        connection = self._connections.get(command.dpid)
        if connection is not None:
            self._gather(connection, connection.read_tables())

    def _queue(self, dpids: tuple[DatapathId, ...], data: bytes) -> None:
        """Append messages to the output of datapaths that are connected."""
        for dpid in dpids:
            connection = self._connections.get(dpid)
            if connection is not None:
                self._gather(connection, data)

    def _gather(self, connection: SwitchConnection, data: bytes) -> None:
        """Append a message to the output of the next `flush`."""
        parts = self._unsent.get(connection)
        if parts is None:
            self._unsent[connection] = [data]
        else:
            parts.append(data)

    def _delay(self, connection: SwitchConnection, command: PacketOut) -> None:
        """Keep a packet-out until it is due."""
        self._delayed_number += 1
        kept = DelayedPacketOut(time.monotonic() + command.after_s, self._delayed_number, connection, command)
        heapq.heappush(self._delayed, kept)
        if self._delayed[0] is kept:
            self._wake_delayed(command.after_s)

    def _wake_delayed(self, after_s: float) -> None:
        if self._delay_timer is not None:
            self._delay_timer.cancel()
        self._delay_timer = eventlet.spawn_after(max(after_s, DELAY_GAP_S), self._send_delayed)

    def _send_delayed(self) -> None:
        now, self._delay_timer = time.monotonic(), None
        try:
            while self._delayed and self._delayed[0].due <= now:
                _, _, connection, command = heapq.heappop(self._delayed)
                if self._connections.get(command.dpid) is connection:
                    self._gather(connection, ofp.packet_out(command.in_port, command.actions, command.data))
            self.flush()
        except Exception:
            self.bug("Late")
        if self._delayed:
            self._wake_delayed(self._delayed[0].due - now)

    def _tell(self, notice: Notice) -> None:
        level = logging.DEBUG if notice.kind == "session" else logging.INFO
        if LOG.isEnabledFor(level):
            LOG.log(level, notice.kind, extra={"fields": notice.data})
        for listener in list(self.listeners):
            listener(notice)

    def leave(self, within_s: float) -> None:
        """Shut down gracefully: new connections stay plain. Wait up to `within_s` for connections being opened, then up to `within_s` until
        switches have stopped punting and delayed packets have been sent. The controller cannot be used afterwards."""
        self.happen(Leaving())
        self.flush()
        _wait_while(lambda: self.engine.setup.is_opening(time.monotonic()), within_s)
        self.happen(EndLeases())
        self.flush()
        _wait_while(lambda: bool(self._delayed) or not self.engine.state.programmer.is_quiet, within_s)
        self.mastership.vacate()

    # -- loops

    @staticmethod
    def settle() -> None:
        """Exempt all objects made at start-up from garbage collection."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)

    def tick_loop(self) -> None:
        """Send ticks."""
        while True:
            try:
                self.mastership.tick()
            except Exception:
                self.bug("election")
            self.happen(Tick(time.time_ns() // 1_000_000))
            try:
                self.flush()
            except Exception:
                self.bug("flush")
            eventlet.sleep(TICK_S)

    def connected_dpids(self) -> list[str]:
        """Return datapaths connected now."""
        return [format_dpid(d) for d in sorted(self._connections)]


def _wait_while(condition: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while condition() and time.monotonic() < deadline:
        eventlet.sleep(LEAVE_POLL_S)
